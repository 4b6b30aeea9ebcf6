"""Writers whose portions may be written again, after hours or by two processes at once, and are stored once.

A writer is named by its client, and writes portions of messages into a topic, one number after the other: of a query of
Spark a partition, whose portions are those of its micro-batches. This is the replicated part, a pure function of the
commands that are applied; what it is good for says broker/sending/portions_processor.py.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from broker.state.writing import Rows, slices

WriterFields = list[tuple[str, str, int, int, bool, int]]
"""Topic, writer and what is known of its last portion, as a snapshot holds them."""

Standing = Literal["new", "begun", "done"]


class Begun(NamedTuple):
    """The answer to whoever begins a portion.

    ``new`` is told once of each portion, to the first who asks: nothing of it is stored, nor will be but by him.
    ``begun``: somebody was told so before; what he has stored lies behind ``position``. ``done``: all is stored.
    """

    standing: Standing
    position: int


@dataclass(frozen=True, slots=True)
class Portion:
    """The last portion that a writer has begun."""

    number: int
    position: int
    """The log's end when it was begun first: every message of it lies behind. It never moves."""
    is_done: bool
    touched_ms: int
    """The group's time of its last command."""


@dataclass(slots=True)
class Writers:
    """All writers, by (topic, writer's name); the one that was heard of last stands last."""

    portions: dict[tuple[str, str], Portion] = field(default_factory=dict)

    def begin(self, topic: str, writer: str, number: int, position: int, group_ms: int) -> Begun:
        """Takes the beginning of a portion, of one that was begun or done before, too."""
        key = (topic, writer)
        # Taken out and put in again, so that it stands last.
        known = self.portions.pop(key, None)
        if known is None or known.number < number:
            self.portions[key] = Portion(number, position, is_done=False, touched_ms=group_ms)
            return Begun("new", position)
        # The position stays: what was stored of it may lie as far back as where it was begun first.
        self.portions[key] = Portion(known.number, known.position, known.is_done, group_ms)
        # Portions are written one number after the other: of all before the last one all is stored.
        if known.is_done or known.number > number:
            return Begun("done", known.position)
        return Begun("begun", known.position)

    def end(self, topic: str, writer: str, number: int, group_ms: int) -> None:
        """Takes the end of a portion; that of another than the last one says nothing new."""
        key = (topic, writer)
        known = self.portions.get(key)
        if known is not None and known.number == number:
            # So that it stands last, as the one that was heard of last.
            del self.portions[key]
            self.portions[key] = Portion(number, known.position, is_done=True, touched_ms=group_ms)

    def unheard_since(self, time_ms: int) -> Iterator[tuple[str, str]]:
        """The writers that were last heard of before a time."""
        for key, portion in self.portions.items():
            # All behind it were heard of later.
            if portion.touched_ms >= time_ms:
                return
            yield key

    def forget(self, writers: Iterable[tuple[str, str]], time_ms: int) -> None:
        """Forgets those of the writers that were not heard of since."""
        for key in writers:
            portion = self.portions.get(key)
            if portion is not None and portion.touched_ms < time_ms:
                del self.portions[key]

    def forget_topic(self, topic: str) -> None:
        """Forgets all writers into a topic: it is gone, with what they wrote."""
        for key in [key for key in self.portions if key[0] == topic]:
            del self.portions[key]

    def view(self) -> "Writers":
        """The writers as they are now, whatever changes from here on."""
        return Writers(self.portions.copy())

    def rows(self, at_once: int) -> Rows | None:
        """The form in a snapshot (`WriterFields`); None without writers."""
        rows = (
            (topic, writer, portion.number, portion.position, portion.is_done, portion.touched_ms)
            for (topic, writer), portion in self.portions.items()
        )
        return Rows(len(self.portions), slices(rows, at_once)) if self.portions else None

    def take(self, fields: WriterFields) -> None:
        """Adds the writers of a snapshot (`rows`), or the next part of them."""
        for topic, writer, number, position, is_done, touched_ms in fields:
            self.portions[topic, writer] = Portion(number, position, is_done, touched_ms)
