"""The replicated state of a broker group: topics, consumer groups, consumer offsets, order locks, open transactions.

Everything that a failover must neither forget nor rewind is a command in the log (docs/architecture.md, decisions). The
leader decides a command and writes it as a record of the internal topic; every replica applies it here once it is
committed, in log order. So the state is a pure function of the log: it knows no clock (a command carries the leader's
wall time where time matters), does no I/O and iterates only over insertion-ordered dicts.

A snapshot of this state, taken at an applied index, lets the head of the log be deleted and brings a replica back that
was away for longer than the log reaches.
"""

from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Final

import msgspec

from broker.remoting.bodies import DataVersion, SubscriptionGroupConfig, TopicConfig
from broker.remoting.steps import finished
from broker.requests.long_bodies import whole
from broker.requests.processing import Pace
from broker.state.commands import (
    BeginPortion,
    CheckTransactions,
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    DeliverDelayed,
    DeliverTimed,
    EndPortion,
    EndResets,
    ForgetOffsets,
    ForgetWriters,
    LockQueues,
    PutGroup,
    PutTopic,
    RaiseFormat,
    RaiseHead,
    ResetOffsets,
    ResumeTransaction,
    SettleDelayed,
    SettleTimed,
    Several,
    UnknownCommandError,
    UnlockQueues,
)
from broker.state.open_transactions import Transactions
from broker.state.order_locks import LockFields, LockTable
from broker.state.parked_offsets import ParkedOffsets
from broker.state.release import FIRST_FORMAT
from broker.state.snapshot_reading import MessagePackReader, Read, read_cbor_map
from broker.state.stored_offsets import OffsetFields, StoredOffsets
from broker.state.timer_progress import TimerProgress
from broker.state.topic_rules import queues_of
from broker.state.writers import WriterFields, Writers
from broker.state.writing import (
    ROWS_AT_ONCE,
    MessagePackWriter,
    Rows,
    Written,
    array_head,
    cbor_map,
    map_head,
    slices,
)

SNAPSHOT_VERSION = 2
_VERSION_OF_CBOR_TABLES = 1
"""The tables themselves were CBOR, which took seconds where there was much."""


@dataclass(frozen=True, slots=True)
class DelayProgress:
    """The progress of a delay level: all before `offset` are delivered, and of the `count` messages from there on those
    whose entries follow entry `index` in its term (see `DeliverDelayed`); `count` is 0 where nothing is left open.
    """

    offset: int = 0
    count: int = 0
    index: int = -1


@dataclass(slots=True)
class Metadata:
    """The state machine. `apply` is the only way to change it, and is called with committed commands in log order."""

    topics: dict[str, TopicConfig] = field(default_factory=dict)
    groups: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    offsets: StoredOffsets = field(default_factory=StoredOffsets)
    """By (consumer group, topic), queue id -> next offset to consume."""
    nameless_groups: int = field(default=0, compare=False)
    """The number of consumer groups with offsets that are not in `groups`: offsets are all that is known of them."""
    queue_count: int = field(default=0, compare=False)
    """The number of all topics' queues, kept along: `limits.max_queues` asks for it with every topic."""
    parked: ParkedOffsets = field(default_factory=ParkedOffsets)
    """Consumer offsets that administrators have set and no consumer has followed yet."""
    locks: LockTable = field(default_factory=LockTable)
    delays: dict[int, DelayProgress] = field(default_factory=dict)
    """By delay level."""
    timers: TimerProgress = field(default_factory=TimerProgress)
    writers: Writers = field(default_factory=Writers)
    transactions: Transactions = field(default_factory=Transactions)
    """The open ones. Decisions are messages and no commands: the replica hands them over (`apply_record`)."""
    topics_version: DataVersion = field(default_factory=DataVersion)
    groups_version: DataVersion = field(default_factory=DataVersion)
    format: int = FIRST_FORMAT
    """The group writes in this format, snapshots of this state too (broker/state/release.py). It never falls."""
    head_position: int = 0
    """The position at which the group's log begins for clients: each node keeps what is there and behind it, unless it
    lacks the room, and tells of nothing before. It never falls."""
    gone: list[object] = field(default_factory=list, compare=False, repr=False)
    """The objects that a command has taken out, and are no part of the state any more: to free a hundred thousand
    objects takes long, so whoever has applied the command takes them, and lets some of them go at a time."""

    @property
    def group_count(self) -> int:
        """The number of consumer groups that have settings or offsets."""
        return len(self.groups) + self.nameless_groups

    def knows_group(self, name: str) -> bool:
        """Tells whether the consumer group has settings or offsets."""
        return name in self.groups or name in self.offsets.by_group

    def apply(self, command: Command) -> Any:
        """Carries out one committed command; the result is for the leader, which answers its client with it."""
        match command:
            case PutTopic(config, group_ms, if_absent):
                if if_absent and config.topic_name in self.topics:
                    return None  # and the version stays: nobody need be told
                self._count_queues(config.topic_name, config)
                self.topics[config.topic_name] = config
                self.topics_version = _next_version(self.topics_version, group_ms)
            case DeleteTopic(topic, group_ms):
                self._delete_topic(topic)
                self.topics_version = _next_version(self.topics_version, group_ms)
            case PutGroup(group_config, group_ms, if_absent):
                if if_absent and group_config.group_name in self.groups:
                    return None
                name = group_config.group_name
                # A consumer group of which there were only offsets has settings now.
                self.nameless_groups -= name not in self.groups and name in self.offsets.by_group
                self.groups[name] = group_config
                self.groups_version = _next_version(self.groups_version, group_ms)
            case DeleteGroup(group, clean_offsets, group_ms):
                self._delete_group(group, clean_offsets=clean_offsets)
                self.groups_version = _next_version(self.groups_version, group_ms)
            case CommitOffsets(offsets, is_order):
                if not is_order:
                    return self._take_reports(offsets)
                for group, topic, queue_id, _ in offsets:
                    # An administrator's order ends an earlier one, which consumers need not follow any more.
                    self.parked.end(group, topic, queue_id)
                self._commit_offsets(offsets)
            case ResetOffsets(offsets):
                self._commit_offsets(offsets)
                # A topic that was deleted meanwhile has no offsets, parked ones neither.
                for group, topic, queue_id, offset in offsets:
                    if topic in self.topics:
                        self.parked.offsets.put(group, topic, queue_id, offset)
            case EndResets(offsets):
                for item in offsets:
                    self.parked.end(*item)
            case ForgetOffsets(offsets):
                self._forget_unchanged(offsets)
            case LockQueues():
                return self.locks.judge(command)
            case UnlockQueues():
                self.locks.release(command)
            case DeliverDelayed(level, offset, count, index):
                self.delays[level] = DelayProgress(offset, count, index)
            case SettleDelayed(level, offset):
                self.delays[level] = DelayProgress(offset)
            case DeliverTimed():
                self.timers = self.timers.announced(command)
            case SettleTimed():
                self.timers = self.timers.settled(command)
            case CheckTransactions(half_offsets):
                self.transactions.checked(half_offsets)
            case ResumeTransaction(half_offset):
                self.transactions.resumed(half_offset)
            case BeginPortion(topic, writer, number, position, group_ms):
                # One that was deleted in between has no writers: whoever asked is told so.
                if topic in self.topics:
                    return self.writers.begin(topic, writer, number, position, group_ms)
            case EndPortion(topic, writer, number, group_ms):
                self.writers.end(topic, writer, number, group_ms)
            case ForgetWriters(writers, before_ms):
                self.writers.forget(writers, before_ms)
            case RaiseFormat(version):
                self.format = max(self.format, version)  # two leaders may have said so, one behind the other
            case RaiseHead(position):
                # As with the format: the head never falls, in whatever order two leaders have raised it.
                self.head_position = max(self.head_position, position)
            case Several(commands):
                return tuple(self.apply(single) for single in commands)
        return None

    def _delete_topic(self, topic: str) -> None:
        """Deletes a topic, with all that is noted of its queues."""
        # Before the topic goes, of which it asks the number.
        self._count_queues(topic, None)
        self.topics.pop(topic, None)
        for group in self.offsets.forget_topic(topic):
            self._offsets_forgotten(group)
        self.parked.offsets.forget_topic(topic)
        self.locks.forget_topic(topic)
        self.writers.forget_topic(topic)

    def _delete_group(self, group: str, *, clean_offsets: bool) -> None:
        """Deletes a consumer group, with its locks and resets, and if so wished with its offsets.

        A consumer group may have had hundreds of thousands of these: they go to `gone`, and are let go of in turns.
        """
        if self.groups.pop(group, None) is not None:
            # Its offsets are all that is left of it, unless they go, too.
            self.nameless_groups += group in self.offsets.by_group
        if clean_offsets and group in self.offsets.by_group:
            self.gone += self.offsets.forget_group(group)
            self._offsets_forgotten(group)
        self.gone += self.parked.offsets.forget_group(group)
        # Another table, so that the locks that go, maybe all of them, are freed in steps with the rest.
        locks = self.locks.without_group(group)
        if locks is not self.locks:
            self.gone += [*self.locks, *self.locks.values()]
            self.locks = locks

    def _count_queues(self, topic: str, config: TopicConfig | None) -> None:
        """Counts the queues of a topic that will have these settings, or be gone."""
        before = self.topics.get(topic)
        self.queue_count += (0 if config is None else queues_of(config)) - (
            0 if before is None else queues_of(before)
        )

    def _take_reports(
        self, offsets: tuple[tuple[str, str, int, int], ...]
    ) -> dict[tuple[str, str, int], int] | None:
        """Takes consumers' reports, but for queues with a parked offset: they do not count there.

        Returns where the reporters of these are to go; None if there is nothing that is parked.
        """
        if not self.parked.offsets:
            self._commit_offsets(offsets)
            return None
        targets = {item[:3]: self.parked.get(*item[:3]) for item in offsets}
        self._commit_offsets(item for item in offsets if targets[item[:3]] is None)
        return {key: target for key, target in targets.items() if target is not None}

    def _commit_offsets(self, offsets: Iterable[tuple[str, str, int, int]]) -> None:
        for group, topic, queue_id, offset in offsets:
            if topic not in self.topics:
                continue  # deleted since: when it is created again, nobody has read anything of it
            if group not in self.offsets.by_group:
                # Before the offset is put: it makes the consumer group one that has offsets.
                self.nameless_groups += group not in self.groups
            self.offsets.put(group, topic, queue_id, offset)

    def _offsets_forgotten(self, group: str) -> None:
        """Takes a consumer group that had nothing but offsets out of the count, if the last of them was forgotten."""
        self.nameless_groups -= group not in self.groups and group not in self.offsets.by_group

    def _forget_unchanged(self, offsets: Iterable[tuple[str, str, int, int]]) -> None:
        for group, topic, queue_id, offset in offsets:
            # One that was reported since is somebody's.
            if self.offsets.get((group, topic), {}).get(queue_id) == offset:
                self.parked.end(group, topic, queue_id)
                self.offsets.remove(group, topic, queue_id)
                self._offsets_forgotten(group)

    def view(self) -> "Metadata":
        """Returns the state as it is now, whatever is applied from here on: what is in its tables is never changed, but
        replaced, and tables are copied without a step of Python for each row.
        """
        assert self.nameless_groups == len(self.offsets.by_group.keys() - self.groups.keys()), (
            "the count moves with the groups"
        )
        return replace(
            self,
            topics=self.topics.copy(),
            groups=self.groups.copy(),
            offsets=self.offsets.view(),
            parked=ParkedOffsets(self.parked.offsets.view()),
            locks=LockTable(self.locks),
            gone=[],
            delays=self.delays.copy(),
            writers=self.writers.view(),
            transactions=self.transactions.view(),
        )

    def parts(self) -> list[object]:
        """Returns all that the tables hold, to be let go some of it after the other."""
        offsets = chain.from_iterable(topics.values() for topics in self.offsets.by_group.values())
        return [*self.topics.values(), *self.groups.values(), *self.locks, *self.locks.values(), *offsets]

    def written(self, rows_at_once: int) -> Written:
        """Writes the whole state, a view if anything may be applied meanwhile; `restore` gives an equal `Metadata`."""
        pieces = yield from MessagePackWriter(rows_at_once).map(self.tables(rows_at_once))
        return cbor_map({"version": SNAPSHOT_VERSION, "tables": pieces})

    def tables(self, rows_at_once: int) -> dict[str, Any]:
        """Returns what a snapshot has of the state, by name: `Rows`, and what else a `MessagePackWriter` writes."""

        def rows(table: Sized, members: Iterable[Any]) -> Rows:
            return Rows(len(table), slices(members, rows_at_once))

        tables: dict[str, Any] = {
            "topics": Rows(len(self.topics), self._topic_slices(rows_at_once)),
            "groups": rows(self.groups, self.groups.values()),
            "offsets": self.offsets.rows(rows_at_once),
            "locks": self.locks.rows(rows_at_once),
            "delays": [(level, d.offset, d.count, d.index) for level, d in self.delays.items()],
            "parked": self.parked.offsets.rows(rows_at_once),
            "timers": self.timers.to_fields(),
            "transactions": self.transactions.to_fields(),
            "topics_version": self.topics_version,
            "groups_version": self.groups_version,
        }
        # What came later is left out as long as it says what its absence says (`_Tables`).
        if self.format != FIRST_FORMAT:
            tables["format"] = self.format
        if self.head_position:
            tables["head_position"] = self.head_position
        if self.writers.portions:
            tables["writers"] = self.writers.rows(rows_at_once)
        assert not tables.keys() - set(_Tables.__struct_fields__), "what is written can be read"
        return tables

    def _topic_slices(self, at_once: int) -> Iterator[list[TopicConfig]]:
        count = 0
        for some in slices(self.topics.values(), at_once):
            count += sum(map(queues_of, some))
            yield some
        assert self.queue_count == count, (
            f"{self.queue_count} queues are counted, of topics that have {count}"
        )

    def snapshot(self) -> bytes:
        """Returns the whole state as bytes."""
        return whole(self.written(ROWS_AT_ONCE))

    @classmethod
    def restore(cls, data: bytes) -> "Metadata":
        """The state that `snapshot` wrote. Raises as `read`."""
        return finished(cls.read(data, ROWS_AT_ONCE))

    @classmethod
    def read(cls, data: bytes | memoryview, rows_at_once: int) -> Read["Metadata"]:
        """Reads the state that `written` wrote.

        Raises `UnknownCommandError` when a newer version wrote it, and other errors for malformed bytes.
        """
        fields = read_cbor_map(data)
        version = fields.pop("version")
        state, pace = cls(), Pace(rows_at_once)
        if version == SNAPSHOT_VERSION:
            tables = yield from state._read_tables(fields["tables"], rows_at_once, pace)
        elif version == _VERSION_OF_CBOR_TABLES:
            tables = msgspec.convert(fields, _Tables)
            for name in _ROWS:
                state._take(name, getattr(tables, name) or [])
        else:
            raise UnknownCommandError(
                f"metadata snapshot of version {version}, this version reads those up to {SNAPSHOT_VERSION}"
            )
        # Counted when both tables are here: a map's members may stand in any order.
        state.nameless_groups = len(state.offsets.by_group.keys() - state.groups.keys())
        state.delays = {level: DelayProgress(*progress) for level, *progress in tables.delays}
        state.timers = TimerProgress.from_fields(tables.timers)
        state.transactions = yield from Transactions.read(tables.transactions, rows_at_once, pace)
        state.topics_version = tables.topics_version
        state.groups_version = tables.groups_version
        state.format = tables.format
        state.head_position = tables.head_position
        return state

    def _read_tables(self, data: memoryview, rows_at_once: int, pace: Pace) -> Read["_Tables"]:
        """Takes the rows of all tables, and returns what else there is: the tables without these rows."""
        reader = MessagePackReader(data, rows_at_once, pace)
        count = reader.enter()
        if count > len(_Tables.__struct_fields__):
            raise msgspec.DecodeError(f"{count} tables")
        rest = [map_head(count)]
        for _ in range(count):
            name = reader.value()
            rest.append(name)
            table = msgspec.msgpack.decode(name, type=str)
            # Some tables may be nil (`_Tables`), and have no rows then.
            if table in _ROWS and reader.is_at_array:
                yield from reader.rows(_ROWS[table], partial(self._take, table))
                # Its rows are taken already: what is left is read as a table without any.
                rest.append(array_head(0))
            else:
                rest.append(reader.value())
        reader.end()
        return msgspec.msgpack.decode(b"".join(rest), type=_Tables)

    def _take(self, table: str, rows: list[Any]) -> None:
        """Adds rows of a table of a snapshot."""
        match table:
            case "topics":
                for config in rows:
                    self._count_queues(config.topic_name, config)
                    self.topics[config.topic_name] = config
            case "groups":
                self.groups.update((config.group_name, config) for config in rows)
            case "offsets":
                self.offsets.take(rows)
            case "parked":
                self.parked.offsets.take(rows)
            case "locks":
                self.locks.take(rows)
            case "writers":
                self.writers.take(rows)
            case _:
                raise AssertionError(f"no table has the name {table}")


class _Tables(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True, gc=False):
    """The content of a snapshot.

    A field may be added, with a default that means what its absence meant. It is left out while it has that value, as
    it must have until the group's format is the one that brought the field: so older releases can read the snapshot.
    """

    topics: list[TopicConfig]
    groups: list[SubscriptionGroupConfig]
    offsets: OffsetFields
    locks: LockFields
    delays: list[tuple[int, int, int, int]]
    parked: OffsetFields | None = None
    timers: list[Any] | None = None
    transactions: list[Any] | None = None
    topics_version: DataVersion
    groups_version: DataVersion
    format: int = FIRST_FORMAT
    """Since format 2."""
    writers: WriterFields | None = None
    """Since format 2."""
    head_position: int = 0
    """Since format 3."""


_ROWS: Final[dict[str, msgspec.msgpack.Decoder[list[Any]]]] = {
    "topics": msgspec.msgpack.Decoder(list[TopicConfig]),
    "groups": msgspec.msgpack.Decoder(list[SubscriptionGroupConfig]),
    "offsets": msgspec.msgpack.Decoder(OffsetFields),
    "parked": msgspec.msgpack.Decoder(OffsetFields),
    "locks": msgspec.msgpack.Decoder(LockFields),
    "writers": msgspec.msgpack.Decoder(WriterFields),
}
"""The tables of `_Tables` that are read some rows after the other."""


def _next_version(version: DataVersion, group_ms: int) -> DataVersion:
    # As DataVersion.nextVersion of RocketMQ: a counter that rises, and when.
    return msgspec.structs.replace(version, counter=version.counter + 1, timestamp=group_ms)
