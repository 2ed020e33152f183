"""Measuring: which configuration of a matmul is the fastest on this machine's GPU.

Nothing of it runs unless it is asked for: matmuls are chosen for without measuring.
"""
