"""The base of every client: the runtime, connections, routes, heartbeats, and calls that are repeated."""
