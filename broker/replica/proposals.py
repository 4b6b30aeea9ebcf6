"""Proposals to a replica, and the interfaces of those who wait for one or observe the replica.

A proposal is either refused at once, with nothing left behind in the log, or it is in the log. Then its waiter hears
exactly one of two things, once: that it is committed, or that its outcome is unknown.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from broker.state.commands import Command
from log.dispatching.dispatch import Arrival
from log.formats.record import Buffer, Record


class NewMessage(msgspec.Struct, gc=False):
    """A message that the leader is to append: all fields of its record but those that the log and the leader fill in.

    A struct of msgspec, because one is made for every send: it costs a third of a class written in Python.
    """

    topic: str
    queue_id: int
    flag: int
    sys_flag: int
    """Bits `log.formats.record.SYS_FLAG_*`; those of the hosts' kinds are set by the record's encoder."""
    born_timestamp: int
    """Milliseconds, by the producer's clock."""
    born_host: bytes
    """The producer's address as `log.formats.record.pack_host` packs it."""
    reconsume_times: int
    body: Buffer
    properties: bytes
    prepared_transaction_offset: int = 0
    """The physical offset of its half message if the message ends a transaction, else 0."""


def stored_again(record: Record, topic: str, queue_id: int, properties: bytes) -> NewMessage:
    """Returns a message of the log as one for another queue: it has waited, or was sent back, or its transaction ended.

    If it belongs to a transaction, the caller adds that.
    """
    return NewMessage(
        topic,
        queue_id,
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.reconsume_times,
        record.body,
        properties,
    )


class Waiter(Protocol):
    """The one who waits for an entry to be committed: exactly one of the two methods is called, once."""

    def committed(self) -> None:
        """The entry is committed, dispatched and applied; or only committed, if it was agreed that this is enough."""

    def lost(self) -> None:
        """This node stopped leading first: whether the entry will be committed is unknown."""


class Observer(Protocol):
    """The node around the replica, which hears of its changes."""

    def role_changed(self) -> None:
        """Role, leader or readiness to serve has changed."""

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        """Queues have new committed messages."""

    def metadata_changed(self, command: Command) -> None:
        """A command was applied."""


def ignore(_: object = None) -> None:
    """Does nothing: the callback of a proposal that nobody waits for."""


@dataclass(slots=True, eq=False)
class BatchUnderWay:
    """A batch that is appended in slices, one a turn: in the hands of the replica, until it is over or lost."""

    is_lost: bool = False
    """The leadership ended first: nothing more of it is appended."""
    waiter: Waiter | None = None
    """The one who waits for the batch, once a part of it is in the log that is not all."""
    waiting: list[Waiter] = field(default_factory=list)
    """Waiters for the time when all that is in the log is applied, the batch included, whatever comes of it."""


@dataclass(slots=True, eq=False)
class CallbackWaiter:
    """Calls `_done` with the result of applying a command, None for a message; or `_lost`."""

    _done: Callable[[Any], None]
    _lost: Callable[[], None]
    result: Any = None
    """Set by the replica when the command is applied, before `committed`."""

    def committed(self) -> None:
        self._done(self.result)

    def lost(self) -> None:
        self._lost()
