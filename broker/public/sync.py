"""The client for programs without an event loop (docs/client.md)."""

from broker.client.threaded.sync import Consumer, Producer

__all__ = ["Consumer", "Producer"]
