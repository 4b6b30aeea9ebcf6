"""A client's end of one connection with a node of a `Group`, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from broker.remoting.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import JSON, RemotingCommand, encode, request
from broker.remoting.frame import FrameDecoder
from broker.remoting.headers import (
    OffsetResponseHeader,
    PullMessageResponseHeader,
    SendMessageResponseHeader,
)
from broker.remoting.json_body import encode_body
from broker.requests.connection import Connection
from log.formats.properties import encode_properties
from log.formats.record import Record, decode_record
from tests.broker.fields import pull_fields, send_fields, topic_fields

WAIT_LIMIT_S = 60
"""The longest wait for an answer, in seconds of the group's time."""


class GroupTime(Protocol):
    """The time of a client's group."""

    @property
    def wall_ms(self) -> int:
        """The wall clock."""

    def run_until(self, condition: Callable[[], bool], what: str, limit_s: float, /) -> None:
        """Lets time pass until the condition holds; fails after so much of it."""


class Asking:
    """A client's end of one connection: sends requests, keeps what comes back. `send` brings bytes to the node."""

    def __init__(
        self, connection: Connection, client_id: str, time: GroupTime, send: Callable[[bytes], None]
    ) -> None:
        self.client_id = client_id
        self.connection = connection
        self.closed = False
        self.notices: list[RemotingCommand] = []
        """Requests that the broker has sent to this client."""
        self.answers: dict[int, RemotingCommand] = {}
        self.serialization = JSON
        self._time = time
        self._send_bytes = send
        self._decoder = FrameDecoder()
        self._next_opaque = 0

    # ------------------------------------------------------------------ any request

    def start_call(
        self,
        code: int,
        fields: Mapping[str, Any] | msgspec.Struct | None = None,
        body: bytes = b"",
        *,
        one_way: bool = False,
    ) -> int:
        """Sends a request; its answer will be in `answers` under the opaque that is returned."""
        assert not self.closed, "the connection is closed"
        self._next_opaque += 1
        if isinstance(fields, Mapping):
            fields = {name: _text(value) for name, value in fields.items() if value is not None}
        command = request(
            code,
            fields,
            body,
            opaque=self._next_opaque,
            one_way=one_way,
            serialization=self.serialization,
        )
        self._send_bytes(encode(command))
        return self._next_opaque

    def reuse_opaque(self, opaque: int) -> None:
        """The next request has this opaque, as one of a client that does not count well."""
        self._next_opaque = opaque - 1

    def call(
        self,
        code: int,
        fields: Mapping[str, Any] | msgspec.Struct | None = None,
        body: bytes = b"",
        *,
        limit_s: float = WAIT_LIMIT_S,
    ) -> RemotingCommand:
        """Sends a request and lets time pass until its answer is there."""
        return self.wait(self.start_call(code, fields, body), limit_s)

    def wait(self, opaque: int, limit_s: float = WAIT_LIMIT_S) -> RemotingCommand:
        """The answer to a request, when it has come."""
        self._time.run_until(lambda: opaque in self.answers, f"the answer to request {opaque}", limit_s)
        return self.answers.pop(opaque)

    def tell(self, code: int, fields: Mapping[str, Any] | None = None, body: bytes = b"") -> None:
        """Sends a one-way request."""
        self.start_call(code, fields, body, one_way=True)

    def ok(
        self, code: int, fields: Mapping[str, Any] | msgspec.Struct | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """`call`, whose answer must be code 0."""
        answer = self.call(code, fields, body)
        assert answer.code == ResponseCode.SUCCESS, f"code {answer.code}: {answer.remark}"
        return answer

    def receive(self, data: bytes) -> None:
        """Takes bytes from the node."""
        for command in self._decoder.feed(data):
            if command.is_response:
                assert command.opaque not in self.answers, f"two answers to {command.opaque}"
                self.answers[command.opaque] = command
            else:
                self.notices.append(command)

    # ------------------------------------------------------------------ common requests

    def create_topic(self, topic: str, queues: int = 1, perm: int = 6) -> None:
        """Creates a topic and waits until it is committed."""
        self.ok(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            topic_fields(topic=topic, readQueueNums=queues, writeQueueNums=queues, perm=perm),
        )

    def start_send(
        self,
        topic: str,
        body: bytes,
        queue_id: int = 0,
        properties: Mapping[str, str] | None = None,
        **header: Any,
    ) -> int:
        """Sends a message without waiting for its answer."""
        fields = send_fields(
            producerGroup="PG",
            topic=topic,
            queueId=queue_id,
            bornTimestamp=self._time.wall_ms,
            properties=encode_properties(properties or {}).decode(),
        )
        return self.start_call(RequestCode.SEND_MESSAGE, fields | header, body)

    def send(
        self,
        topic: str,
        body: bytes,
        queue_id: int = 0,
        properties: Mapping[str, str] | None = None,
        **header: Any,
    ) -> SendMessageResponseHeader:
        """Sends a message, which must be stored."""
        answer = self.wait(self.start_send(topic, body, queue_id, properties, **header))
        assert answer.code == ResponseCode.SUCCESS, f"code {answer.code}: {answer.remark}"
        return answer.decode_fields(SendMessageResponseHeader)

    def heartbeat(
        self,
        consumer_group: str | None = None,
        topics: Iterable[str] = ("T",),
        *,
        producer_group: str | None = None,
        expression: str = "*",
        version: int = 1,
        model: MessageModel = MessageModel.CLUSTERING,
        consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    ) -> RemotingCommand:
        """Registers as consumer of topics, as producer, or as both; returns the answer."""
        subscriptions = [
            SubscriptionData(topic=topic, sub_string=expression, sub_version=version) for topic in topics
        ]
        data = HeartbeatData(client_id=self.client_id)
        if consumer_group is not None:
            data.consumer_data_set.append(
                ConsumerData(
                    consume_from_where=consume_from_where,
                    group_name=consumer_group,
                    message_model=model,
                    subscription_data_set=subscriptions,
                )
            )
        if producer_group is not None:
            data.producer_data_set.append(ProducerData(producer_group))
        return self.call(RequestCode.HEART_BEAT, None, encode_body(data))

    def start_pull(
        self,
        topic: str,
        consumer_group: str,
        offset: int,
        queue_id: int = 0,
        *,
        suspend_ms: int = 0,
        commit_offset: int | None = None,
        expression: str = "*",
        count: int = 32,
    ) -> int:
        """Asks for messages without waiting for the answer; with `suspend_ms` the broker may hold the request."""
        flags = 4 | (2 if suspend_ms else 0) | (1 if commit_offset is not None else 0)
        return self.start_call(
            RequestCode.PULL_MESSAGE,
            pull_fields(
                consumerGroup=consumer_group,
                topic=topic,
                queueId=queue_id,
                queueOffset=offset,
                maxMsgNums=count,
                sysFlag=flags,
                commitOffset=commit_offset or 0,
                suspendTimeoutMillis=suspend_ms,
                subscription=expression,
            ),
        )

    def pull(self, topic: str, consumer_group: str, offset: int, queue_id: int = 0, **options: Any) -> Pulled:
        """Pulls once and waits for the answer."""
        return Pulled.of(self.wait(self.start_pull(topic, consumer_group, offset, queue_id, **options)))

    def offset_of(self, code: int, topic: str, queue_id: int = 0, **fields: Any) -> int:
        """The offset that one of the queue requests (14, 29, 30, 31) is answered with."""
        answer = self.ok(code, {"topic": topic, "queueId": queue_id, **fields})
        return answer.decode_fields(OffsetResponseHeader).offset


@dataclass
class Pulled:
    """The answer to a pull."""

    code: int
    status: str | None
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    records: list[Record]

    @classmethod
    def of(cls, answer: RemotingCommand) -> Pulled:
        """Reads a pull's answer, which must have a pull's header."""
        header = answer.decode_fields(PullMessageResponseHeader)
        return cls(
            answer.code,
            answer.remark,
            header.next_begin_offset,
            header.min_offset,
            header.max_offset,
            header.suggest_which_broker_id,
            split_records(answer.body),
        )

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of the messages."""
        return [record.body for record in self.records]


def split_records(data: bytes | memoryview) -> list[Record]:
    """The records that follow each other in an answer's body."""
    records = []
    begin = 0
    while begin < len(data):
        record = decode_record(data, begin)
        records.append(record)
        begin += int.from_bytes(data[begin : begin + 4], "big")
    return records


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
