"""Mistakes about requests and their replies, each put into the real code by a patch; `planted_bugs` lists them."""

from __future__ import annotations

from typing import Any

import pytest

import broker.node.request_states as request_states
from broker.client.message import MessageView
from broker.client.producing.requests import Requests
from broker.node.client_calls import ClientCalls, Done
from broker.node.client_registry import ClientRegistry
from broker.node.consumer_group import RegisteredClient
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, response
from broker.requests.connection import Connection
from broker.sending.replies_processor import RepliesProcessor
from log.formats.properties import with_property
from tests.simulation.planting import planted


@planted("request: answer pushed to another client", "whoever asked", actor="correspondent")
def pushed_to_another_client(patch: pytest.MonkeyPatch) -> None:
    """The broker pushes to the newest of all producers, whoever asked."""

    def find(self: ClientRegistry[Connection], client_id: str) -> RegisteredClient[Connection] | None:
        clients = [client for by in self._producer_clients.values() for client in by.values()]
        return clients[-1] if clients else None

    patch.setattr(ClientRegistry, "find_producer", find)


@planted("request: answer pushed under another name", "an answer without its question", actor="correspondent")
def pushed_under_another_name(patch: pytest.MonkeyPatch) -> None:
    """The properties of a reply are not what its sender gave it."""
    original = RepliesProcessor._pushed_header

    def header(self: RepliesProcessor, connection: Connection, header: Any, properties: bytes) -> Any:
        return original(self, connection, header, with_property(properties, b"CORRELATION_ID", b"0"))

    patch.setattr(RepliesProcessor, "_pushed_header", header)


@planted(
    "request: confirmed before it is pushed",
    "ReplyMessageProcessor: the replier hears whether it arrived",
    actor="correspondent",
)
def confirmed_before_it_is_pushed(patch: pytest.MonkeyPatch) -> None:
    """The replier is told that all is well when the reply is on its way."""
    original = ClientCalls.call

    def call(
        self: ClientCalls,
        connection: Connection,
        code: int,
        header: Any,
        body: bytes,
        asker: RemotingCommand,
        done: Done,
    ) -> None:
        if code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            original(self, connection, code, header, body, asker, lambda _: None)
            done(response(asker, ResponseCode.SUCCESS))
        else:
            original(self, connection, code, header, body, asker, done)

    patch.setattr(ClientCalls, "call", call)


@planted(
    "request: answer repeated by the broker", "a forwarded request of unknown outcome", actor="correspondent"
)
def repeated_by_the_broker(patch: pytest.MonkeyPatch) -> None:
    """A node that loses its leader has the next one push a reply that the last one may have pushed."""
    replies = {RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}
    patch.setattr(request_states, "ONCE", request_states.ONCE - replies)


@planted("request: answer given to whoever waits", "one waiter a client", actor="correspondent")
def given_to_whoever_waits(patch: pytest.MonkeyPatch) -> None:
    """A client with several calls under way gives a reply to the first of them."""
    original = Requests._pushed

    def pushed(self: Requests, connection: Any, command: RemotingCommand) -> None:
        waiting = [waiting for waiting in self._waiting.values() if waiting.reply is None]
        before = [waiting.reply for waiting in self._waiting.values()]
        original(self, connection, command)
        after = [waiting.reply for waiting in self._waiting.values()]
        new = [reply for was, reply in zip(before, after, strict=True) if reply is not was]
        for reply in new:
            for one in self._waiting.values():
                if one.reply is reply:
                    one.reply = None
            waiting[0].reply = reply
            waiting[0].arrived.set()

    patch.setattr(Requests, "_pushed", pushed)


@planted("request: waited for without a limit", "a call that never ends", actor="correspondent")
def waited_for_without_a_limit(patch: pytest.MonkeyPatch) -> None:
    """A call whose reply is lost never ends."""
    original = Requests.wait

    async def wait(self: Requests, correlation_id: str, timeout_s: float) -> MessageView:
        return await original(self, correlation_id, 3600.0)

    patch.setattr(Requests, "wait", wait)
