"""The part of the log that is still waited for: messages that nobody could get yet must not be deleted for their age.

Three kinds of messages wait under topics of the broker's own: timed ones, those of a delay level, and half messages
whose transaction is undecided. Retention leaves the files from the first of them on alone, unless the disk is so full
that whatever is oldest must go. A transaction does not hold the log for long: it is given up at the age at which the
log may go (broker/transactions/checks.py).

A pure function of what is replicated and dispatched, so that every node decides by itself and alike.
"""

from collections.abc import Iterator

from broker.node.ports import StoredMessages
from broker.state.metadata import Metadata
from broker.state.topic_rules import HALF_TOPIC, SCHEDULE_TOPIC
from log.formats.layout import HEADER_BYTES
from log.queues.consume_queue import ConsumeQueue


def first_waiting_position(store: StoredMessages, metadata: Metadata) -> int | None:
    """Returns the position of the first entry whose message still waits, or of one before it; None if none waits.

    Where a damaged unit hides which one that is, it may be any: all are looked over then, and the unit is put right.
    """
    first_position = store.log.first_position
    positions: list[int] = []
    for queue, pending in _queues(store, metadata):
        # Before its end only a disk that is nearly full takes what waits.
        offset = max(pending, queue.min_offset)
        unit = queue.unit(offset)
        if unit is not None and not store.is_gone(queue, unit):
            if not store.is_unit_right(queue, offset):
                store.log.damage.doubt_units()
                return first_position
            positions.append(unit[0] - HEADER_BYTES)
    return min(positions, default=None)


def _queues(store: StoredMessages, metadata: Metadata) -> Iterator[tuple[ConsumeQueue, int]]:
    """Yields the queues in which messages wait, each with the offset of the first one that may."""
    timed = store.timers.queue
    if timed is not None:
        yield timed, store.timers.first_pending(metadata.timers.floor, metadata.timers.steps)
    for level in range(1, len(store.options.delay_levels_ms) + 1):
        delayed = store.queues.get(SCHEDULE_TOPIC, level - 1)
        if delayed is not None:
            progress = metadata.delays.get(level)
            yield delayed, 0 if progress is None else progress.offset
    half = store.queues.get(HALF_TOPIC, 0)
    if half is not None:
        yield half, metadata.transactions.first_open(half.max_offset)
