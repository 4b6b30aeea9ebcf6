"""Half messages as they come in, on the way of all sends (behaviour.md 4 and 7)."""

from typing import Final

from broker.delayed.deliveries import without_address
from broker.node.node import Node
from broker.remoting.codes import ResponseCode
from broker.remoting.headers import SendMessageHeader, SendMessageHeaderV2
from broker.remoting.property_room import RETRY_BYTES, fitted
from broker.requests.errors import OverloadedError, RequestError
from broker.state.topic_rules import DEAD_LETTER_PREFIX, HALF_TOPIC
from broker.state.transaction_records import half_properties, is_half
from log.properties import get_property
from log.record import (
    MAX_PROPERTIES_BYTES,
    SYS_FLAG_INNER_BATCH,
    SYS_FLAG_PREPARED,
    SYS_FLAG_ROLLBACK,
    SYS_FLAG_TRANSACTION_MASK,
)

Header = SendMessageHeader | SendMessageHeaderV2

LATER_BYTES: Final = 47 + RETRY_BYTES
"""Room, beside where a half message is meant for, for what comes later: its queue offset with the decision, and retries
of what was committed. Being asked or given up takes less.
"""

_DELIVERED_LATER = (b"DELAY", b"TIMER_DELIVER_MS", b"TIMER_DELAY_MS", b"TIMER_DELAY_SEC")


def check_sys_flag(header: Header) -> None:
    """Raises `RequestError` for flags that are none of a message which could be sent.

    Transaction bits without a half message: nobody would ever see it. An inner batch: its consumers would take its body
    apart for messages.
    """
    if header.sys_flag & SYS_FLAG_INNER_BATCH:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            "sysFlag 128 (inner batch) is for batch queues, which there are none of",
        )
    bits = header.sys_flag & SYS_FLAG_TRANSACTION_MASK
    if bits == SYS_FLAG_ROLLBACK:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL, "sysFlag 12 (rolled back) is of no message that could be sent"
        )
    if bits == SYS_FLAG_PREPARED and not (header.properties and is_half(header.properties.encode())):
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL, "sysFlag 4 (prepared) without TRAN_MSG=true: no half message"
        )


def check_no_half(properties: bytes) -> None:
    """Raises `RequestError` for a half message in a batch."""
    if is_half(properties):
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL, "the messages of a batch cannot be transactions (TRAN_MSG)"
        )


def check_room(node: Node) -> None:
    """Raises `OverloadedError` while there are as many undecided transactions as the configuration allows."""
    state = node.replica.metadata.transactions
    count = node.replica.queue_end(HALF_TOPIC, 0) - state.horizon + len(state.times_checked)
    most = node.config.limits.max_open_transactions
    if count >= most:
        raise OverloadedError(
            f"{count} transactions are undecided, at most {most} may be (limits.max_open_transactions)"
        )


def sent_as_half(header: Header, properties: bytes) -> bool:
    """Whether a send is one of a half message.

    Consumers before 4.6.1 give a message back with the TRAN_MSG that it was once sent with, and a delay, or it is a
    dead letter by now.
    """
    return is_half(properties) and not (
        header.reconsume_times
        and (get_property(properties, b"DELAY") or header.topic.startswith(DEAD_LETTER_PREFIX))
    )


def stored_half(
    header: Header, properties: bytes, queue_id: int, unique_key: str, *, rejected: bool
) -> tuple[bytes, int]:
    """Properties and flags of a half message as it is stored; raises `RequestError`.

    `properties` are those of a message that is ready to be stored, `rejected` is the broker's setting.
    """
    if rejected:
        raise RequestError(
            ResponseCode.NO_PERMISSION, "sending transaction messages to this broker is forbidden"
        )
    for name in _DELIVERED_LATER:
        value = get_property(properties, name)
        if value is not None and value != b"0":
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a transaction message cannot be delivered later ({name.decode()})",
            )
    stored = half_properties(properties, header.topic, queue_id, unique_key.encode(), header.producer_group)
    if len(stored) > MAX_PROPERTIES_BYTES - LATER_BYTES:
        longest = MAX_PROPERTIES_BYTES - LATER_BYTES + len(stored) - len(without_address(stored))
        stored = fitted(stored, longest)
        if len(stored) > longest:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the properties have {len(stored)} bytes with those of a half message, "
                f"at most {longest} are allowed",
            )
    return stored, header.sys_flag & ~SYS_FLAG_TRANSACTION_MASK
