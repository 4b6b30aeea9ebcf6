"""The deliveries of messages that have waited, whether for a delay level or for a time of their own.

A message that waits is stored under a topic of the broker's, with its true topic and queue in properties, and appended
again, to that topic and queue, when its time has come. The deliveries of a batch follow the command that announced them
without anything in between, so that the next leader can count in the log how many of them came into it.

Levels and timers each wait for the commit of a batch before the next one, so that many messages that are due at once do
not fill the log's window and keep clients waiting. How much a batch is, `InnerLimits` says.
"""

from collections.abc import Callable, Sequence
from typing import Final

import structlog

from broker.node.ports import State
from broker.replica.proposals import NewMessage, stored_again
from broker.requests.errors import ReplicaError
from broker.state.topic_rules import WAITING_TOPICS
from broker.state.waiting_messages import destination
from broker.statistics.events import EventKind, Events
from log.entries.entry_reads import record_at
from log.errors import DamagedLogError, DiskFullError, OutOfRangeError, RecordError
from log.formats.layout import HEADER_BYTES
from log.formats.record import Record, decode_record, peek
from log.queues.consume_queue import ConsumeQueue

log = structlog.get_logger("trivet.deliveries")

_DIGITS_MAX: Final = 18

DeliveredProperties = Callable[[bytes], bytes]
"""From the properties of a message that waits to those of its delivery."""


def number(value: bytes) -> int | None:
    """Returns the number that a property says; None for text that is not a number."""
    digits = value.removeprefix(b"-")
    return int(value) if digits.isdigit() and len(digits) <= _DIGITS_MAX else None


def delivery_of(
    state: State,
    queue: ConsumeQueue,
    offset: int,
    unit: tuple[int, int, int],
    delivered_properties: DeliveredProperties,
) -> NewMessage | None:
    """The delivery of the waiting message at an offset; None where that message is dropped.

    Raises `log.errors.DamagedLogError` where it is damaged, or its unit: it may be whole again later.
    """
    try:
        record = decode_record(state.store.record_of(queue, offset, unit))
    except (OutOfRangeError, RecordError) as error:
        log.warning("waiting message dropped", reason=str(error))
        return None
    target = destination(record)
    if target is None or target.topic in WAITING_TOPICS:
        return None
    # A queue that the topic lost meanwhile keeps its messages, for when the topic gets it back.
    if target.topic not in state.metadata.topics:
        log.warning("waiting message dropped", topic=target.topic, reason="its topic is gone")
        return None
    message = stored_again(record, target.topic, target.queue_id, delivered_properties(record.properties))
    message.prepared_transaction_offset = record.prepared_transaction_offset
    return message


def count_delivered(
    state: State,
    queue: ConsumeQueue,
    offsets: Sequence[int],
    index: int,
    delivered_properties: DeliveredProperties,
) -> int:
    """Counts the deliveries in the log that entry `index` announced, of the units at `offsets`.

    A leader asks this when it begins to serve: all of them are committed then. A message that retention took while it
    waited counts as delivered: it may have been, and cannot be any more. Raises `log.errors.DamagedLogError`.
    """
    entry_log = state.store.log
    if index < entry_log.first_index:
        # Announced long ago, in a term that went on: a leader after it would have settled at once.
        return len(offsets)
    for done, offset in enumerate(offsets):
        unit = queue.unit(offset)
        entry = index + 1 + done
        # The deliveries have their announcement's term. What another term has put behind it is something else.
        if entry > entry_log.last_index or entry_log.term_of(entry) != entry_log.term_of(index):
            return done
        if unit is None or state.store.is_gone(queue, unit):
            continue
        delivery = record_at(entry_log, entry_log.position_of(entry) + HEADER_BYTES)
        waiting = decode_record(state.store.record_of(queue, offset, unit))
        if not _is_delivery(delivery, waiting, delivered_properties):
            return done
    return len(offsets)


def tell_of_damage(events: Events, what: str, error: DamagedLogError, now_ns: int) -> None:
    """Tells of deliveries that wait until a message is whole again, as long as they do."""
    events.warn(
        EventKind.DELIVERIES_WAIT, what, now_ns, source=error.file, offset=error.offset, detail=error.reason
    )


def tell_of_refusal(events: Events, what: str, error: ReplicaError | DiskFullError, now_ns: int) -> None:
    """Tells of deliveries or checks that wait because the log takes no more now, as on a full disk."""
    events.warn(EventKind.DELIVERIES_WAIT, "append refused", now_ns, source=what, detail=str(error))


def _is_delivery(delivery: memoryview, waiting: Record, delivered_properties: DeliveredProperties) -> bool:
    """Tells the delivery of a message that waited from what came into the log after the batch broke off."""
    head = peek(delivery)
    target = destination(waiting)
    return (
        target is not None
        and head.queue_id == target.queue_id
        and head.born_timestamp == waiting.born_timestamp
        and delivery[head.topic_begin : head.topic_end] == target.topic.encode()
        and delivery[head.body_begin : head.body_end] == waiting.body
        and bytes(delivery[head.properties_begin : head.properties_end])
        == delivered_properties(waiting.properties)
    )
