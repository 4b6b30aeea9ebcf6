"""The state that a replica has derived from its log, as bytes: a node needs it that does not see the log's head.

A snapshot goes to the disk, so that the log's head may be deleted, and to a peer whose log ends before the leader's
begins. It is a CBOR map:

    metadata     topics, consumer groups, consumer offsets, ... (broker/state/metadata.py)
    addresses    the members' addresses (broker/replica/members_file.py)
    queue_ends   MessagePack: [topic, queue id, end] of every queue; earlier versions kept them as CBOR

The ends are those of dispatched messages, and so of committed ones: an end that a truncated entry had reached would
leave a hole.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import cbor2
import msgspec

from broker.remoting.steps import finished
from broker.requests.long_bodies import whole
from broker.requests.processing import Pace
from broker.state.metadata import Metadata
from broker.state.snapshot_reading import MessagePackReader, Read, read_cbor_map
from broker.state.writing import ROWS_AT_ONCE, MessagePackWriter, Rows, Written, cbor_map, slices
from log.queues.consume_queue import ConsumeQueue
from log.queues.consume_queues import ConsumeQueues

_QUEUE_ENDS: Final = msgspec.msgpack.Decoder(list[tuple[str, int, int]])


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


def state_read(snapshot: bytes | memoryview, rows_at_once: int = ROWS_AT_ONCE) -> Read[StateSnapshot]:
    """Reads the state that `state_written` wrote. Raises as `Metadata.read`."""
    state = read_cbor_map(snapshot)
    metadata = yield from Metadata.read(state["metadata"], rows_at_once)
    ends: Any = state["queue_ends"]
    queue_ends: dict[tuple[str, int], int] = {}

    def take(rows: list[Any]) -> None:
        queue_ends.update(((topic, queue_id), end) for topic, queue_id, end in rows)

    # Earlier versions kept them as CBOR, which is read by now.
    if isinstance(ends, memoryview):
        reader = MessagePackReader(ends, rows_at_once, Pace(rows_at_once))
        yield from reader.rows(_QUEUE_ENDS, take)
        reader.end()
    else:
        take(ends)
    return StateSnapshot(metadata, state["addresses"], queue_ends)


def decode_state(snapshot: bytes | memoryview) -> StateSnapshot:
    """The state that `encode_state` wrote. Raises as `Metadata.read`."""
    return finished(state_read(snapshot))


def with_addresses(snapshot: bytes | memoryview, addresses: dict[str, str]) -> bytes:
    """Returns a snapshot of the same state in which the members are found at `addresses`: of a group that is restored
    elsewhere."""
    return cbor2.dumps(cbor2.loads(snapshot) | {"addresses": addresses})


def restore_queue_ends(queues: ConsumeQueues, ends: dict[tuple[str, int], int], *, is_newer: bool) -> None:
    """Lets queues without a unit on this disk go on at the snapshot's ends, so that no offset is given twice.

    `is_newer`: what else is known of such queues is older than the snapshot. Then one that the snapshot does not have
    was deleted since, and one that ended later was that of an earlier life of its topic. Else one that is not here was
    deleted behind the snapshot.
    """
    if is_newer:
        for empty in [queue for queue in queues if queue.min_offset == queue.max_offset]:
            ends_at = ends.get((empty.topic, empty.queue_id))
            if ends_at is None:
                queues.discard(empty)
            else:
                empty.start_at(ends_at)
    for (topic, queue_id), end in ends.items():
        queue = queues.get(topic, queue_id)
        if queue is None:
            if not is_newer:
                continue
            queue = queues.make(topic, queue_id)
        # Only a queue without units: one that has some ends where they do.
        if queue.min_offset == queue.max_offset < end:
            queue.start_at(end)
