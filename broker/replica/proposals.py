"""What is proposed to a replica, and what it says to those who propose and to those who watch it.

A proposal is refused at once, with nothing left behind in the log, or is in the log; then its waiter hears exactly one
of two things, that it is committed or that its outcome is unknown. There is no third answer, and none comes twice.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from broker.state.commands import Command
from log.dispatch import Arrival
from log.record import Buffer, Record


class NewMessage(msgspec.Struct, gc=False):
    """A message that the leader is to append: all that its record says but what the log and the leader give it.

    A struct of msgspec, because one is made for every send: it costs a third of a class written in Python.
    """

    topic: str
    queue_id: int
    flag: int
    sys_flag: int
    """Bits `log.record.SYS_FLAG_*`; those of the hosts' kinds are set by the record's encoder."""
    born_timestamp: int
    """Milliseconds, by the producer's clock."""
    born_host: bytes
    """The producer's address as `log.record.pack_host` packs it."""
    reconsume_times: int
    body: Buffer
    properties: bytes
    prepared_transaction_offset: int = 0
    """Of a message that ends a transaction: the physical offset of its half message; of any other 0."""


def stored_again(record: Record, topic: str, queue_id: int, properties: bytes) -> NewMessage:
    """A message that is in the log, for another queue: delivered after it has waited, sent back, or decided.

    Its transaction, if it is of one, is the caller's to add.
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
    """Whoever waits for an entry to be committed: exactly one of the two is called, once."""

    def committed(self) -> None:
        """The entry is committed, dispatched and applied; or only committed, if it was agreed that this is enough."""

    def lost(self) -> None:
        """This node stopped leading first: whether the entry will be committed is unknown."""


class Observer(Protocol):
    """What the node around the replica wants to know."""

    def role_changed(self) -> None:
        """Role, leader or readiness to serve is now another."""

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        """Queues have new committed messages."""

    def metadata_changed(self, command: Command) -> None:
        """A command was applied."""


def ignore(_: object = None) -> None:
    """For a proposal that nobody waits for."""


class CallbackWaiter:
    """Calls `done` with the result of applying a command, None for a message; or `lost`."""

    __slots__ = ("_done", "_lost", "result")

    def __init__(self, done: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._done = done
        self._lost = lost
        self.result: Any = None
        """Set by the replica when the command is applied, before `committed`."""

    def committed(self) -> None:
        self._done(self.result)

    def lost(self) -> None:
        self._lost()
