"""The property string of a record: name \\x01 value \\x02, repeated (RocketMQ's `MessageDecoder`).

Readers are tolerant, because 4.9 clients leave out the last \\x02: entries without \\x01, without a name or
without a value are skipped, and of several entries of one name the last counts. Single properties are
looked up in the raw bytes: to take the whole string apart costs as much as ten such searches.
"""

from collections.abc import Mapping

from log.errors import RecordError

# The names that brokers read and write; `MessageConst` of RocketMQ has them all.
TAGS = b"TAGS"
KEYS = b"KEYS"
UNIQ_KEY = b"UNIQ_KEY"
"""The key that a producer makes for each message, to find it by."""

DELAY = b"DELAY"
"""A delay level, from 1."""
TIMER_DELAY_SEC = b"TIMER_DELAY_SEC"
TIMER_DELAY_MS = b"TIMER_DELAY_MS"
TIMER_DELIVER_MS = b"TIMER_DELIVER_MS"
TIMER_OUT_MS = b"TIMER_OUT_MS"
"""The time at which a timed message is due, noted by the broker: milliseconds since 1970."""
TIMER_CANCELS = b"TIMER_DEL_UNIQKEY"

REAL_TOPIC = b"REAL_TOPIC"
REAL_QUEUE_ID = b"REAL_QID"
"""The topic and queue to which a message belongs that waits in a topic of the broker's."""

HALF_MESSAGE = b"TRAN_MSG"
PRODUCER_GROUP = b"PGROUP"

RETRY_TOPIC = b"RETRY_TOPIC"
ORIGIN_MESSAGE_ID = b"ORIGIN_MESSAGE_ID"
"""On a message that was sent back: the topic that it was sent to first, and its id there."""
DLQ_ORIGIN_TOPIC = b"DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = b"DLQ_ORIGIN_MESSAGE_ID"
"""First topic and id of a dead letter as well, whose retries may have lost the two properties above."""

CLUSTER = b"CLUSTER"
MESSAGE_REGION = b"MSG_REGION"
TRACE_ON = b"TRACE_ON"
WAIT = b"WAIT"
"""The producer waits until the message is stored."""
REPLY_TO_CLIENT = b"REPLY_TO_CLIENT"
"""The id of the client that waits for a reply."""

_END = 2
"""The byte \\x02 that ends each property."""


def parse_properties(raw: bytes) -> dict[str, str]:
    """Returns all properties by name. Malformed UTF-8 becomes U+FFFD, as it does in a Java reader."""
    found: dict[str, str] = {}
    for item in raw.decode("utf-8", "replace").split("\x02"):
        name, _, value = item.partition("\x01")
        if name and value:
            found[name] = value
    return found


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Returns the property string, ending with \\x02. Empty values are left out: no reader would see them.

    Raises RecordError if a name or value contains a separator, or a name is empty.
    """
    parts = []
    for name, value in properties.items():
        if not name or "\x01" in name or "\x02" in name or "\x01" in value or "\x02" in value:
            raise RecordError(f"property {name!r} = {value!r} contains a separator or has no name")
        if value:
            parts.append(f"{name}\x01{value}\x02")
    return "".join(parts).encode()


def properties_by_name(raw: bytes) -> dict[bytes, bytes]:
    """Returns all properties by name, as bytes, for those who ask for many."""
    found: dict[bytes, bytes] = {}
    for item in raw.split(b"\x02"):
        name, _, value = item.partition(b"\x01")
        if name and value:
            found[name] = value
    return found


def get_property(raw: bytes, name: bytes) -> bytes | None:
    """Returns the value of one property without parsing the others; None if absent or empty."""
    needle = name + b"\x01"
    before, found, rest = raw.rpartition(needle)
    if not found:
        return None
    value = rest.partition(b"\x02")[0]
    if value and (not before or before[-1] == _END):
        return value  # the last one there is, with a value, and really a name: nearly always
    return properties_by_name(raw).get(name)


def terminated(raw: bytes) -> bytes:
    """Returns the same properties with the \\x02 at the end that older clients leave out."""
    return raw + b"\x02" if raw and raw[-1] != _END else raw


def with_property(raw: bytes, name: bytes, value: bytes) -> bytes:
    """Returns the string with one more entry at the end, where it wins over earlier ones of that name."""
    return b"%s%s\x01%s\x02" % (terminated(raw), name, value)


def without_properties(raw: bytes, *names: bytes) -> bytes:
    """Returns the string without any entry of these names; unchanged if there is none."""
    items = raw.split(b"\x02")
    kept = [item for item in items if item.partition(b"\x01")[0] not in names]
    if len(kept) == len(items):
        return raw
    return b"".join([item + b"\x02" for item in kept if item])
