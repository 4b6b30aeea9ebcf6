"""Mistakes about portions that are written again, each put into the real code by a patch; `planted_bugs` lists them."""

from __future__ import annotations

import pytest

from broker.client.producing.one_send import OneSend
from broker.state.writers import Begun, Portion, Writers
from tests.simulation.planting import planted


@planted("portion: all hear that it is new", "a flag of the process, not of the group", actor="writer")
def all_hear_that_it_is_new(patch: pytest.MonkeyPatch) -> None:
    """Whoever begins takes his messages for first attempts."""
    original = Writers.begin

    def begin(self: Writers, topic: str, writer: str, number: int, position: int, time_ms: int) -> Begun:
        found = original(self, topic, writer, number, position, time_ms)
        return found._replace(standing="new") if found.standing == "begun" else found

    patch.setattr(Writers, "begin", begin)


@planted("portion: its floor moves", "looked for from when it was begun last", actor="writer")
def its_floor_moves(patch: pytest.MonkeyPatch) -> None:
    """A portion that is begun again is looked for from there on."""
    original = Writers.begin

    def begin(self: Writers, topic: str, writer: str, number: int, position: int, time_ms: int) -> Begun:
        found = original(self, topic, writer, number, position, time_ms)
        if found.standing != "begun":
            return found
        self.portions[topic, writer] = Portion(number, position, is_done=False, touched_ms=time_ms)
        return Begun("begun", position)

    patch.setattr(Writers, "begin", begin)


@planted("portion: done is forgotten", "an end that is in no log", actor="writer")
def end_is_not_applied(patch: pytest.MonkeyPatch) -> None:
    """Nobody remembers an end: what is done is looked for once more, also when the log is gone."""
    patch.setattr(Writers, "end", lambda *arguments: None)


@planted("portion: sent behind a newer floor", "the floor of the last acknowledgement", actor="writer")
def newer_floor(patch: pytest.MonkeyPatch) -> None:
    """A first attempt takes the floor that its producer has heard of last."""
    original = OneSend.behind

    def behind(self: OneSend, floor: int, *, again: bool) -> OneSend:
        send = original(self, floor, again=again)
        send._has_own_floor = False
        return send

    patch.setattr(OneSend, "behind", behind)


@planted("portion: not in snapshots", "a table that the snapshot leaves out", actor="writer")
def not_in_snapshots(patch: pytest.MonkeyPatch) -> None:
    """Who starts from a snapshot knows no writer."""
    patch.setattr(Writers, "rows", lambda self, at_once: None)
