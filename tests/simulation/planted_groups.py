"""Mistakes of clients that have several groups, each put into the real code by a patch; `planted_bugs` lists them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from broker.client.message import Message, MessageQueue
from broker.client.producing.one_send import OneSend
from broker.client.producing.sender import QueueChoice, Sender
from broker.client.transport.routes import TopicRoute
from tests.simulation.planting import planted


@planted(
    "groups: sent elsewhere though it may be stored",
    "DefaultMQProducerImpl: another broker each time",
    groups=2,
)
def sent_elsewhere(patch: pytest.MonkeyPatch) -> None:
    """The next attempt goes to another group, whatever has become of this one."""
    original = OneSend._turn_away

    def turn_away(self: OneSend) -> None:
        maybe_stored, self._maybe_stored = self._maybe_stored, False
        original(self)
        self._maybe_stored = maybe_stored

    patch.setattr(OneSend, "_turn_away", turn_away)


@planted(
    "groups: a key goes to whoever leads",
    "found here; topicRouteData2TopicPublishInfo: queues with a master",
    groups=2,
)
def key_goes_to_whoever_leads(patch: pytest.MonkeyPatch) -> None:
    """The queue of a key is one of those whose group has a leader now."""
    original = Sender.choose

    def choose(
        self: Sender,
        route: TopicRoute,
        message: Message,
        choice: QueueChoice,
        avoid_groups: Sequence[str] = (),
    ) -> MessageQueue:
        return original(self, replace(route, permitted=route.writable), message, choice, avoid_groups)

    patch.setattr(Sender, "choose", choose)
