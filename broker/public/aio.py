"""The client for programs on asyncio (docs/client.md)."""

from broker.client.threaded.aio import Consumer, Producer

__all__ = ["Consumer", "Producer"]
