"""The state that a replica has derived from its log, as bytes: what a node needs that does not see the log's head.

A snapshot goes to the disk, so that the log's head may be deleted, and to a peer whose log ends before the leader's
begins. It is a CBOR map:

    metadata     topics, groups, positions, locks, ... (broker/state/metadata.py)
    addresses    where the members are found (broker/replica/membership.py)
    queue_ends   MessagePack: [topic, queue id, end] of every queue; earlier versions kept them as CBOR

The ends are of what is dispatched, and so committed: one that a truncated entry had reached would leave a hole.
"""

from typing import Any, NamedTuple

import cbor2
import msgspec

from broker.state.metadata import Metadata
from log.consume_queues import ConsumeQueues


class StateSnapshot(NamedTuple):
    """What a snapshot holds, read."""

    metadata: Metadata
    addresses: dict[str, str]
    queue_ends: dict[tuple[str, int], int]


def encode_state(metadata: Metadata, addresses: dict[str, str], queues: ConsumeQueues) -> bytes:
    """A snapshot of the state as it is now."""
    ends = [(queue.topic, queue.queue_id, queue.max_offset) for queue in queues]
    return cbor2.dumps(
        {"metadata": metadata.snapshot(), "addresses": addresses, "queue_ends": msgspec.msgpack.encode(ends)}
    )


def decode_state(snapshot: bytes) -> StateSnapshot:
    """The state that `encode_state` wrote."""
    state = cbor2.loads(snapshot)
    ends: Any = state["queue_ends"]
    if isinstance(ends, bytes):
        ends = msgspec.msgpack.decode(ends)
    return StateSnapshot(
        Metadata.restore(state["metadata"]),
        state["addresses"],
        {(topic, queue_id): end for topic, queue_id, end in ends},
    )


def restore_queue_ends(queues: ConsumeQueues, ends: dict[tuple[str, int], int]) -> None:
    """Queues without a unit on this disk go on where the snapshot says, so that no offset is given twice."""
    for (topic, queue_id), end in ends.items():
        queue = queues.get(topic, queue_id)
        if queue is None:
            queue = queues.make(topic, queue_id)
        if queue.min_offset == queue.max_offset < end:
            queue.start_at(end)
