"""Request processors: each answers one family of requests (remoting.md 7 and 9)."""
