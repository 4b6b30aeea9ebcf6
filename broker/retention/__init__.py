"""Deleting the head of the log by age or for want of space, and what still keeps it."""
