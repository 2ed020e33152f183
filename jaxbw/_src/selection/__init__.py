"""Which kernel runs a problem on a device, in which configuration: see select.py."""
