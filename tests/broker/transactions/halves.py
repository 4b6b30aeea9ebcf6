"""Half messages and decisions about them, as a producer sends them, and what tests ask about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.headers import (
    CheckTransactionStateHeader,
    SendMessageResponseHeader,
)
from broker.state.open_transactions import Transactions
from broker.state.topic_rules import HALF_OPERATIONS_TOPIC, HALF_TOPIC
from log.formats.message_id import parse_offset_message_id
from log.formats.record import SYS_FLAG_COMMIT, SYS_FLAG_PREPARED, SYS_FLAG_ROLLBACK, Record
from tests.broker.harness import Client, Group, split_records

COMMIT = SYS_FLAG_COMMIT
ROLLBACK = SYS_FLAG_ROLLBACK
TIMEOUT_S = 2
INTERVAL_S = 10
SETTINGS = {"transaction_timeout_ms": TIMEOUT_S * 1000, "transaction_check_interval_ms": INTERVAL_S * 1000}
HALF = {"TRAN_MSG": "true", "PGROUP": "P"}


def prepared(**settings: Any) -> Group:
    group = Group.elected(3, broker={**SETTINGS, **settings})
    client = group.connect()
    client.create_topic("T", 2)
    client.heartbeat("g")
    client.close()
    return group


def send_half(
    client: Client, body: bytes, queue_id: int = 0, properties: Mapping[str, str] | None = None, **header: Any
) -> SendMessageResponseHeader:
    return client.send(
        "T", body, queue_id, {**HALF, **(properties or {})}, sysFlag=SYS_FLAG_PREPARED, **header
    )


def end_fields(half: SendMessageResponseHeader, outcome: int, **changes: Any) -> dict[str, Any]:
    return {
        "producerGroup": "P",
        "tranStateTableOffset": half.queue_offset,
        "commitLogOffset": parse_offset_message_id(half.message_id)[1],
        "commitOrRollback": outcome,
        "msgId": half.transaction_id,
        "transactionId": half.transaction_id,
        "fromTransactionCheck": False,
        **changes,
    }


def start_end(client: Client, half: SendMessageResponseHeader, outcome: int, **changes: Any) -> int:
    return client.start_call(RequestCode.END_TRANSACTION, end_fields(half, outcome, **changes))


def end(client: Client, half: SendMessageResponseHeader, outcome: int, **changes: Any) -> int:
    return client.wait(start_end(client, half, outcome, **changes)).code


def resume(client: Client, message_id: str) -> int:
    return client.call(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": message_id}).code


def records(client: Client, topic: str = "T", queue_id: int = 0) -> list[Record]:
    found: list[Record] = []
    while True:
        pulled = client.pull(topic, "g", len(found), queue_id)
        if pulled.code != ResponseCode.SUCCESS:
            return found
        found += pulled.records


def bodies(client: Client, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [record.body for record in records(client, topic, queue_id)]


def listed(client: Client) -> list[int]:
    """The half offsets in all operation messages."""
    found: list[int] = []
    for record in records(client, HALF_OPERATIONS_TOPIC):
        assert record.properties_by_name()["TAGS"] == "d"
        found += [int(text) for text in record.body.decode().split(",") if text]
    return found


def state(group: Group) -> Transactions:
    return group.node(group.leader).replica.metadata.transactions


def open_ones(group: Group) -> list[int]:
    queue = group.node(group.leader).replica.store.queues.get(HALF_TOPIC, 0)
    assert queue is not None
    return list(state(group).open_before(queue.max_offset))


def questions(client: Client) -> list[tuple[CheckTransactionStateHeader, Record]]:
    found = []
    for notice in client.notices:
        if notice.code == RequestCode.CHECK_TRANSACTION_STATE:
            (record,) = split_records(notice.body)
            found.append((notice.decode_fields(CheckTransactionStateHeader), record))
    return found
