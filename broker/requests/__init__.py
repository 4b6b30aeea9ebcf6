"""A request while a node works on it: its connection, its handler and place, what it may hold up, why it
fails.
"""
