"""Mistakes about what must not outlive a leadership, about topics and limits, each put into the real code by a patch.

`planted_bugs` lists them.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from broker.node.forwarding import Forwarding
from broker.node.relayed_clients import RelayedClients
from broker.node.request_states import WaitingRequest
from broker.offsets.commits import OffsetCommits
from broker.peers.protocol import NotDone, Relay
from broker.replica.uncommitted import Uncommitted
from broker.requests.connection import RelayedConnection
from broker.sending.repeated_sends import RepeatedSends
from broker.sending.send_processor import SendProcessor
from broker.transactions.checks import TransactionChecks
from broker.transactions.decisions import Decisions
from tests.simulation.planting import planted


@planted("staged offsets outlive leadership", "RocketMQ: offsets of a former master", part="broker")
def staged_offsets_outlive_leadership(patch: pytest.MonkeyPatch) -> None:
    original = OffsetCommits._role_changed

    def role_changed(self: OffsetCommits) -> None:
        staged, new = dict(self._staged), self._staged_new
        original(self)
        self._staged, self._staged_new = staged, new

    patch.setattr(OffsetCommits, "_role_changed", role_changed)


@planted("decisions under way outlive leadership", "broker/transactions", actor="transactor", part="broker")
def decisions_under_way_outlive_leadership(patch: pytest.MonkeyPatch) -> None:
    original = Decisions._role_changed

    def role_changed(self: Decisions) -> None:
        deciding = dict(self._deciding)
        original(self)
        self._deciding.update(deciding)

    patch.setattr(Decisions, "_role_changed", role_changed)


@planted("questions under way outlive leadership", "broker/transactions", actor="transactor", part="broker")
def questions_under_way_outlive_leadership(patch: pytest.MonkeyPatch) -> None:
    original = TransactionChecks._role_changed

    def role_changed(self: TransactionChecks) -> None:
        under_way = self._under_way
        original(self)
        self._under_way = under_way

    patch.setattr(TransactionChecks, "_role_changed", role_changed)


@planted("an earlier term's suspicion", "broker/sending/repeated_sends.py, 1", part="broker")
def suspicion_of_an_earlier_term(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RepeatedSends, "_role_changed", lambda self: None)


@planted("first attempts are never suspected", "broker/sending/repeated_sends.py, 1", part="broker")
def first_attempts_are_never_suspected(patch: pytest.MonkeyPatch) -> None:
    original = RepeatedSends.__init__

    def init(self: RepeatedSends, *arguments: object) -> None:
        original(self, *arguments)  # type: ignore[arg-type]
        self.suspect = -1

    patch.setattr(RepeatedSends, "__init__", init)
    patch.setattr(RepeatedSends, "_role_changed", lambda self: setattr(self, "suspect", -1))


@planted("a former leader's relayed answer taken", "broker/node/forwarding.py", part="broker")
def relayed_answer_of_a_former_leader_taken(patch: pytest.MonkeyPatch) -> None:
    original = Forwarding.relayed

    def relayed(self: Forwarding, source: str, frame: Relay) -> None:
        client = self._by_number.get(frame.connection)
        for request in [] if client is None else client.waiting.values():
            request.leader = source
        original(self, source, frame)

    patch.setattr(Forwarding, "relayed", relayed)


@planted("given back by a former leader", "broker/node/forwarding.py", part="broker")
def given_back_by_a_former_leader(patch: pytest.MonkeyPatch) -> None:
    original = Forwarding.hear_not_done

    def hear_not_done(self: Forwarding, source: str, frame: NotDone) -> None:
        client = self._by_number.get(frame.connection)
        request: WaitingRequest | None = None if client is None else client.waiting.get(frame.opaque)
        if request is not None:
            source, frame = request.leader, replace(frame, term=request.term)
        original(self, source, frame)

    patch.setattr(Forwarding, "hear_not_done", hear_not_done)


@planted("answers go to who has the number now", "broker/node/relayed_clients.py", part="broker")
def answers_go_to_who_has_the_number_now(patch: pytest.MonkeyPatch) -> None:
    original = RelayedClients._to_node_of

    def to_node_of(self: RelayedClients, connection: RelayedConnection, frame: Relay | NotDone) -> None:
        connection.epoch = self._link_epochs.get(connection.node, 0)
        original(self, connection, frame)

    patch.setattr(RelayedClients, "_to_node_of", to_node_of)


@planted("a deleted topic's queues go on", "RocketMQ #2000s: offsets of a topic made again", part="broker")
def queues_of_a_deleted_topic_go_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Uncommitted, "forget_queues", lambda *_: None)


@planted("bodies of any size are taken", "maxMessageSize is not looked at", part="broker")
def bodies_of_any_size_are_taken(patch: pytest.MonkeyPatch) -> None:
    original = SendProcessor._append

    def append(self: SendProcessor, *arguments: Any) -> None:
        live = self._settings
        storage = msgspec.structs.replace(live.current.storage, max_message_bytes=1 << 23)
        self._settings = SimpleNamespace(current=msgspec.structs.replace(live.current, storage=storage))  # type: ignore[assignment]
        try:
            original(self, *arguments)
        finally:
            self._settings = live

    patch.setattr(SendProcessor, "_append", append)
