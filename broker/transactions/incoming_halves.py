"""Half messages as they come in, on the way of all sends (RocketMQ's `SendMessageProcessor`)."""

from collections.abc import Mapping
from typing import Final

from broker.node.ports import Appends
from broker.remoting.codes import ResponseCode
from broker.remoting.headers import SendHeader
from broker.remoting.property_room import RETRY_BYTES, fitted
from broker.replica.proposals import NewMessage
from broker.requests.errors import OverloadedError, RequestError
from broker.settings.tables import Settings
from broker.state.topic_rules import DEAD_LETTER_PREFIX, HALF_TOPIC
from broker.state.transaction_records import half_properties, is_half
from broker.state.waiting_messages import without_address
from log.formats.properties import DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS
from log.formats.record import (
    MAX_PROPERTIES_BYTES,
    SYS_FLAG_INNER_BATCH,
    SYS_FLAG_PREPARED,
    SYS_FLAG_ROLLBACK,
    SYS_FLAG_TRANSACTION_MASK,
)

LATER_BYTES: Final = 47 + RETRY_BYTES
"""Room, beside where a half message is meant for, for what comes later: its queue offset with the decision, and retries
of what was committed. Being asked or given up takes less.
"""

_DELIVERED_LATER: Final = (DELAY, TIMER_DELIVER_MS, TIMER_DELAY_MS, TIMER_DELAY_SEC)


def check_sys_flag(sys_flag: int, properties: Mapping[bytes, bytes]) -> None:
    """Raises `RequestError` for flags that a message with these properties cannot be sent with.

    A message with transaction bits that is not a half message would never be seen. An inner batch's consumers would
    take its body apart for messages.
    """
    if sys_flag & SYS_FLAG_INNER_BATCH:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            "sysFlag 128 (inner batch) is for batch queues, which this broker does not have",
        )
    bits = sys_flag & SYS_FLAG_TRANSACTION_MASK
    if bits == SYS_FLAG_ROLLBACK:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL, "sysFlag 12 (rolled back) is of no message that could be sent"
        )
    if bits == SYS_FLAG_PREPARED and not is_half(properties):
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL, "sysFlag 4 (prepared) without TRAN_MSG=true: not a half message"
        )


def check_no_half(properties: Mapping[bytes, bytes]) -> None:
    """Raises `RequestError` for a half message in a batch."""
    if is_half(properties):
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL, "the messages of a batch cannot be transactions (TRAN_MSG)"
        )


def check_room(leadership: Appends, settings: Settings) -> None:
    """Raises `OverloadedError` while there are as many undecided transactions as the settings allow."""
    state = leadership.metadata.transactions
    # Beyond the horizon all are open, those that are not committed yet among them.
    count = leadership.queue_end(HALF_TOPIC, 0) - state.horizon + len(state.times_checked)
    most = settings.limits.max_open_transactions
    if count >= most:
        raise OverloadedError(
            f"{count} transactions are undecided, at most {most} may be (limits.max_open_transactions)"
        )


def sent_as_half(header: SendHeader, properties: Mapping[bytes, bytes]) -> bool:
    """Tells whether a message is sent as a half message.

    Consumers before 4.6.1 send a message back with the TRAN_MSG that it was once sent with: such a message has a delay,
    or is a dead letter by now.
    """
    return is_half(properties) and not (
        header.reconsume_times and (DELAY in properties or header.topic.startswith(DEAD_LETTER_PREFIX))
    )


def hide_half(
    message: NewMessage,
    header: SendHeader,
    properties: Mapping[bytes, bytes],
    unique_key: str,
    *,
    rejected: bool,
) -> None:
    """Makes a half message of one that is ready to be stored: it goes to the half messages' queue.

    `properties` are those that were sent, `rejected` is the broker's setting. Raises `RequestError`.
    """
    if rejected:
        raise RequestError(
            ResponseCode.NO_PERMISSION, "sending transaction messages to this broker is forbidden"
        )
    for name in _DELIVERED_LATER:
        if properties.get(name, b"0") != b"0":
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a transaction message cannot be delivered later ({name.decode()})",
            )
    # What is added later must find room: a decision could otherwise not be stored.
    stored = half_properties(
        message.properties, message.topic, message.queue_id, unique_key.encode(), header.producer_group
    )
    if len(stored) > MAX_PROPERTIES_BYTES - LATER_BYTES:
        # Where it is meant for is taken out again when it is committed, and leaves its room to what comes later.
        longest = MAX_PROPERTIES_BYTES - LATER_BYTES + len(stored) - len(without_address(stored))
        stored = fitted(stored, longest)
        if len(stored) > longest:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the properties have {len(stored)} bytes with those of a half message, "
                f"at most {longest} are allowed",
            )
    message.properties = stored
    message.topic, message.queue_id = HALF_TOPIC, 0
    # With the bits of a half message it would get no unit in its queue
    # (`TransactionalMessageBridge.parseHalfMessageInner`).
    message.sys_flag &= ~SYS_FLAG_TRANSACTION_MASK
