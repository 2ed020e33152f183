"""The public emulator's modules."""
