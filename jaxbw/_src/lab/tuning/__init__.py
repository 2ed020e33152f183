"""Measuring: which configuration of a product is the fastest on this machine's GPU.

Nothing of it runs unless it is asked for: products are chosen for without measuring.
"""
