"""The commands that change the replicated state of a broker group, and their form in the log.

A command is the body of a record of the internal topic: a CBOR array, its first item the kind. Every version that the
group runs reads committed commands, so a kind or a field that a version does not know stops its node instead of letting
it diverge. A field may be added at the end, with a default that means what its absence meant.
"""

from typing import Final

import cbor2
import msgspec

from broker.remoting.bodies import SubscriptionGroupConfig, TopicConfig
from broker.state.release import FIRST_FORMAT, THIS_RELEASE


class _Command(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The form that all commands share: an array of the kind and the fields."""


class PutTopic(_Command, frozen=True, tag="put_topic"):
    """Creates a topic or replaces its settings; with `if_absent` an existing topic stays as it is.

    A topic that use creates, and not an administrator's order, is put `if_absent`: it must not undo an order that came
    in between. `group_ms` is the group's time, for the version of the table.
    """

    config: TopicConfig
    group_ms: int
    if_absent: bool = False


class DeleteTopic(_Command, frozen=True, tag="delete_topic"):
    """Forgets a topic, the consumer offsets and order locks in it."""

    topic: str
    group_ms: int


class PutGroup(_Command, frozen=True, tag="put_group"):
    """Creates a consumer group or replaces its settings; `if_absent` as with `PutTopic`."""

    config: SubscriptionGroupConfig
    group_ms: int
    if_absent: bool = False


class DeleteGroup(_Command, frozen=True, tag="delete_group"):
    """Forgets a consumer group and its order locks, with its consumer offsets if `clean_offsets` says so."""

    group: str
    clean_offsets: bool
    group_ms: int


class CommitOffsets(_Command, frozen=True, tag="commit_offsets"):
    """Sets consumer offsets; each item is (consumer group, topic, queue id, next offset).

    A consumer's report does not count where the consumer group was told to go elsewhere (`ResetOffsets`). The result
    says where that is: by (consumer group, topic, queue id) the offset to go to; None if all of the reports count. An
    administrator's order (`is_order`) always counts, and ends what an earlier `ResetOffsets` told.
    """

    offsets: tuple[tuple[str, str, int, int], ...]
    is_order: bool = False


class ResetOffsets(_Command, frozen=True, tag="reset_offsets"):
    """Sets consumer offsets and parks them, until consumers have followed; items as those of `CommitOffsets`."""

    offsets: tuple[tuple[str, str, int, int], ...]


class EndResets(_Command, frozen=True, tag="end_resets"):
    """Says that consumers have followed, where these are still the parked offsets; items as with `CommitOffsets`."""

    offsets: tuple[tuple[str, str, int, int], ...]


class ForgetOffsets(_Command, frozen=True, tag="forget_offsets"):
    """Forgets consumer offsets that are still these; items as those of `CommitOffsets`."""

    offsets: tuple[tuple[str, str, int, int], ...]


class LockQueues(_Command, frozen=True, tag="lock_queues"):
    """Asks for order locks, granted where free, expired or already the client's; the result names those queues.

    ``time_ms`` is the time by which locks are judged (broker/consumer_groups/locks_processor.py), ``ttl_ms`` the time
    for which one lives.
    """

    group: str
    client: str
    queues: tuple[tuple[str, int], ...]
    time_ms: int
    ttl_ms: int = 60_000


class UnlockQueues(_Command, frozen=True, tag="unlock_queues"):
    """Releases those of the queues' order locks that the client holds."""

    group: str
    client: str
    queues: tuple[tuple[str, int], ...]


class DeliverDelayed(_Command, frozen=True, tag="deliver_delayed"):
    """Announces deliveries of a delay level: the entries index + 1 .. index + count, of the same term, are to be those
    of the level's messages offset .. offset + count - 1, where `index` is the entry of this very command.

    So the log tells which of them were delivered, whatever happened to the leader in between
    (broker/delayed/delays.py).
    """

    level: int
    offset: int
    count: int
    index: int


class SettleDelayed(_Command, frozen=True, tag="settle_delayed"):
    """Says that exactly the messages before `offset` of a delay level have been delivered or dropped."""

    level: int
    offset: int


class CheckTransactions(_Command, frozen=True, tag="check_transactions"):
    """Counts that a producer is asked about these half messages, by their queue offsets; those that have been decided
    meanwhile are passed over (broker/transactions).
    """

    half_offsets: tuple[int, ...]


class ResumeTransaction(_Command, frozen=True, tag="resume_transaction"):
    """Counts anew how often a producer is asked about a half message, if it is undecided still."""

    half_offset: int


class DeliverTimed(_Command, frozen=True, tag="deliver_timed"):
    """Announces deliveries of timed messages: the entries that follow entry `index`, this very command's, in its term
    are to be those of the timer queue's units at `offsets`, in that order.

    `step` says what is done then (`log.queues.timer_index.Step`): all units before its third number whose due time in
    ms and offset are at most its first and second. What it covers and `offsets` does not name is dropped. All units
    before `floor` were done already.
    """

    offsets: tuple[int, ...]
    step: tuple[int, int, int]
    floor: int
    index: int


class SettleTimed(_Command, frozen=True, tag="settle_timed"):
    """Says all that is done, as steps of `DeliverTimed`: the last announcement may have come into the log in part."""

    steps: tuple[tuple[int, int, int], ...]


class BeginPortion(_Command, frozen=True, tag="begin_portion"):
    """Begins a writer's portion, again perhaps (broker/state/writers.py); the result is a `Begun`.

    `position` is the log's end before this command, `group_ms` the group's time.
    """

    topic: str
    writer: str
    number: int
    position: int
    group_ms: int


class EndPortion(_Command, frozen=True, tag="end_portion"):
    """Says that all messages of a writer's portion are stored."""

    topic: str
    writer: str
    number: int
    group_ms: int


class ForgetWriters(_Command, frozen=True, tag="forget_writers"):
    """Forgets those of the writers, each with its topic, that were not heard of since `before_ms`."""

    writers: tuple[tuple[str, str], ...]
    before_ms: int


class RaiseFormat(_Command, frozen=True, tag="raise_format"):
    """Says that from here on the group writes `format`, which all members read (broker/state/release.py)."""

    format: int


class RaiseHead(_Command, frozen=True, tag="raise_head"):
    """Says that the group keeps no message before a position of the log, at which an entry begins.

    A leader says so before it deletes these, and before it answers over a log from which it has deleted them as a
    follower (broker/replica/log_head.py).
    """

    position: int


class Several(_Command, frozen=True, tag="several"):
    """Commands that are applied together, in order; the result is the tuple of theirs."""

    commands: tuple["SingleCommand", ...]


SingleCommand = (
    PutTopic
    | DeleteTopic
    | PutGroup
    | DeleteGroup
    | CommitOffsets
    | ResetOffsets
    | EndResets
    | ForgetOffsets
    | LockQueues
    | UnlockQueues
    | DeliverDelayed
    | SettleDelayed
    | DeliverTimed
    | SettleTimed
    | CheckTransactions
    | ResumeTransaction
    | BeginPortion
    | EndPortion
    | ForgetWriters
    | RaiseFormat
    | RaiseHead
)
Command = SingleCommand | Several


class _AnyCommand(msgspec.Struct, frozen=True, array_like=True):
    """A command by itself. msgspec remembers how to read a class; a bare union it would analyse at every call."""

    command: Command


FORMAT_OF_COMMANDS: Final[dict[type[Command], int]] = {
    RaiseFormat: 2,
    BeginPortion: 2,
    EndPortion: 2,
    ForgetWriters: 2,
    RaiseHead: 3,
}
"""The format of a group since which a command is written; those that are not named are of the first one."""


class UnknownCommandError(Exception):
    """A committed command that this version cannot read: the node must not go on and diverge from its group."""


def format_of(command: Command) -> int:
    """Returns the format of a group in which the command may be written first."""
    singles = command.commands if isinstance(command, Several) else (command,)
    return max(
        (FORMAT_OF_COMMANDS.get(type(single), FIRST_FORMAT) for single in singles), default=FIRST_FORMAT
    )


def encode_command(command: Command) -> bytes:
    """The body of a command record.

    Raises `OverflowError` for numbers that the state cannot hold, whose form is MessagePack: such a command must not be
    committed, since no node could go on.
    """
    return cbor2.dumps(msgspec.msgpack.decode(msgspec.msgpack.encode(command)))


def deleted_topics(command: Command) -> list[str]:
    """Returns the topics that a command deletes."""
    singles = command.commands if isinstance(command, Several) else (command,)
    return [single.topic for single in singles if isinstance(single, DeleteTopic)]


def decode_command(body: bytes | memoryview, newest_format: int = THIS_RELEASE.newest_format) -> Command:
    """Returns the command in a record's body.

    Raises `UnknownCommandError` where a newer release wrote it: one that is of a format above `newest_format`.
    """
    fields = cbor2.loads(bytes(body))
    # For the error alone.
    kind = fields[0] if isinstance(fields, list) and fields else fields
    try:
        command = msgspec.convert((fields,), _AnyCommand).command
    except msgspec.ValidationError as error:
        raise UnknownCommandError(f"command {kind!r} is not known to this release: {error}") from error
    if format_of(command) > newest_format:
        raise UnknownCommandError(
            f"command {kind!r} is of format {format_of(command)}, this release reads formats up to {newest_format}"
        )
    return command
