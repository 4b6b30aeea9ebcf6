"""IndexFiles, which find messages by their keys."""
