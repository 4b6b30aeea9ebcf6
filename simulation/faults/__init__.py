"""The faults of a world: how each kind happens, and how it is undone."""
