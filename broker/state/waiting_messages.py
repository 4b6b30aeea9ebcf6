"""Messages that wait in a topic of the broker's, whatever they wait for: they say themselves where they belong."""

from typing import NamedTuple

from log.formats.properties import REAL_QUEUE_ID, REAL_TOPIC, get_property, with_property, without_properties
from log.formats.record import Record

# So many digits fit into the 32 bits that a queue's id has.
_DIGITS_MAX = 9


class Destination(NamedTuple):
    """The topic and queue to which a waiting message belongs."""

    topic: str
    queue_id: int


def addressed_properties(properties: bytes, topic: str, queue_id: int) -> bytes:
    """The properties of a message for `topic` while it waits."""
    properties = with_property(properties, REAL_TOPIC, topic.encode())
    return with_property(properties, REAL_QUEUE_ID, b"%d" % queue_id)


def without_address(properties: bytes) -> bytes:
    """The properties of a message without where it belongs; what a client says of that does not count."""
    return without_properties(properties, REAL_TOPIC, REAL_QUEUE_ID)


def destination(record: Record) -> Destination | None:
    """The topic and queue to which a waiting message belongs; None if it does not say so."""
    topic = get_property(record.properties, REAL_TOPIC)
    queue_id = get_property(record.properties, REAL_QUEUE_ID)
    if topic is None or queue_id is None or not queue_id.isdigit() or len(queue_id) > _DIGITS_MAX:
        return None
    return Destination(topic.decode("utf-8", "replace"), int(queue_id))
