"""A broker that runs becomes a backup: its messages are asked for queue by queue, and those that come in meanwhile
again and again, until it takes none any more.

Each look at the broker says how far its queues are; up to there they are copied, merged by store time. So the log is in
the order in which the broker stored its messages, as far as one look sees it, and files of it can be deleted by their
age. What the directory holds is what counts: a copy that broke off goes on behind its last message, after the last one
of each queue was compared with the broker's.

It is complete after a look that began when nobody had been allowed to write for `STILL_S`. What the broker does by
itself even then, the delivery of what was delayed, is in the copy, or still waits there.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import Final, Protocol

from broker.backups.directory import BackupWriter
from broker.migration.errors import MigrationError
from broker.migration.pulled_log import PulledLog, piece_of
from broker.migration.report import Origin, Report, report_of
from broker.migration.running_broker import Look, PulledRecord
from broker.migration.state_found import is_brokers_own, refusal, state_of
from broker.migration.survey import FoundQueue, QueueKey, Survey
from broker.remoting.backup_description import BackupDescription
from broker.remoting.bodies import TopicConfig
from broker.settings.tables import parse_delay_levels
from broker.state.release import FIRST_FORMAT, Release
from broker.state.snapshot import encode_parts
from broker.state.topic_rules import HALF_OPERATIONS_TOPIC, HALF_TOPIC
from log.formats.record import PHYSICAL_OFFSET_AT

STILL_S: Final = 5.0
"""Longer than a send that RocketMQ has let in waits for its place in the log, or for other nodes."""
_PULLED_AT_ONCE: Final = 32
"""Messages of one request; by default a broker gives no more, and fewer from its disk."""
_BUFFERED: Final = 8192
"""Messages that are held at once, of all queues together, as far as one of each allows."""
_WRITTEN_BYTES: Final = 1 << 20
_NEW_PLACES: Final = (
    "message ids that name a place in the log (offset message ids): each message has a new place. Ids that its "
    "producer gave it stay"
)
_NO_DECISIONS: Final = (
    "decisions about half messages, which RocketMQ 4.x does not show: producers are asked again about those that it "
    "has not checked since, and a message that was committed meanwhile may come twice"
)
_BEGIN_AGAIN: Final = "Begin again in another directory"


class Broker(Protocol):
    """The questions to a broker that runs (`RunningBroker`)."""

    group: str

    async def look(self, is_taken: Callable[[str, str, TopicConfig], bool]) -> Look:
        """Returns what it has now."""

    async def read_all(self, wanted: Sequence[tuple[QueueKey, int, int]]) -> list[list[PulledRecord]]:
        """Returns a list for each (queue, offset, count): up to `count` messages of the queue, from the offset on."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wishes of the operator."""

    data_file_bytes: int
    """`storage.data_file_bytes` of the group that it becomes."""
    delay_levels_ms: tuple[int, ...]
    left_out: frozenset[str] = frozenset()


class LookedAt:
    """The queues of a look, as a survey asks for them."""

    exists = True

    def __init__(self, look: Look) -> None:
        self._queues = look.queues

    def topics(self) -> set[str]:
        """Returns the topics that have queues."""
        return {topic for topic, _ in self._queues}

    def ends(self) -> dict[QueueKey, int]:
        """Returns by queue the next offset."""
        return {key: end for key, (_, end) in self._queues.items()}

    def unit(self, topic: str, queue_id: int, offset: int) -> None:
        """Returns None: there is no ConsumeQueue to compare. Each message was pulled by its offset, and names it."""


class TakingOver:
    """One broker, and the directory that gets its messages. `begin` comes first, then `step` as often as need be."""

    def __init__(
        self,
        broker: Broker,
        directory: BackupWriter,
        wanted: Wanted,
        release: Release,
        progress: Callable[[str, int], None] = lambda what, index: None,
    ) -> None:
        self._broker = broker
        self._directory = directory
        self._wanted = wanted
        self._release = release
        self._progress = progress
        self._log = PulledLog(directory, wanted.data_file_bytes)
        self._look: Look
        self._survey: Survey
        self._still_since_s: float | None = None
        self.copied = 0
        """Messages, by this run."""
        self.is_complete = False

    async def begin(self) -> Report:
        """Looks at the broker, and at what the directory has of it already; returns what there is to copy.

        Raises MigrationError, BackupError, ClientError, OSError.
        """
        directory, wanted = self._directory, self._wanted
        look = self._look = await look_at(self._broker, wanted)
        self._survey = _survey_of(look, wanted)
        goes_on = not directory.is_empty
        if goes_on:
            assert directory.manifest is not None, "it has entries"
            directory.check_group(self._broker.group, directory.last_index)
            if directory.manifest.node != self._node:
                raise MigrationError(
                    f"{directory.path} is a backup of {directory.manifest.node}, and not of {self._node}: use another "
                    "directory"
                )
        directory.begin(self._description(0))
        if goes_on:
            for entries in directory.entries():
                self._survey.take(piece_of(directory.path, entries))
                self._progress("checked", entries.last_index)
            self._check_queues()
            await self._compare_last()
        return preview(self._broker, look, wanted)

    async def step(self, now_s: float) -> None:
        """Copies what the broker has by now, and completes the copy if it has been still for long enough.

        `now_s` is a monotonic time. Raises MigrationError, BackupError, ClientError, OSError.
        """
        look = self._look = await look_at(self._broker, self._wanted)
        if look.takes_messages:
            self._still_since_s = None
        elif self._still_since_s is None:
            self._still_since_s = now_s
        self._survey.take_newer(look.tables, LookedAt(look))
        self._check_queues()
        await self._copy()
        if self._still_since_s is not None and now_s - self._still_since_s >= STILL_S:
            await self._complete()

    @property
    def is_still(self) -> bool:
        """Tells whether the broker took no messages at the last look."""
        return not self._look.takes_messages

    def report(self) -> Report:
        """Returns what was copied, and what there is to say of it."""
        return _report(
            self._broker,
            self._look,
            self._wanted,
            self._survey,
            directory=str(self._directory.path),
            is_complete=self.is_complete,
            last_index=self._directory.last_index,
            copied=self.copied,
        )

    # ------------------------------------------------------------------ copying

    async def _copy(self) -> None:
        """Copies all up to the ends of the last look, merged by store time."""
        nexts = {key: self._next_offset(key) for key in self._look.queues}
        ends = {key: end for key, (_, end) in self._look.queues.items() if nexts[key] < end}
        held: dict[QueueKey, deque[PulledRecord]] = {key: deque() for key in ends}
        count = max(1, min(_PULLED_AT_ONCE, _BUFFERED // max(1, len(ends))))
        batch: list[memoryview] = []
        size = 0
        while ends:
            await self._fill(ends, nexts, held, count)
            heads = [(held[key][0].head.store_timestamp, key) for key in ends]
            heapify(heads)
            while heads:
                _, key = heads[0]
                queue = held[key]
                record = queue.popleft()
                batch.append(record.data)
                size += len(record.data)
                if record.head.queue_offset + 1 == ends[key]:
                    del ends[key]
                    heappop(heads)
                elif queue:
                    heapreplace(heads, (queue[0].head.store_timestamp, key))
                else:
                    break  # its next record may be older than all that is held of others: it is pulled first
            if size >= _WRITTEN_BYTES or not ends:
                self._write(batch)
                batch, size = [], 0

    async def _fill(
        self,
        ends: dict[QueueKey, int],
        nexts: dict[QueueKey, int],
        held: dict[QueueKey, deque[PulledRecord]],
        count: int,
    ) -> None:
        """Asks for more of each queue of which less than half is held, from `nexts` on."""
        few = [key for key in ends if len(held[key]) <= count // 2 and nexts[key] < ends[key]]
        answers = await self._broker.read_all([(key, nexts[key], count) for key in few])
        for key, records in zip(few, answers, strict=True):
            if not records:
                raise MigrationError(
                    f"message {nexts[key]} of {_named(key)} is not there, and {ends[key]} is the queue's end: another "
                    "node leads, or the topic was deleted. Run the command again"
                )
            held[key].extend(record for record in records if record.head.queue_offset < ends[key])
            nexts[key] = held[key][-1].head.queue_offset + 1

    def _write(self, records: list[memoryview]) -> None:
        for piece in self._log.append(records):
            self._survey.take(piece)
            self.copied += len(piece.heads)
            self._progress("copied", self._directory.last_index)

    def _next_offset(self, key: QueueKey) -> int:
        known = self._survey.found.get(key)
        return self._look.queues[key][0] if known is None else known.next_offset

    # ------------------------------------------------------------------ checks

    def _check_queues(self) -> None:
        """Checks that what is copied is the beginning of what the broker has. Raises MigrationError."""
        for key, known in self._survey.found.items():
            if key not in self._look.queues:
                raise MigrationError(
                    f"{_named(key)} is gone, and {known.messages:,} messages of it are copied: its topic was deleted. "
                    f"{_BEGIN_AGAIN}"
                )
            first, end = self._look.queues[key]
            if end < known.next_offset:
                raise MigrationError(
                    f"{_named(key)} ends at {end}, and is copied up to {known.next_offset}: its topic was deleted and "
                    f"made again, or another node leads that has less. {_BEGIN_AGAIN}"
                )
            if first > known.next_offset:
                raise MigrationError(
                    f"{_named(key)} begins with {first} now, and is copied up to {known.next_offset}: what is between "
                    f"was deleted before it was read. {_BEGIN_AGAIN}"
                )

    async def _compare_last(self) -> None:
        """Compares the last message of each queue with the broker's, as far as it still has it. Raises MigrationError.

        A topic that was made again has others by then, as has another cluster.
        """
        there = [
            (key, known)
            for key, known in self._survey.found.items()
            if self._look.queues[key][0] < known.next_offset
        ]
        answers = await self._broker.read_all([(key, known.next_offset - 1, 1) for key, known in there])
        for (key, known), records in zip(there, answers, strict=True):
            same = False
            if records:
                theirs = bytearray(records[0].data)
                ours = bytearray(self._directory.body_at(known.last_place, len(theirs)))
                for record in (theirs, ours):  # all but the place in the log, which is another in a copy
                    record[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8] = bytes(8)
                same = theirs == ours
            if not same:
                raise MigrationError(
                    f"message {known.next_offset - 1} of {_named(key)} is another one in {self._directory.path}: its "
                    f"topic was made again, or this is another broker. {_BEGIN_AGAIN}"
                )

    # ------------------------------------------------------------------ the end

    async def _complete(self) -> None:
        if self._directory.is_empty:
            raise MigrationError(f"{self._broker.group} has no message: there is nothing to take over")
        await self._compare_last()
        self._survey.finish()
        state = state_of(self._survey, self._broker.group, self._look.cluster)
        snapshot = encode_parts(state.metadata, state.ends)
        self._directory.finish(self._description(len(snapshot)), snapshot)
        self.is_complete = True

    @property
    def _node(self) -> str:
        return f"{self._broker.group} of RocketMQ, while it ran"

    def _description(self, snapshot_bytes: int) -> BackupDescription:
        directory = self._directory
        is_new = directory.is_empty
        return BackupDescription(
            group=self._broker.group,
            cluster=self._look.cluster,
            node=self._node,
            release=self._release.name,
            format=FIRST_FORMAT,
            data_file_bytes=self._wanted.data_file_bytes,
            first_index=0,
            first_position=0,
            base_term=0,
            last_index=-1 if is_new else directory.last_index,
            end_position=0 if is_new else directory.end_position,
            snapshot_bytes=snapshot_bytes,
        )


async def look_at(broker: Broker, wanted: Wanted) -> Look:
    """Returns what a broker has now of what is to be taken over. Raises ClientError."""

    def is_taken(cluster: str, name: str, config: TopicConfig) -> bool:
        return not (
            name in wanted.left_out or is_brokers_own(name, broker.group, cluster) or refusal(name, config)
        )

    return await broker.look(is_taken)


def preview(broker: Broker, look: Look, wanted: Wanted) -> Report:
    """Returns what would come along of what a look has seen."""
    survey = _survey_of(look, wanted)
    for key, (first, end) in look.queues.items():
        survey.found[key] = FoundQueue(first, end, messages=end - first)
        survey.entries += end - first
    return _report(broker, look, wanted, survey)


def _survey_of(look: Look, wanted: Wanted) -> Survey:
    return Survey(look.tables, LookedAt(look), wanted.delay_levels_ms, wanted.left_out)


def _report(
    broker: Broker,
    look: Look,
    wanted: Wanted,
    survey: Survey,
    *,
    directory: str = "",
    is_complete: bool = False,
    last_index: int = -1,
    copied: int = 0,
) -> Report:
    origin = Origin(
        source=look.address,
        node=broker.group,
        is_store=False,
        directory=directory,
        is_complete=is_complete,
        first_index=0,
        last_index=last_index,
        last_term=0,
        committed_index=last_index,
        data_file_bytes=wanted.data_file_bytes,
        entries_copied=copied,
    )
    state = state_of(survey, broker.group, look.cluster)
    return report_of(survey, state, origin, _remarks(look, wanted))


def _remarks(look: Look, wanted: Wanted) -> list[str]:
    """Returns what whoever moves a broker should know, a sentence each."""
    remarks = [_NEW_PLACES]
    if (HALF_TOPIC, 0) in look.queues and HALF_OPERATIONS_TOPIC in look.unknown:
        remarks.append(_NO_DECISIONS)
    try:
        differ = bool(look.delay_levels) and parse_delay_levels(look.delay_levels) != wanted.delay_levels_ms
    except ValueError:
        differ = True
    if differ:
        remarks.append(f'delay levels: set broker.delay_levels = "{look.delay_levels}"')
    return remarks


def _named(key: QueueKey) -> str:
    return f"queue {key[1]} of {key[0]}"
