"""Topics: how they come into being, change and go."""
