"""The replicated state of a broker group: topics, groups, consumer offsets, order locks.

Everything that a failover must neither forget nor rewind is a command in the log (design, decision 5). A command is
decided by the leader, written as a record of the internal topic, and applied here by every replica once it is
committed, in log order. So this class is a pure function of the log: it knows no clock (a command carries the leader's
wall time where time matters), does no I/O and iterates only over insertion-ordered dicts.

A snapshot of this state, taken at an applied index, lets the head of the log be deleted and brings a replica back that
was away for longer than the log reaches.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import cbor2
import msgspec

from broker.remoting.bodies import DataVersion, SubscriptionGroupConfig, TopicConfig

SNAPSHOT_VERSION = 1

ORDER_LOCK_TTL_MS = 60_000
"""An order lock that is not refreshed for this long may be taken by another client (behaviour.md 8.5)."""


@dataclass(frozen=True, slots=True)
class PutTopic:
    """Creates a topic or replaces its configuration; with `if_absent` an existing topic stays as it is.

    What is created by use, and not by an administrator's order, is put `if_absent`: it must not undo an order that
    came in between.
    """

    config: TopicConfig
    wall_ms: int
    if_absent: bool = False


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Forgets a topic and the offsets that groups hold in it."""

    topic: str
    wall_ms: int


@dataclass(frozen=True, slots=True)
class PutGroup:
    """Creates a subscription group or replaces its configuration; `if_absent` as with `PutTopic`."""

    config: SubscriptionGroupConfig
    wall_ms: int
    if_absent: bool = False


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Forgets a subscription group, with its offsets if asked."""

    group: str
    clean_offsets: bool
    wall_ms: int


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Sets consumer offsets; each item is (group, topic, queue id, next offset)."""

    offsets: tuple[tuple[str, str, int, int], ...]


@dataclass(frozen=True, slots=True)
class LockQueues:
    """Asks for order locks; granted where free, expired or already the client's."""

    group: str
    client: str
    queues: tuple[tuple[str, int], ...]
    wall_ms: int


@dataclass(frozen=True, slots=True)
class UnlockQueues:
    """Releases those of the queues' order locks that the client holds."""

    group: str
    client: str
    queues: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class DeliverDelayed:
    """Announces deliveries of a delay level: the entries index + 1 .. index + count, of the same term, are to be those
    of the level's messages offset .. offset + count - 1, where `index` is the entry of this very command.

    So what was delivered can be read from the log whatever happened to the leader in between (broker/delays.py).
    """

    level: int
    offset: int
    count: int
    index: int


@dataclass(frozen=True, slots=True)
class SettleDelayed:
    """Says that exactly the messages before `offset` of a delay level have been delivered or dropped."""

    level: int
    offset: int


@dataclass(frozen=True, slots=True)
class Several:
    """Commands that are applied together, in order; the result is the tuple of theirs."""

    commands: "tuple[SingleCommand, ...]"


SingleCommand = (
    PutTopic
    | DeleteTopic
    | PutGroup
    | DeleteGroup
    | CommitOffsets
    | LockQueues
    | UnlockQueues
    | DeliverDelayed
    | SettleDelayed
)
Command = SingleCommand | Several


class UnknownCommandError(Exception):
    """A committed command that this version cannot read: the node must not go on and diverge from its group."""


def encode_command(command: Command) -> bytes:
    """The body of a command record: a CBOR array, its first item the kind."""
    return cbor2.dumps(_fields_of(command))


def _fields_of(command: Command) -> list[Any]:
    match command:
        case PutTopic(config, wall_ms, if_absent):
            fields: list[Any] = ["put_topic", msgspec.to_builtins(config), wall_ms, if_absent]
        case DeleteTopic(topic, wall_ms):
            fields = ["delete_topic", topic, wall_ms]
        case PutGroup(group_config, wall_ms, if_absent):
            fields = ["put_group", msgspec.to_builtins(group_config), wall_ms, if_absent]
        case DeleteGroup(group, clean_offsets, wall_ms):
            fields = ["delete_group", group, clean_offsets, wall_ms]
        case CommitOffsets(offsets):
            fields = ["commit_offsets", offsets]
        case LockQueues(group, client, queues, wall_ms):
            fields = ["lock_queues", group, client, queues, wall_ms]
        case UnlockQueues(group, client, queues):
            fields = ["unlock_queues", group, client, queues]
        case DeliverDelayed(level, offset, count, index):
            fields = ["deliver_delayed", level, offset, count, index]
        case SettleDelayed(level, offset):
            fields = ["settle_delayed", level, offset]
        case Several(commands):
            fields = ["several", [_fields_of(single) for single in commands]]
    return fields


def decode_command(body: bytes | memoryview) -> Command:
    """The command in a record's body; `UnknownCommandError` when a newer version wrote it."""
    kind, *fields = cbor2.loads(bytes(body))
    if kind == "several":
        return Several(tuple(_single(*single) for single in fields[0]))
    return _single(kind, *fields)


def _single(kind: str, *fields: Any) -> SingleCommand:
    match kind:
        case "put_topic":
            return PutTopic(msgspec.convert(fields[0], TopicConfig), *fields[1:])
        case "delete_topic":
            return DeleteTopic(*fields)
        case "put_group":
            return PutGroup(msgspec.convert(fields[0], SubscriptionGroupConfig), *fields[1:])
        case "delete_group":
            return DeleteGroup(*fields)
        case "commit_offsets":
            return CommitOffsets(
                tuple((group, topic, queue, offset) for group, topic, queue, offset in fields[0])
            )
        case "lock_queues":
            return LockQueues(fields[0], fields[1], _queues(fields[2]), fields[3])
        case "unlock_queues":
            return UnlockQueues(fields[0], fields[1], _queues(fields[2]))
        case "deliver_delayed":
            return DeliverDelayed(*fields)
        case "settle_delayed":
            return SettleDelayed(*fields)
    raise UnknownCommandError(f"command kind {kind!r} is not known to this version")


def _queues(items: Iterable[Any]) -> tuple[tuple[str, int], ...]:
    return tuple((topic, queue_id) for topic, queue_id in items)


@dataclass(slots=True)
class OrderLock:
    """Who may consume a queue in order, and since when (leader's wall clock, ms)."""

    client: str
    refreshed_ms: int


@dataclass(frozen=True, slots=True)
class DelayProgress:
    """How far a delay level is delivered: all before `offset`, and of the `count` messages from there on those whose
    entries follow entry `index` in its term (see `DeliverDelayed`); `count` is 0 where nothing is left open.
    """

    offset: int = 0
    count: int = 0
    index: int = -1


@dataclass(slots=True)
class Metadata:
    """The state machine. `apply` is the only way to change it, and is called with committed commands in log order."""

    topics: dict[str, TopicConfig] = field(default_factory=dict)
    groups: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    offsets: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    """(group, topic) -> queue id -> next offset to consume."""
    locks: dict[tuple[str, str, int], OrderLock] = field(default_factory=dict)
    """(group, topic, queue id) -> holder."""
    delays: dict[int, DelayProgress] = field(default_factory=dict)
    """By delay level."""
    topics_version: DataVersion = field(default_factory=DataVersion)
    groups_version: DataVersion = field(default_factory=DataVersion)

    def apply(self, command: Command) -> Any:
        """Carries out one committed command; the result is what the leader answers its client with."""
        match command:
            case PutTopic(config, wall_ms, if_absent):
                if if_absent and config.topic_name in self.topics:
                    return None
                self.topics[config.topic_name] = config
                self.topics_version = _next_version(self.topics_version, wall_ms)
            case DeleteTopic(topic, wall_ms):
                self.topics.pop(topic, None)
                for key in [key for key in self.offsets if key[1] == topic]:
                    del self.offsets[key]
                for lock_key in [lock_key for lock_key in self.locks if lock_key[1] == topic]:
                    del self.locks[lock_key]
                self.topics_version = _next_version(self.topics_version, wall_ms)
            case PutGroup(group_config, wall_ms, if_absent):
                if if_absent and group_config.group_name in self.groups:
                    return None
                self.groups[group_config.group_name] = group_config
                self.groups_version = _next_version(self.groups_version, wall_ms)
            case DeleteGroup(group, clean_offsets, wall_ms):
                self.groups.pop(group, None)
                if clean_offsets:
                    for key in [key for key in self.offsets if key[0] == group]:
                        del self.offsets[key]
                for lock_key in [lock_key for lock_key in self.locks if lock_key[0] == group]:
                    del self.locks[lock_key]
                self.groups_version = _next_version(self.groups_version, wall_ms)
            case CommitOffsets(offsets):
                for group, topic, queue_id, offset in offsets:
                    self.offsets.setdefault((group, topic), {})[queue_id] = offset
            case LockQueues(group, client, queues, wall_ms):
                return self._lock(group, client, queues, wall_ms)
            case UnlockQueues(group, client, queues):
                for topic, queue_id in queues:
                    lock = self.locks.get((group, topic, queue_id))
                    if lock is not None and lock.client == client:
                        del self.locks[(group, topic, queue_id)]
            case DeliverDelayed(level, offset, count, index):
                self.delays[level] = DelayProgress(offset, count, index)
            case SettleDelayed(level, offset):
                self.delays[level] = DelayProgress(offset)
            case Several(commands):
                return tuple(self.apply(single) for single in commands)
        return None

    def _lock(
        self, group: str, client: str, queues: tuple[tuple[str, int], ...], wall_ms: int
    ) -> tuple[tuple[str, int], ...]:
        granted = []
        for topic, queue_id in queues:
            lock = self.locks.get((group, topic, queue_id))
            if lock is None or lock.client == client or wall_ms - lock.refreshed_ms > ORDER_LOCK_TTL_MS:
                self.locks[(group, topic, queue_id)] = OrderLock(client, wall_ms)
                granted.append((topic, queue_id))
        return tuple(granted)

    def snapshot(self) -> bytes:
        """All of the state as CBOR; `restore` of it gives an equal `Metadata`."""
        return cbor2.dumps(
            {
                "version": SNAPSHOT_VERSION,
                "topics": [msgspec.to_builtins(config) for config in self.topics.values()],
                "groups": [msgspec.to_builtins(config) for config in self.groups.values()],
                "offsets": [[group, topic, queues] for (group, topic), queues in self.offsets.items()],
                "locks": [[*key, lock.client, lock.refreshed_ms] for key, lock in self.locks.items()],
                "delays": [[level, d.offset, d.count, d.index] for level, d in self.delays.items()],
                "topics_version": msgspec.to_builtins(self.topics_version),
                "groups_version": msgspec.to_builtins(self.groups_version),
            }
        )

    @classmethod
    def restore(cls, data: bytes) -> "Metadata":
        """The state that `snapshot` wrote; `UnknownCommandError` when a newer version wrote it."""
        fields = cbor2.loads(data)
        if fields["version"] != SNAPSHOT_VERSION:
            raise UnknownCommandError(
                f"metadata snapshot of version {fields['version']}, this version reads {SNAPSHOT_VERSION}"
            )
        topics = [msgspec.convert(item, TopicConfig) for item in fields["topics"]]
        groups = [msgspec.convert(item, SubscriptionGroupConfig) for item in fields["groups"]]
        return cls(
            topics={config.topic_name: config for config in topics},
            groups={config.group_name: config for config in groups},
            offsets={(group, topic): dict(queues) for group, topic, queues in fields["offsets"]},
            locks={
                (group, topic, queue_id): OrderLock(client, refreshed_ms)
                for group, topic, queue_id, client, refreshed_ms in fields["locks"]
            },
            delays={level: DelayProgress(*progress) for level, *progress in fields["delays"]},
            topics_version=msgspec.convert(fields["topics_version"], DataVersion),
            groups_version=msgspec.convert(fields["groups_version"], DataVersion),
        )


def _next_version(version: DataVersion, wall_ms: int) -> DataVersion:
    return msgspec.structs.replace(version, counter=version.counter + 1, timestamp=wall_ms)
