"""The messages that transactions are made of, as records and properties (`TransactionalMessageBridge`)."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from broker.state.topic_rules import CHECK_EXHAUSTED_TOPIC, HALF_OPERATIONS_TOPIC, HALF_TOPIC
from broker.state.waiting_messages import addressed_properties
from log.formats.properties import (
    HALF_MESSAGE,
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TAGS,
    UNIQ_KEY,
    get_property,
    with_property,
    without_properties,
)
from log.formats.record import SYS_FLAG_COMMIT, SYS_FLAG_TRANSACTION_MASK, Record, peek

TRANSACTION_ID: Final = b"__transactionId__"
CHECK_TIMES: Final = b"TRANSACTION_CHECK_TIMES"
HALF_QUEUE_OFFSET: Final = b"TRAN_PREPARED_QUEUE_OFFSET"
"""On a decision: the half message's offset in its queue. RocketMQ writes it when it stores a half message again."""
CHECK_IMMUNITY: Final = b"CHECK_IMMUNITY_TIME_IN_SECONDS"

OPERATION_TAG: Final = b"d"
OPERATION_BYTES_MAX: Final = 4096
"""The most bytes of an operation message's list (`transactionOpMsgMaxSize`)."""

HALF_TOPIC_BYTES: Final = HALF_TOPIC.encode()
OPERATIONS_TOPIC_BYTES: Final = HALF_OPERATIONS_TOPIC.encode()
EXHAUSTED_TOPIC_BYTES: Final = CHECK_EXHAUSTED_TOPIC.encode()

_OWN: Final = (REAL_TOPIC, REAL_QUEUE_ID, TRANSACTION_ID, CHECK_TIMES, HALF_QUEUE_OFFSET)
"""Only the broker may say these of a half message."""


class Decision(NamedTuple):
    """The half messages, by their queue offsets, that a record decides, and whether it is an operation message."""

    half_offsets: tuple[int, ...]
    is_operation: bool


def is_half(properties: Mapping[bytes, bytes]) -> bool:
    """Tells whether a producer sends this as a half message."""
    return properties.get(HALF_MESSAGE, b"").lower() == b"true"


def half_properties(
    properties: bytes, topic: str, queue_id: int, unique_key: bytes, producer_group: str
) -> bytes:
    """The properties of a half message for `topic`, from those of a message that is ready to be stored.

    A group that the producer left out is taken from its request: nobody could be asked otherwise.
    """
    # What a client says of these does not count.
    properties = without_properties(properties, *_OWN)
    if get_property(properties, PRODUCER_GROUP) is None:
        properties = with_property(properties, PRODUCER_GROUP, producer_group.encode())
    properties = with_property(properties, TRANSACTION_ID, unique_key)
    return addressed_properties(properties, topic, queue_id)


def committed_properties(half: Record) -> bytes:
    """The properties of a half message's message."""
    properties = without_properties(
        half.properties, HALF_MESSAGE, REAL_TOPIC, REAL_QUEUE_ID, CHECK_TIMES, HALF_QUEUE_OFFSET
    )
    # By this number the record is a decision (`decision_of`).
    return with_property(properties, HALF_QUEUE_OFFSET, b"%d" % half.queue_offset)


def committed_sys_flag(half: Record) -> int:
    """A half message's flags, with the bits of a committed one."""
    return half.sys_flag & ~SYS_FLAG_TRANSACTION_MASK | SYS_FLAG_COMMIT


def given_up_properties(half: Record, times_checked: int) -> bytes:
    """The properties of a half message's copy in TRANS_CHECK_MAX_TIME_TOPIC."""
    properties = without_properties(half.properties, CHECK_TIMES, HALF_QUEUE_OFFSET)
    properties = with_property(properties, CHECK_TIMES, b"%d" % times_checked)
    return with_property(properties, HALF_QUEUE_OFFSET, b"%d" % half.queue_offset)


def resumed_properties(given_up: Record) -> bytes:
    """The properties of a half message that was given up and is to be asked about anew."""
    return without_properties(given_up.properties, CHECK_TIMES, HALF_QUEUE_OFFSET)


def check_immunity_ms(properties: bytes, timeout_ms: int) -> int | None:
    """The time for which a producer is not asked, if the message says so itself; `timeout_ms` for -1 or no number."""
    value = get_property(properties, CHECK_IMMUNITY)
    if value is None:
        return None
    return int(value) * 1000 if value.isdigit() and len(value) <= 9 else timeout_ms


def operation_body(half_offsets: tuple[int, ...]) -> bytes:
    """An operation message's list. One offset stands alone: 4.9 reads nothing else."""
    if len(half_offsets) == 1:
        return b"%d" % half_offsets[0]
    return b"".join(b"%d," % offset for offset in half_offsets)


def operation_properties(unique_key: bytes) -> bytes:
    """An operation message's properties."""
    return b"%s\x01%s\x02%s\x01%s\x02" % (TAGS, OPERATION_TAG, UNIQ_KEY, unique_key)


def decision_of(record: memoryview) -> Decision | None:
    """Returns the decision that a committed record says; None for any other record. Malformed contents do no harm."""
    head = peek(record)
    properties = bytes(record[head.properties_begin : head.properties_end])
    topic = bytes(record[head.topic_begin : head.topic_end])
    if topic == OPERATIONS_TOPIC_BYTES:
        if get_property(properties, TAGS) != OPERATION_TAG:
            return None
        listed = bytes(record[head.body_begin : head.body_end]).split(b",")
        return Decision(tuple(int(item) for item in listed if _is_offset(item)), True)
    if topic != EXHAUSTED_TOPIC_BYTES and not head.prepared_transaction_offset:
        return None  # a message that only says that it was committed, as one that its consumer sent back does
    offset = get_property(properties, HALF_QUEUE_OFFSET)
    if offset is None or not _is_offset(offset):
        return None
    return Decision((int(offset),), False)


def _is_offset(text: bytes) -> bool:
    # So many digits fit into 64 bits, in which a snapshot packs them.
    return text.isdigit() and len(text) <= 18
