"""The requests of a server's clients that wait for their responses, known by what comes and goes on their connections.

It makes no difference here which node answers a request and how it gets there: on a connection that lives, each request
must be answered within the time for which it may be held. `judges/waits.py` asks for those that are overdue.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from broker.node import client_calls
from broker.remoting.codes import PullSysFlag, RequestCode
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import RemotingError
from broker.remoting.frame import whole_commands
from broker.remoting.headers import PullMessageHeader
from broker.requests.connection import Buffer, Connection
from simulation.scheduler import MILLISECOND

Handler = Callable[[Connection, RemotingCommand], None]

_PULLS: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
_UNTIL_DONE: Final = frozenset({RequestCode.TRIVET_CHANGE_GROUP})
"""Requests that are answered when what they ask for is done, however long that takes."""
_REPLIES: Final = frozenset({RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2})
"""Requests that are answered when another client has answered; its node may be one that nobody hears from."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A request that came, and is owed a response from `due_ns` on, in true time."""

    code: int
    due_ns: int


class Unanswered:
    """The requests that the clients of one process wait for."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._requests: dict[Connection, dict[int, Asked]] = {}
        """By connection and opaque."""

    def before(self, handle: Handler) -> Handler:
        """Returns a handler that notes a request and then has `handle` take it."""

        def asked(connection: Connection, command: RemotingCommand) -> None:
            self.asked(connection, command)
            handle(connection, command)

        return asked

    def asked(self, connection: Connection, command: RemotingCommand) -> None:
        """A request has come."""
        if not (command.is_one_way or command.is_response or command.code in _UNTIL_DONE):
            due_ns = self._now_ns() + held_ns(command)
            self._requests.setdefault(connection, {})[command.opaque] = Asked(command.code, due_ns)

    def sent(self, connection: Connection, buffers: Sequence[Buffer]) -> None:
        """Whole frames leave for a client."""
        waiting = self._requests.get(connection)
        if waiting:
            for command in whole_commands(b"".join(buffers)):
                if command.is_response:
                    waiting.pop(command.opaque, None)

    def lost(self, connection: Connection) -> None:
        """A connection has ended."""
        self._requests.pop(connection, None)

    def overdue(self) -> Iterator[Asked]:
        """Yields what should have been answered by now."""
        now_ns = self._now_ns()
        for waiting in self._requests.values():
            for asked in waiting.values():
                if asked.due_ns <= now_ns:
                    yield asked


def held_ns(command: RemotingCommand) -> int:
    """Returns for how long a request may be held, as it says or for another client."""
    if command.code in _REPLIES:
        return client_calls.TIMEOUT_NS
    if command.code not in _PULLS:
        return 0
    try:
        header = command.decode_fields(PullMessageHeader)
    except RemotingError:
        return 0
    return header.suspend_timeout_ms * MILLISECOND if header.sys_flag & PullSysFlag.SUSPEND else 0
