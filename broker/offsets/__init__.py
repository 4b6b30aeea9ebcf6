"""Consumer offsets: how they are committed, reset by an administrator, and forgotten when nobody uses them."""
