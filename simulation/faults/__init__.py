"""What is done to a world: how each kind of fault happens, and how it is undone."""
