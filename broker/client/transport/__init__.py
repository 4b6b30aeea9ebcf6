"""What every client is built on: the runtime, connections, routes, heartbeats, and calls that are repeated."""
