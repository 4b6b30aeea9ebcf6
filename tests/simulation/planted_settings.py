"""Mistakes about topics and groups whose settings change while they are used, each put into the real code by a patch;
`planted_bugs` lists them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest

import broker.node.request_states as request_states
from broker.reading.pull_checks import PullChecks
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import PullMessageHeader
from broker.replica.committed_entries import CommittedEntries
from broker.requests.connection import Connection
from broker.requests.errors import RequestError
from broker.requests.processing import HandledOn, Route
from broker.requests.responses import reply
from broker.state.commands import PutGroup, PutTopic
from broker.state.metadata import Metadata
from broker.topics.topics_processor import TopicsProcessor
from tests.simulation.planting import planted


@planted("settings: acknowledged before it is committed", "an answer from the leader's log", actor="warden")
def acknowledged_before_it_is_committed(patch: pytest.MonkeyPatch) -> None:
    """An answer from the leader's log."""
    original = TopicsProcessor._create

    def create(
        self: TopicsProcessor,
        connection: Connection,
        request: RemotingCommand,
        commands: Sequence[PutTopic | PutGroup],
    ) -> None:
        reply(connection, request, ResponseCode.SUCCESS)
        request.opaque = -1
        original(self, connection, request, commands)

    patch.setattr(TopicsProcessor, "_create", create)


@planted("settings: applied by the leader only", "metadata outside the log", actor="warden")
def applied_by_the_leader_only(patch: pytest.MonkeyPatch) -> None:
    """Settings are in the log, and no part of what a follower derives from it."""
    original = CommittedEntries.apply_and_answer

    def apply_and_answer(self: CommittedEntries, upto: int) -> None:
        metadata = self._applied.metadata
        groups = dict(metadata.groups)
        original(self, upto)
        if not self._leadership.serving:
            for name, config in groups.items():
                metadata.groups[name] = config

    patch.setattr(CommittedEntries, "apply_and_answer", apply_and_answer)


@planted("settings: asked without a round", "what one node knows", actor="warden")
def asked_without_a_round(patch: pytest.MonkeyPatch) -> None:
    """A node that takes itself for the leader answers without asking the others."""
    original = TopicsProcessor.routes

    def routes(self: TopicsProcessor) -> Iterable[Route]:
        for route in original(self):
            is_question = route.handled_on is HandledOn.LEADER_READ
            yield Route(route.code, route.handler, HandledOn.LEADER) if is_question else route

    patch.setattr(TopicsProcessor, "routes", routes)


def _unchecked(patch: pytest.MonkeyPatch, **settings: Any) -> None:
    """A pull is checked as if its topic or group had these settings."""
    original = PullChecks.check

    def check(self: PullChecks, header: PullMessageHeader) -> None:
        metadata: Metadata = self._state.metadata
        for table, name in ((metadata.topics, header.topic), (metadata.groups, header.consumer_group)):
            config: Any = table.get(name)
            changes = {key: value for key, value in settings.items() if hasattr(config, key)}
            if changes:
                table[name] = msgspec.structs.replace(config, **changes)
                try:
                    original(self, header)
                finally:
                    table[name] = config
                return
        original(self, header)

    patch.setattr(PullChecks, "check", check)


@planted("settings: group's switch not looked at", "PullMessageProcessor: consumeEnable", actor="warden")
def switch_of_the_group_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """A group that may not consume does."""
    _unchecked(patch, consume_enable=True)


@planted("settings: topic's permission not looked at", "PullMessageProcessor: readable", actor="warden")
def permission_of_the_topic_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """A topic that is written only is read."""
    _unchecked(patch, perm=6)


@planted("settings: refused for good", "a switch that only switches off", actor="warden")
def refused_for_good(patch: pytest.MonkeyPatch) -> None:
    """A node goes on refusing a client that it has refused once."""
    original = PullChecks.check
    refused: dict[tuple[int, str], RequestError] = {}

    def check(self: PullChecks, header: PullMessageHeader) -> None:
        key = (id(self), header.consumer_group)
        if key in refused:
            raise refused[key]
        try:
            original(self, header)
        except RequestError as error:
            if error.code == ResponseCode.NO_PERMISSION:
                refused[key] = error
            raise

    patch.setattr(PullChecks, "check", check)


@planted("settings: repeated by the broker", "a forwarded request of unknown outcome", actor="warden")
def repeated_by_the_broker(patch: pytest.MonkeyPatch) -> None:
    """A node that loses its leader has the next one do what the last one may have done."""
    once = request_states.ONCE - {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    }
    patch.setattr(request_states, "ONCE", once)
