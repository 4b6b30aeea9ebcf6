"""Committed entries that this node's disk has damaged: who holds them whole is asked, and they are put back.

Readers find them (log/entries/entry_reads.py), and the scrubber, which reads everything now and then (scrubbing.py).
One place at a time is asked for, of one peer after the other: any node that has the entries committed may lend them.
Why what comes back is what was there says log/entries/entry_repair.py. It counts as repaired when it is on the disk.

Where nobody has them whole this node says so, serves all the rest, and asks again, less and less often and whenever a
peer comes back. A reader of damaged bytes gets an error, never the bytes.

Entries that are not committed here are never touched: Raft may replace them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from broker.peers.protocol import ENTRIES_LENT_SINCE, EntriesLent, EntriesWanted, encode_frame
from broker.replica.committed_entries import CommittedEntries
from broker.replica.loads import Loads
from broker.requests.connection import Connection
from broker.requests.deadline import NEVER
from broker.statistics.events import EventKind, Events
from log.entries.entry_log import EntryLog
from log.entries.entry_reads import check_run, index_of
from log.entries.entry_repair import put_back
from log.entries.flushes import FlushJob
from log.errors import (
    DamagedEntryError,
    DamagedFileError,
    DamagedLogError,
    DamagedRangeError,
    OutOfRangeError,
)

LENT_BYTES_MAX: Final = 256 * 1024
"""The bytes of one answer, unless a single entry is larger: checked on both sides within a turn."""

ANSWER_NS: Final = 2_000_000_000
"""The time for an answer, which may have to come from a disk; then the next peer is asked."""

RESTS_NS: Final = (5_000_000_000, 60_000_000_000)
"""The first and the longest time after which all peers are asked again."""

_TOLD_AT_ONCE: Final = 10


@dataclass(slots=True)
class _Place:
    """Damaged entries that follow each other."""

    first_index: int
    last_index: int
    epoch: int
    due_ns: int
    rest_ns: int = RESTS_NS[0]
    asked: set[str] = field(default_factory=set)
    """The peers that have been asked since the last rest."""
    is_told: bool = False
    """Whoever is on call was told that nobody has it whole: once is enough."""


class RepairFlush:
    """Makes bytes durable that were put back. Return it with `Repairs.flushed`."""

    def __init__(self, flushes: list[FlushJob]) -> None:
        self._flushes = flushes

    def run(self) -> None:
        """Worker. Raises FlushError."""
        for flush in self._flushes:
            flush.run()


class Repairs:
    """The damage that one node knows of, and what is done about it."""

    def __init__(
        self,
        log: EntryLog,
        links: Mapping[str, Connection],
        versions: Mapping[str, int],
        loads: Loads,
        events: Events,
        committed: CommittedEntries,
    ) -> None:
        """`versions` are those that the `links` have agreed on."""
        self._log = log
        self._links = links
        self._versions = versions
        self._loads = loads
        self._events = events
        self._committed = committed
        self._places: dict[int, _Place] = {}
        """Runs of damaged entries, by the index of the first one. Those that are in the log (`_is_there`) have no entry
        in common."""
        self._asked: tuple[_Place, str, int] | None = None
        """The question that is out: the place, the peer, and until when its answer is awaited."""
        self._put_back: list[tuple[FlushJob, str, int]] = []
        """Flushes to be done, each with what it makes durable, in words for people, and how many damages that mends."""
        self._flushing: RepairFlush | None = None
        """The job that is out."""
        self._in_flush: list[tuple[FlushJob, str, int]] = []
        """The elements of `_put_back` that `_flushing` makes durable; empty while it is not out."""
        self.found = 0
        """Damaged things found since the start; of entries each one counts."""
        self.repaired = 0
        self.due_ns = NEVER
        """The time at which `look` is to be called; NEVER while nothing is damaged."""
        log.damage.tell = self._told
        self.suspect: Callable[[int], None] = lambda now_ns: None
        """Called with the time for damage whose place in the log is not known: all of it is to be gone over."""

    @property
    def left(self) -> int:
        """The number of entries that are known to be damaged and not put back."""
        return sum(place.last_index - place.first_index + 1 for place in self._places.values())

    def is_any_damaged(self, first_index: int, last_index: int) -> bool:
        """Tells whether one of these entries is known to be damaged and not put back."""
        return any(
            place.first_index <= last_index and first_index <= place.last_index
            for place in self._places.values()
        )

    def _plan(self) -> None:
        """Sets `due_ns` by what is damaged and asked."""
        if self._asked is not None:
            self.due_ns = self._asked[2]
        else:
            self.due_ns = min((place.due_ns for place in self._places.values()), default=NEVER)

    def _told(self) -> None:
        """Has `look` called in the next turn, as a reader has met damage."""
        self.due_ns = 0

    # ------------------------------------------------------------------ what is damaged

    def look(self, now_ns: int) -> None:
        """Takes up what readers have found, and asks the next peer if it is time for that."""
        log = self._log
        while log.damage.entries:
            position, error = log.damage.entries.popitem()
            self._seen(position, error, now_ns)
        if log.damage.units_doubted:
            log.damage.units_doubted = False
            self.suspect(now_ns)
        if self._asked is not None:
            if now_ns < self._asked[2]:
                self._plan()
                return
            self._asked = None  # the peer is silent
        for place in list(self._places.values()):
            if not self._is_there(place):
                self._places.pop(place.first_index)
            # One question at a time is out (`_asked`).
            elif place.due_ns <= now_ns and self._ask(place, now_ns):
                break
        self._plan()

    def _seen(self, position: int, error: DamagedEntryError, now_ns: int) -> None:
        index = index_of(self._log, position)
        # No unit of the log's index leads to that place.
        if index is None:
            self.suspect(now_ns)
        else:
            self.damaged(index, index, error, now_ns)

    def damaged(self, first_index: int, last_index: int, error: DamagedLogError, now_ns: int) -> None:
        """Has the committed ones of entries `first_index`..`last_index` repaired, which are damaged as `error` says of
        the first."""
        found = 0
        # What is found twice counts once, and what is not committed here raft may replace.
        for first, last in self._unknown(first_index, min(last_index, self._committed.index)):
            self._places[first] = _Place(first, last, self._log.epoch, now_ns)
            found += last - first + 1
        if found:
            self.due_ns = min(self.due_ns, now_ns)
            self.note_found("entries", error, now_ns, found, entry=first_index)

    def _unknown(self, first_index: int, last_index: int) -> list[tuple[int, int]]:
        """Returns the parts of a run of entries that are not known to be damaged, each as first and last entry."""
        # Places share no entry, so that in order each begins behind the one before.
        parts = []
        for place in sorted(self._places.values(), key=lambda place: place.first_index):
            if self._is_there(place) and place.last_index >= first_index:
                if place.first_index > first_index:
                    parts.append((first_index, min(last_index, place.first_index - 1)))
                first_index = place.last_index + 1
        parts.append((first_index, last_index))
        return [(first, last) for first, last in parts if first <= last]

    def note_found(
        self, what: str, error: DamagedFileError, now_ns: int, count: int = 1, **facts: object
    ) -> None:
        """Counts damage and tells of it."""
        self.found += count
        self._events.warn(
            EventKind.DAMAGE_FOUND,
            what,
            now_ns,
            source=error.file,
            at_once=_TOLD_AT_ONCE,
            offset=error.offset,
            count=count,
            detail=error.reason,
            **facts,
        )

    def note_left(self, reason: str, now_ns: int, *, source: str = "", **facts: object) -> None:
        """Tells of damage that cannot be put right."""
        self._events.warn(
            EventKind.DAMAGE_LEFT, reason, now_ns, source=source, at_once=_TOLD_AT_ONCE, **facts
        )

    def _is_there(self, place: _Place) -> bool:
        """False if the log was cut or begun anew: what is there now is not what was damaged."""
        return place.epoch == self._log.epoch and self._log.first_index <= place.first_index

    # ------------------------------------------------------------------ asking and putting back

    def _ask(self, place: _Place, now_ns: int) -> bool:
        """Asks the next peer; returns False if there is none, and the place rests."""
        for peer, link in self._links.items():
            # A peer of an earlier release could not read the question.
            if peer not in place.asked and self._versions.get(peer, 0) >= ENTRIES_LENT_SINCE:
                place.asked.add(peer)
                link.send(*encode_frame(EntriesWanted(place.first_index, place.last_index)))
                self._asked = (place, peer, now_ns + ANSWER_NS)
                return True
        place.due_ns = now_ns + place.rest_ns
        place.rest_ns = min(2 * place.rest_ns, RESTS_NS[1])
        if not place.is_told:
            place.is_told = True
            reason = "no peer has it whole" if place.asked else "no peer is linked"
            self.note_left(reason, now_ns, entry=place.first_index, last_entry=place.last_index)
        place.asked.clear()
        return False

    def linked(self, node: str, now_ns: int) -> None:
        """Has a peer that is there, maybe again, asked at once."""
        for place in self._places.values():
            place.asked.discard(node)
            place.due_ns = min(place.due_ns, now_ns)
            self.due_ns = min(self.due_ns, now_ns)

    def lent(self, source: str, frame: EntriesLent, now_ns: int) -> None:
        """Takes what a peer has lent, or its word that it has nothing to lend.

        Raises nothing for damaged bytes: the next peer is asked.
        """
        asked = self._asked
        if asked is None or asked[1] != source or asked[0].first_index != frame.first_index:
            return  # it comes too late
        place = asked[0]
        self._asked = None
        place.due_ns = now_ns
        assert not self._is_there(place) or self._places.get(place.first_index) is place, (
            f"the entries {place.first_index}..{place.last_index} were asked for, and are not known as damaged"
        )
        if frame.body and self._is_there(place):
            try:
                entries = self._log.check_range(frame.body, frame.first_index, frame.position)
                if entries.last_index > place.last_index:
                    raise DamagedRangeError(0, f"entries up to {place.last_index} were wanted")
                differing, flush = put_back(self._log, entries)
            except DamagedRangeError as error:
                self._events.warn(EventKind.DAMAGED_FRAME, "lent", now_ns, source=source, error=str(error))
            else:
                del self._places[place.first_index]
                self.to_flush(flush, f"entries {entries.first_index}..{entries.last_index}", differing)
                if entries.last_index < place.last_index:
                    # An answer has so much at most (`LENT_BYTES_MAX`): for the rest whoever lent this may be asked
                    # again, too.
                    place.first_index = entries.last_index + 1
                    place.asked.clear()
                    self._places[place.first_index] = place
        self.look(now_ns)

    @property
    def wants_flush(self) -> bool:
        """True if something was put right that is not on the disk yet."""
        return bool(self._put_back)

    def to_flush(self, flush: FlushJob, what: str, count: int) -> None:
        """Has bytes flushed that were put right in memory: they count as repaired when they are on the disk."""
        self._put_back.append((flush, what, count))

    def job(self) -> RepairFlush | None:
        """Returns the flush that is to begin now; None if there is none, or one is out."""
        if self._flushing is not None or not self._put_back:
            return None
        assert not self._in_flush, f"{len(self._in_flush)} repairs would never be counted"
        self._in_flush, self._put_back = self._put_back, []
        self._flushing = RepairFlush([flush for flush, _, _ in self._in_flush])
        return self._flushing

    def flushed(self, job: RepairFlush) -> None:
        """Counts as repaired what a job has made durable that has run without an error."""
        assert job is self._flushing, "the job that is out comes back"
        self._flushing = None
        for _, what, count in self._in_flush:
            self.note_repaired(what, count)
        self._in_flush = []

    def note_repaired(self, what: str, count: int) -> None:
        """Counts what is on the disk as it should be again, and tells of it."""
        self.repaired += count
        self._events.note(EventKind.DAMAGE_REPAIRED, what.partition(" ")[0], what=what, count=count)

    # ------------------------------------------------------------------ lending

    def lend(self, source: str, wanted: EntriesWanted, now_ns: int) -> None:
        """Answers a peer that has damaged entries, when its bytes are in memory."""
        try:
            last_index = min(wanted.last_index, self._committed.index)
            is_here = self._log.first_index <= wanted.first_index <= last_index and not self._log.damaged
            position = self._log.position_of(wanted.first_index) if is_here else 0
        except DamagedLogError:
            is_here, position = False, 0
        if is_here:
            # What is not in memory a worker reads first: no turn waits for the disk.
            self._loads.when_loaded(position, lambda: self._lend(source, wanted), now_ns)
        else:
            self._answer(source, EntriesLent(wanted.first_index, 0, b""))

    def _lend(self, source: str, wanted: EntriesWanted) -> None:
        log, first = self._log, wanted.first_index
        last = min(wanted.last_index, self._committed.index)
        while last >= first:
            try:
                run = log.run(first, last, LENT_BYTES_MAX)
                check_run(log, first, run)
            except DamagedEntryError as error:
                damaged = index_of(log, error.position)
                # What lies before damage of this node's own is lent all the same.
                last = first - 1 if damaged is None else damaged - 1
            # Retention may have taken the entries while their bytes were loaded.
            except (DamagedLogError, OutOfRangeError):
                break
            else:
                self._answer(source, EntriesLent(first, run.position, run.body))
                return
        self._answer(source, EntriesLent(first, 0, b""))

    def _answer(self, source: str, frame: EntriesLent) -> None:
        link = self._links.get(source)
        # Between question and answer a load may lie, and the peer may have come back as an earlier release.
        if link is not None and self._versions.get(source, 0) >= ENTRIES_LENT_SINCE:
            link.send(*encode_frame(frame))
