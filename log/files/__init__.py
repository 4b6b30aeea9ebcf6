"""The one door to the operating system, `disk.py`, which is read first, and small things written through it."""
