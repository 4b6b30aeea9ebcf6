"""The state that a replica has derived from its log, as bytes: a node needs it that does not see the log's head.

A snapshot goes to the disk, so that the log's head may be deleted, and to a peer whose log ends before the leader's
begins. It is a CBOR map:

    metadata     topics, consumer groups, consumer offsets, ... (broker/state/metadata.py)
    addresses    the members' addresses (broker/replica/membership.py)
    queue_ends   MessagePack: [topic, queue id, end] of every queue; earlier versions kept them as CBOR

The ends are those of dispatched messages, and so of committed ones: an end that a truncated entry had reached would
leave a hole.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import cbor2
import msgspec

from broker.requests.long_bodies import whole
from broker.state.metadata import Metadata
from broker.state.writing import ROWS_AT_ONCE, MessagePackWriter, Rows, Written, cbor_map, slices
from log.consume_queue import ConsumeQueue
from log.consume_queues import ConsumeQueues


class StateSnapshot(NamedTuple):
    """The content of a snapshot."""

    metadata: Metadata
    addresses: dict[str, str]
    queue_ends: dict[tuple[str, int], int]


def state_written(
    metadata: Metadata,
    addresses: dict[str, str],
    queues: Iterable[ConsumeQueue],
    rows_at_once: int = ROWS_AT_ONCE,
) -> Written:
    """Writes a snapshot of the state as it is at this call, in steps, whatever changes between them."""
    lasting = list(queues)
    # Quick, for each new message moves an end: two hundred thousand take 5 ms.
    ends = [queue.max_offset for queue in lasting]
    keys = ((queue.topic, queue.queue_id) for queue in lasting)
    return _written(metadata.view(), dict(addresses), keys, ends, rows_at_once)


def encode_state(metadata: Metadata, addresses: dict[str, str], queues: Iterable[ConsumeQueue]) -> bytes:
    """A snapshot of the state as it is now."""
    return whole(state_written(metadata, addresses, queues))


def encode_parts(metadata: Metadata, queue_ends: dict[tuple[str, int], int]) -> bytes:
    """A snapshot of a state that no node has had yet: without members."""
    return whole(_written(metadata, {}, queue_ends, list(queue_ends.values()), ROWS_AT_ONCE))


def _written(
    metadata: Metadata,
    addresses: dict[str, str],
    keys: Iterable[tuple[str, int]],
    ends: list[int],
    rows_at_once: int,
) -> Written:
    tables = yield from metadata.written(rows_at_once)
    rows = ((*key, end) for key, end in zip(keys, ends, strict=True))
    queues = yield from MessagePackWriter(rows_at_once).array(Rows(len(ends), slices(rows, rows_at_once)))
    return cbor_map({"metadata": tables, "addresses": addresses, "queue_ends": queues})


def decode_state(snapshot: bytes) -> StateSnapshot:
    """The state that `encode_state` wrote. Raises `UnknownCommandError` for a snapshot of a newer version."""
    state = cbor2.loads(snapshot)
    ends: Any = state["queue_ends"]
    if isinstance(ends, bytes):
        ends = msgspec.msgpack.decode(ends)
    return StateSnapshot(
        Metadata.restore(state["metadata"]),
        state["addresses"],
        {(topic, queue_id): end for topic, queue_id, end in ends},
    )


def with_addresses(snapshot: bytes, addresses: dict[str, str]) -> bytes:
    """Returns a snapshot of the same state in which the members are found at `addresses`: of a group that is restored
    elsewhere."""
    return cbor2.dumps(cbor2.loads(snapshot) | {"addresses": addresses})


def restore_queue_ends(queues: ConsumeQueues, ends: dict[tuple[str, int], int]) -> None:
    """Lets queues without a unit on this disk go on at the snapshot's ends, so that no offset is given twice."""
    for (topic, queue_id), end in ends.items():
        queue = queues.get(topic, queue_id)
        if queue is None:
            queue = queues.make(topic, queue_id)
        if queue.min_offset == queue.max_offset < end:
            queue.start_at(end)
