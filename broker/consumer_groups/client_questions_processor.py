"""Questions of administrators that a consumer answers: the broker passes them on (RocketMQ's `Broker2Client`).

The leader knows which clients there are, whatever node each is connected to, and asks through that node. A client's
response goes back as it is. One that does not answer is reported as such after ten seconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from broker.node.client_calls import ClientCalls
from broker.node.client_registry import ClientRegistry
from broker.node.ports import Requests, State
from broker.reading.queries_processor import committed_record, topics_of
from broker.remoting.admin_bodies import decode_queue
from broker.remoting.admin_headers import (
    ConsumeMessageDirectlyHeader,
    GetConsumerRunningInfoHeader,
    GetConsumerStatusHeader,
)
from broker.remoting.bodies import MessageQueue
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import RemotingError
from broker.remoting.json_body import decode_object_keyed, decode_request, encode_object_keyed
from broker.requests.connection import Connection
from broker.requests.errors import RequestError
from broker.requests.processing import HandledOn, Route
from broker.requests.responses import reply, reply_json
from log.errors import RecordError
from log.formats.message_id import parse_offset_message_id

RESPONSE_BYTES_MAX: Final = 8 * 1024 * 1024
"""A client's response that is larger is not passed on: with a head of its own it might be no frame any more."""

CLIENTS_ASKED_MAX: Final = 1000
"""Consumers that one request may have asked; of more, the first ones."""


class _ConsumerStatus(msgspec.Struct, rename="camel"):
    """A client's response to 221; the keys are queues as JSON texts."""

    message_queue_table: dict[str, int] = {}


@dataclass(eq=False)
class ClientQuestionsProcessor:
    """GET_CONSUMER_RUNNING_INFO 307, CONSUME_MESSAGE_DIRECTLY 309, INVOKE_BROKER_TO_GET_CONSUMER_STATUS 223."""

    _state: State
    _requests: Requests
    _registry: ClientRegistry[Connection]
    _calls: ClientCalls
    _broker_name: str

    def routes(self) -> Iterable[Route]:
        """The leader's, whose registry of clients is complete."""
        return (
            Route(RequestCode.GET_CONSUMER_RUNNING_INFO, self.running_info, HandledOn.LEADER),
            Route(RequestCode.CONSUME_MESSAGE_DIRECTLY, self.consume_directly, HandledOn.LEADER_READ),
            Route(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, self.consumer_status, HandledOn.LEADER),
        )

    def running_info(self, connection: Connection, command: RemotingCommand) -> None:
        """Passes on what a consumer says of itself: queues, counts, threads."""
        header = command.decode_fields(GetConsumerRunningInfoHeader)
        self._pass_on(connection, command, header.consumer_group, header.client_id, header, b"")

    def consume_directly(self, connection: Connection, command: RemotingCommand) -> None:
        """Has a consumer consume one stored message, and tells how it went.

        Raises `RequestError` for a message that is not there, or not of a topic that the consumer group consumes.
        """
        header = command.decode_fields(ConsumeMessageDirectlyHeader)
        try:
            _, offset = parse_offset_message_id(header.message_id or "")
        except RecordError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        record = committed_record(self._state, offset)
        if record is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        # The sender names a consumer group that it may consume as, and any message: the group's clients must be allowed
        # to read it, or this would be a way to read all.
        if self._requests.access is not None and not self._registry.may_read(
            header.consumer_group, topics_of(record)[:1]
        ):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the message at {offset} is of no topic that consumer group {header.consumer_group} consumes",
            )
        header.broker_name = self._broker_name
        self._pass_on(
            connection, command, header.consumer_group, header.client_id or "", header, bytes(record)
        )

    def _pass_on(
        self,
        connection: Connection,
        command: RemotingCommand,
        group: str,
        client_id: str,
        header: msgspec.Struct,
        body: bytes,
    ) -> None:
        client = self._registry.find_consumer(group, client_id)
        if client is None:
            raise RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE, f"The Consumer <{group}> <{client_id}> not online"
            )

        def answered(answer: RemotingCommand | None) -> None:
            if answer is None:
                remark = f"consumer <{group}> <{client_id}> Timeout: it has not answered"
                reply(connection, command, ResponseCode.CONSUME_MSG_TIMEOUT, remark)
            elif len(answer.body) + len(answer.remark or "") > RESPONSE_BYTES_MAX:
                remark = (
                    f"consumer <{group}> <{client_id}> answered with {len(answer.body)} bytes: up to "
                    f"{RESPONSE_BYTES_MAX} are passed on"
                )
                reply(connection, command, ResponseCode.SYSTEM_ERROR, remark)
            else:
                reply(connection, command, answer.code, answer.remark, body=answer.body)

        self._calls.call(client.connection, command.code, header, body, command, answered)

    def consumer_status(self, connection: Connection, command: RemotingCommand) -> None:
        """Tells the offsets of each member of a consumer group in a topic, by its own account; those that do not answer
        are left out. Raises `RequestError` where no consumer is online.
        """
        header = command.decode_fields(GetConsumerStatusHeader)
        group = self._registry.consumer_group(header.group)
        clients = [] if group is None else group.members()
        if header.client_address:
            clients = [client for client in clients if client.client_id == header.client_address]
        if not clients:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{header.group}]"
            )
        # All are asked at once; the last of them to answer, or not to, answers the administrator.
        clients = clients[:CLIENTS_ASKED_MAX]
        table: dict[str, object] = {}
        waiting = {client.client_id for client in clients}

        def answered(client_id: str, answer: RemotingCommand | None) -> None:
            waiting.discard(client_id)
            queues = _queues_in(answer)
            if queues is not None:
                table[client_id] = encode_object_keyed(queues)
            if not waiting:
                reply_json(connection, command, {"consumerTable": table})

        asked = GetConsumerStatusHeader(header.topic, header.group)
        for client in clients:
            self._calls.call(
                client.connection,
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
                asked,
                b"",
                command,
                partial(answered, client.client_id),
            )


def _queues_in(answer: RemotingCommand | None) -> dict[MessageQueue, int] | None:
    """The offsets that a client has named; None if it has not, or nothing that can be read."""
    if answer is None or answer.code != ResponseCode.SUCCESS or not answer.body:
        return None
    try:
        return decode_object_keyed(
            decode_request(answer.body, _ConsumerStatus).message_queue_table, decode_queue
        )
    except RemotingError:
        return None
