"""Portions that are written again in another order, by a client that remembers nothing of the first attempt."""

from __future__ import annotations

from broker.client.message import Message
from broker.client.producing.producer import Producer
from tests.broker.client.cluster import NAME_SERVER, one_group
from tests.broker.client.links import ClientRuntime, World


async def test_equal_identities_in_two_topics_are_two_messages_in_any_order(
    world: World, runtime: ClientRuntime
) -> None:
    """A row that goes to two topics under one `row_id`: by a count alone they would change places with their order."""
    (broker,) = one_group(world)
    broker.create_topic("u")
    in_t, in_u = (Message("t", b"to t"), b"id"), (Message("u", b"to u"), b"id")
    async with Producer(NAME_SERVER, group="p", runtime=runtime) as producer:
        await producer.portion("w", 0).send([in_t])
        again = producer.portion("w", 0)
        await again.send([in_u, in_t])
        await again.end()
    assert (broker.stored("t"), broker.stored("u")) == ([b"to t"], [b"to u"])
