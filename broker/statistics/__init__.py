"""Counts of what a node has done, and rates from them."""
