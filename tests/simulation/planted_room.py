"""Mistakes about room and descriptors that run out, each put into the code by a patch.

`planted_bugs` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from broker.offsets.commits import Uncounted, _PartlyOrdered
from broker.requests.errors import TooManyError
from broker.state.commands import Command, SingleCommand
from broker.topics.creation import Creations
from log.errors import DiskError
from log.queues.consume_queue import ConsumeQueue
from tests.simulation.planting import planted


@planted("room: topics under way take none", "check, then act: each of two requests is counted alone")
def topics_under_way_take_none(patch: pytest.MonkeyPatch) -> None:
    def check(self: Creations, topics: dict[str, None], _: int) -> None:
        limits, metadata = self._settings.current.limits, self._leadership.metadata
        if topics and len(metadata.topics) + len(topics) > limits.max_topics:
            raise TooManyError(
                f"there are {len(metadata.topics)} topics, at most {limits.max_topics} are allowed (limits.max_topics)"
            )

    patch.setattr(Creations, "_check", check)


class _NeverLost:
    """A leadership of which whoever counts what is under way hears of commands that are applied alone."""

    def __init__(self, leadership: Any, lost: Callable[[], None]) -> None:
        self._leadership = leadership
        self._lost = lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._leadership, name)

    def propose_command(self, command: Command, done: Callable[[Any], None], _: Callable[[], None]) -> None:
        self._leadership.propose_command(command, done, self._lost)


@planted("room: what is lost with its leader keeps it", "a count that a failover forgets to take back")
def what_is_lost_keeps_its_room(patch: pytest.MonkeyPatch) -> None:
    original = Creations.propose

    def propose(
        self: Creations,
        commands: Sequence[SingleCommand],
        done: Callable[[Any], None],
        lost: Callable[[], None],
    ) -> None:
        leadership = self._leadership
        patched: Any = self
        patched._leadership = _NeverLost(leadership, lost)
        try:
            original(self, commands, done, lost)
        finally:
            self._leadership = leadership

    patch.setattr(Creations, "propose", propose)


@planted("reset: done with its first part", "the queues of an order in several commands", actor="resetter")
def done_with_its_first_part(patch: pytest.MonkeyPatch) -> None:
    def part_applied(self: _PartlyOrdered, _: Uncounted) -> None:
        self.parts_under_way -= 1
        done, self._done = self._done, lambda: None
        done()

    patch.setattr(_PartlyOrdered, "part_applied", part_applied)


@planted(
    "descriptors: what cannot be opened is passed over", "ReputMessageService: logged, and gone on behind it"
)
def what_cannot_be_opened_is_passed_over(patch: pytest.MonkeyPatch) -> None:
    original = ConsumeQueue.append

    def append(self: ConsumeQueue, offset: int, physical_offset: int, size: int, tags_code: int) -> bool:
        try:
            return original(self, offset, physical_offset, size, tags_code)
        except DiskError:
            return False

    patch.setattr(ConsumeQueue, "append", append)
