"""The queues of a history that still grows, judged as it comes, with bounded memory (docs/checker.md, "A history that
grows").

What an operation says about an offset (:mod:`spark_analysis.checking.queues.knowledge`) is kept until the offset is
*settled*: something that needs it, or a later one, had ended before every operation that is still open, or still to
come, began. From then on nothing about its order can change; only its value is kept, in a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf
from typing import Final

from spark_analysis.checking.queues.attempts import Attempt, Hole, Seen
from spark_analysis.checking.queues.knowledge import (
    FUNCTIONS,
    Axis,
    Operation,
    Position,
    missed_what_was_known,
    state,
    sweep,
    torn_reads,
    wrong_at,
)
from spark_analysis.checking.queues.reference import Swept, attempts_of, judge_swept, without_gaps
from spark_analysis.checking.queues.settled_words import SettledWords, Words
from spark_analysis.checking.queues.unknown_appends import Finding
from spark_analysis.checking.verdict import LINEARIZABLE, MISSING_MAY_EXPLAIN, UNDECIDED, VIOLATED

JUDGED: Final = ("append", "read", "poll", "tail", "head")
"""The functions of operations that say something about queues."""
_KNOWN: Final = 1
_ACKNOWLEDGED: Final = 2
_BY_APPEND: Final = 4  # what ended first, of all that needs the offset, was an append
_HASH_SHIFT: Final = 3
_WORD: Final = (1 << 64) - 1
_APPEND: Final = FUNCTIONS.index("append")


class FollowedLog:
    """All queues of a history; ``sparse`` as in :func:`spark_analysis.checking.queues.reference.check_queues`.

    Memory grows with what is not settled, with the appends of unknown outcome, and with what is wrong; of all else 8
    bytes an offset are kept in a file.
    """

    def __init__(self, *, sparse: bool = False, words: Words | None = None) -> None:
        """``words`` is where settled offsets are kept. Raises OSError where no temporary file can be made for them."""
        self._sparse = sparse
        self._words = SettledWords() if words is None else words
        self._queues: dict[str, _Queue] = {}
        self._failed: set[str] = set()
        self._given_up: dict[int, str] = {}
        self._told: set[tuple[str, str, int]] = set()
        self._watermark_ns: float = -inf
        self._has_news = False
        self._unsure = False
        self.late = 0
        """The number of operations that came after the moment up to which everything was said to be known; findings
        that one more operation may explain are not told any more."""
        self.is_damaged = False
        """To be set where some of what is still to come cannot be read; findings that it might explain are undecided
        then."""

    def take(self, key: str, one: Operation, *, is_given_up: bool = False) -> None:
        """Take an operation that has completed, or one of unknown outcome. ``is_given_up``: its completion may still
        come, as another operation with the same ``op``."""
        is_late = False
        if is_given_up:
            self._given_up[one.op] = key
        elif one.op in self._given_up and one.outcome == "info":
            # Its client reports an unknown outcome, too, which is what it was counted as already.
            del self._given_up[one.op]
            return
        # It was counted as attempts when it was given up; the response replaces these.
        elif one.op in self._given_up:
            where = self._queues[self._given_up.pop(one.op)]
            where.attempts = [attempt for attempt in where.attempts if attempt.op != one.op]
            is_late = True
        elif one.invoke_ns < self._watermark_ns:
            is_late = True
        self.late += is_late
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(len(self._queues), self._words)
        if one.function == "append" and one.outcome == "fail":
            self._failed.update(one.values)
        for each in without_gaps([one]) if self._sparse else (one,):
            self._has_news |= queue.take(each, is_late=is_late)

    def settle(self, watermark_ns: float) -> list[tuple[str, Finding]]:
        """Judge what has come so far; returns the findings that are new, with their queues.

        Every operation that is still to come by :meth:`take` was, or will be, invoked at ``watermark_ns`` or later.
        """
        self._watermark_ns = max(watermark_ns, self._watermark_ns)
        found: list[tuple[str, Finding]] = []
        for key, queue in self._queues.items():
            found += ((key, one) for one in queue.settle(self._watermark_ns, sparse=self._sparse))
            # Holes and values that were just settled ask for attempts, too.
            self._has_news |= queue.has_open_questions_anew()
        # Explaining goes through everything open in all queues, so it is done only when something has changed.
        if self._has_news and not self.late:
            explained = list(self._explained())
            found += () if self.is_damaged else explained
            self._unsure |= self.is_damaged and bool(explained)
        self._has_news = False
        new = [(key, one) for key, one in found if (key, one.kind, one.position) not in self._told]
        self._told.update((key, one.kind, one.position) for key, one in new)
        return new

    def finish(self) -> str:
        """The verdict when nothing is to come any more."""
        self.last()
        return VIOLATED if self._told else UNDECIDED if self._unsure else LINEARIZABLE

    def last(self) -> list[tuple[str, Finding]]:
        """Judge the rest, when nothing is to come any more; returns findings as :meth:`settle` does. If operations came
        late, findings that these might have explained are returned once more where they did not."""
        if self.late:
            self._told = {one for one in self._told if one[1] not in MISSING_MAY_EXPLAIN}
        self.late = 0
        self._has_news = True
        return self.settle(inf)

    @property
    def is_unsure(self) -> bool:
        """True if what appends of unknown outcome have done was not decided when it was last asked."""
        return self._unsure

    @property
    def held(self) -> int:
        """The number of offsets that are not settled, in memory."""
        return sum(queue.held for queue in self._queues.values())

    def close(self) -> None:
        """Close the file, which removes it."""
        self._words.close()

    def kept(self) -> KeptLog:
        """Return all that is known, except the words. To be called between two other calls."""
        return KeptLog(
            {key: queue.kept() for key, queue in self._queues.items()},
            *(sorted(self._failed), self._given_up, sorted(self._told)),
            None if self._watermark_ns == -inf else int(self._watermark_ns),
            has_news=self._has_news,
            unsure=self._unsure,
            late=self.late,
            is_damaged=self.is_damaged,
        )

    def go_on(self, kept: KeptLog) -> None:
        """Take over what :meth:`kept` of another one returned, whose words this one was given; nothing must have been
        taken yet."""
        self._queues = {
            key: _Queue(number, self._words, one) for number, (key, one) in enumerate(kept.queues.items())
        }
        self._failed, self._given_up, self._told = set(kept.failed), kept.given_up, set(kept.told)
        self._watermark_ns = -inf if kept.watermark_ns is None else kept.watermark_ns
        self._has_news, self._unsure = kept.has_news, kept.unsure
        self.late, self.is_damaged = kept.late, kept.is_damaged

    def _explained(self) -> Iterator[tuple[str, Finding]]:
        """Yields what appends of unknown outcome cannot have done."""
        swept = {key: queue.swept() for key, queue in self._queues.items()}
        tried = {key: queue.attempts for key, queue in self._queues.items()}
        # Which values were acknowledged somewhere else is not kept, so a value is only said to be unexplained.
        judged = judge_swept(swept, tried, frozenset(), self._failed)
        self._unsure = any(queue.unsure for queue in judged.values())
        for key, queue in judged.items():
            for one in queue.findings:
                kind = "unexplained-value" if one.kind == "phantom-value" else one.kind
                yield key, Finding(kind, one.position, one.lower_ns, one.upper_ns)


@dataclass(frozen=True, slots=True)
class Place:
    """A settled offset that an append of unknown outcome must explain: a value that was seen, or none from here to
    ``last``. ``latest`` is the earliest end of an operation that needs it, as a bound."""

    latest: int
    value: str | None
    last: int


@dataclass(frozen=True, slots=True)
class KeptQueue:
    """A queue between two calls: plain data, to be written down."""

    attempts: list[tuple[int, int, int, str, int]] = field(default_factory=list)
    log: dict[int, Position] = field(default_factory=dict)
    log_settled_to: int = 0
    heads: dict[int, Position] = field(default_factory=dict)
    heads_settled_to: int = 0
    open: dict[int, Place] = field(default_factory=dict)
    found: list[Finding] = field(default_factory=list)
    asked: bool = False


@dataclass(frozen=True, slots=True)
class KeptLog:
    """A :class:`FollowedLog` likewise; the queues are in the order in which they came."""

    queues: dict[str, KeptQueue]
    failed: list[str]
    given_up: dict[int, str]
    told: list[tuple[str, str, int]]
    watermark_ns: int | None
    has_news: bool
    unsure: bool
    late: int
    is_damaged: bool


class _Begun(Axis):
    """An axis whose first part is settled: what is stated about that part goes to ``again``."""

    __slots__ = ("again", "settled_to")

    def __init__(self, at: dict[int, Position], settled_to: int) -> None:
        super().__init__()
        self.at.update(at)
        self.settled_to = settled_to
        self.again: list[tuple[int, int | None, str | None]] = []

    def began(self, position: int, bound: int) -> None:
        if position < self.settled_to:
            self.again.append((position, bound, None))
        else:
            super().began(position, bound)

    def ended(self, position: int, bound: int) -> None:
        if position >= self.settled_to:
            super().ended(position, bound)

    def shown(self, position: int, value: str, begin: int | None, end: int) -> None:
        if position < self.settled_to:
            self.again.append((position, begin, value))
        else:
            super().shown(position, value, begin, end)


class _Queue:
    def __init__(self, number: int, words: Words, known: KeptQueue | None = None) -> None:
        known = KeptQueue() if known is None else known
        self.attempts = [Attempt(*one) for one in known.attempts]
        self._number, self._words = number, words
        self._log = _Begun(known.log, known.log_settled_to)
        self._heads = _Begun(known.heads, known.heads_settled_to)
        self._open = known.open  # by offset; no two of them overlap
        self._asked = known.asked
        self._found = known.found

    def kept(self) -> KeptQueue:
        return KeptQueue(
            [(one.op, one.index, one.size, str(one.value), one.invoke_ns) for one in self.attempts],
            *(self._log.at, self._log.settled_to, self._heads.at, self._heads.settled_to),
            *(self._open, self._found, self._asked),
        )

    def take(self, one: Operation, *, is_late: bool) -> bool:
        """Take an operation; True if it is one more attempt."""
        attempts = attempts_of([one])
        self.attempts += attempts
        self._found += torn_reads([one])
        state(one, self._log, self._heads)
        for position, begin, value in self._log.again:
            self._say_again(position, None if is_late else begin, value, is_acknowledged=begin is not None)
        self._log.again.clear()
        if not is_late:
            self._found += (
                Finding("backward-head", position, begin >> 2)
                for position, begin, _ in self._heads.again
                if begin is not None
            )
        self._heads.again.clear()
        return bool(attempts)

    def settle(self, watermark_ns: float, *, sparse: bool) -> list[Finding]:
        """Return the findings that further operations cannot take back.

        Positions are put away where all that concerns them ended before ``watermark_ns``.
        """
        found, self._found = self._found, []
        for position, at, latest, _ in list(sweep(self._heads.at)):
            found += missed_what_was_known(position, at, latest, is_head=True)
            if latest is not None and latest >> 2 < watermark_ns:
                self._heads.settled_to = position + 1
                del self._heads.at[position]
        for position, at, latest, _ in list(sweep(self._log.at)):
            found += wrong_at(position, at, latest)
            if latest is not None and latest >> 2 < watermark_ns:
                self._put_away(position, at, latest, sparse=sparse)
        return found

    @property
    def held(self) -> int:
        return len(self._log.at) + len(self._heads.at)

    def has_open_questions_anew(self) -> bool:
        """True if offsets were settled that appends of unknown outcome must explain."""
        asked, self._asked = self._asked, False
        return asked

    def swept(self) -> Swept:
        """The settled part, as :func:`explain` takes it."""
        places = sorted(self._open.items())
        return Swept(
            {},
            seen=[Seen(at, one.value, one.latest >> 2) for at, one in places if one.value is not None],
            holes=[Hole(at, one.last, one.latest >> 2) for at, one in places if one.value is None],
        )

    def _put_away(self, position: int, at: Position, latest: int, *, sparse: bool) -> None:
        first, last = self._log.settled_to, position - 1 if at.values else position
        if first <= last and not sparse:
            self._ask(first, Place(latest, None, last))
        if at.values:
            if not at.acks:
                self._ask(position, Place(latest, at.value, position))
            flags = _KNOWN | _ACKNOWLEDGED * bool(at.acks) | _BY_APPEND * (latest & 3 == _APPEND)
            self._words.write(self._number, position, _word(at.value) | flags)
        self._log.settled_to = position + 1
        del self._log.at[position]

    def _ask(self, position: int, place: Place) -> None:
        self._open[position] = place
        self._asked = True

    def _say_again(
        self, position: int, begin: int | None, value: str | None, *, is_acknowledged: bool
    ) -> None:
        """Something is said about a settled offset. ``begin`` is the bound before which the offset was empty: always
        too late, as something that needs the offset had ended before every operation that was still to come."""
        word = self._words.read(self._number, position)
        # A settled offset whose value was acknowledged has no `Place`: nothing has to be explained there.
        is_settled_for_good = word & _KNOWN and word & _ACKNOWLEDGED
        place = None if is_settled_for_good else self._place_of(position)
        by_append = (place.latest & 3 == _APPEND) if place is not None else bool(word & _BY_APPEND)
        if begin is not None:
            began = FUNCTIONS[begin & 3]
            kind = (
                f"stale-{began}" if began != "append" else "append-order" if by_append else "premature-read"
            )
            self._found.append(Finding(kind, position, begin >> 2))
        if value is None:
            return
        if word & _KNOWN and word >> _HASH_SHIFT != _word(value) >> _HASH_SHIFT:
            self._found.append(Finding("inconsistent-offset", position))
        if is_acknowledged and word & _ACKNOWLEDGED:
            self._found.append(Finding("duplicate-offset", position))
        if not word & _KNOWN:
            word = _word(value) | _KNOWN | _BY_APPEND * by_append
            if place is not None:
                self._take_out(position, place)
                self._ask(position, Place(place.latest, value, position))
        if is_acknowledged:
            word |= _ACKNOWLEDGED
            self._open.pop(position, None)
        self._words.write(self._number, position, word)

    def _place_of(self, position: int) -> Place | None:
        found = self._open.get(position)
        if found is not None:
            return found
        return next((one for first, one in self._open.items() if first <= position <= one.last), None)

    def _take_out(self, position: int, place: Place) -> None:
        """Divide a hole at a position that turns out to have a value."""
        first = next(at for at, one in self._open.items() if one is place)
        del self._open[first]
        if first < position:
            self._open[first] = Place(place.latest, None, position - 1)
        if position < place.last:
            self._open[position + 1] = Place(place.latest, None, place.last)


def _word(value: str) -> int:
    """61 bits of a hash, with room for the flags; the same in every process."""
    digest = blake2b(value.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") << _HASH_SHIFT & _WORD
