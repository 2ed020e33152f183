"""Blackwell time, modelled: a replay of a kernel's pipeline on tables of machine constants.

docs/blackwell-model.md says what is modelled, from which constants, and what must not be claimed.
Nothing here has been measured on a Blackwell GPU.
"""
