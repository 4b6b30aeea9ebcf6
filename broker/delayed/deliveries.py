"""What waiting messages have in common, whatever they wait for: where they belong, and whether they were delivered.

A message that waits is stored under a topic of the broker's, with its true topic and queue in properties, and appended
again, to that topic and queue, when its time has come. The deliveries of a batch follow the command that announced them
without anything in between, so that whoever leads next can count in the log how many of them came into it.
"""

from collections.abc import Callable, Sequence

import structlog

from broker.node.ports import Appends, State
from broker.replica.proposals import stored_again
from broker.state.topic_rules import WAITING_TOPICS
from broker.state.waiting_messages import Destination, destination
from log.consume_queue import ConsumeQueue
from log.errors import OutOfRangeError, RecordError
from log.layout import HEADER_BYTES
from log.record import Record, decode_record, peek

log = structlog.get_logger("trivet.deliveries")

DeliveredProperties = Callable[[bytes], bytes]
"""From the properties of a message that waits to those of its delivery."""


def deliverable(state: State, physical_offset: int, size: int) -> tuple[Record, Destination] | None:
    """A waiting message and where it belongs; None for one that is dropped."""
    try:
        record = decode_record(state.store.log.record_at(physical_offset, size))
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
    return record, target


def deliver(appends: Appends, record: Record, target: Destination, properties: bytes) -> None:
    """Appends the delivery of a message that has waited. Raises as `Replica.append_message`."""
    message = stored_again(record, target.topic, target.queue_id, properties)
    message.prepared_transaction_offset = record.prepared_transaction_offset
    appends.append_message(message, None)


def count_delivered(
    state: State,
    queue: ConsumeQueue,
    offsets: Sequence[int],
    index: int,
    delivered_properties: DeliveredProperties,
) -> int:
    """How many of the deliveries announced by entry `index`, of the units at `offsets`, are in the log.

    All of them are committed when this is asked: by a leader that serves. A message that retention took while it waited
    counts as delivered: it may have been, and cannot be any more.
    """
    entry_log = state.store.log
    if index < entry_log.first_index:
        # Long ago, in a term that went on: a leader after it would have settled at once.
        return len(offsets)
    for done, offset in enumerate(offsets):
        unit = queue.unit(offset)
        entry = index + 1 + done
        if entry > entry_log.last_index or entry_log.term_of(entry) != entry_log.term_of(index):
            return done
        if unit is None or unit[0] < entry_log.first_position:
            continue
        delivery = entry_log.record_at(entry_log.position_of(entry) + HEADER_BYTES)
        waiting = decode_record(entry_log.record_at(unit[0], unit[1]))
        if not _is_delivery(delivery, waiting, delivered_properties):
            return done
    return len(offsets)


def _is_delivery(delivery: memoryview, waiting: Record, delivered_properties: DeliveredProperties) -> bool:
    """Whether a record is the delivery of a message that waited, and not what came into the log after it broke off."""
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
