"""Responses of megabytes, written one at a time (broker/requests/long_bodies.py says how).

What is written is memory until its end, and whoever wants much of it need only ask on many connections. So a request
that turns out to be long while another is answered waits for its end, and begins anew then: some of them in each turn,
until one turns out to be long again.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

from broker.node.ports import Requests
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.pieces import Pieces
from broker.requests.budget import Budget
from broker.requests.connection import Connection
from broker.requests.deadline import NEVER, Time
from broker.requests.long_bodies import Body
from broker.requests.responses import reply

_BEGUN_IN_A_TURN: Final = 50
"""Requests that have waited and begin anew in one turn. Each of them may have to wait again."""


class LongResponses:
    """Answers requests with bodies that may take several steps to write, one long body at a time."""

    def __init__(self, requests: Requests, time: Time) -> None:
        self._requests = requests
        self._time = time
        self._next = time.add_deadline(self._begin_next)
        """Due while requests wait and no long response is written."""
        self._is_writing = False
        """True while a long response is being written; any other long one waits until it has ended."""
        self._waiting: deque[tuple[Connection, RemotingCommand]] = deque()
        self._budget = Budget("another long response")

    def tell(
        self, connection: Connection, command: RemotingCommand, body: Body, remark: str | None = None
    ) -> Iterator[None]:
        """Answers a request with a body: at once if that takes one step.

        Raises `OverloadedError` where too many wait already, and what `body` raises.
        """
        is_long = False
        try:
            while True:
                try:
                    next(body)
                except StopIteration as finished:
                    written: Pieces = finished.value
                    reply(connection, command, ResponseCode.SUCCESS, remark, body=written)
                    return
                # What takes more than a step waits for the one that is written: their pieces would all be in memory.
                if not is_long and self._is_writing:
                    self._budget.take(connection, command)
                    self._waiting.append((connection, command))
                    return
                self._is_writing = is_long = True
                yield
                # Nobody would read the rest, and others wait for its end.
                if not self._requests.is_connected(connection):
                    return
        finally:
            self._ended(is_long)

    def _ended(self, was_long: bool) -> None:
        if was_long:
            assert self._is_writing, "two long responses were written at a time"
            self._is_writing = False
            if self._waiting:
                self._next.due_ns = self._time.now_ns

    def _begin_next(self) -> None:
        self._next.due_ns = NEVER
        for _ in range(min(len(self._waiting), _BEGUN_IN_A_TURN)):
            if self._is_writing:
                return  # its end goes on
            connection, command = self._waiting.popleft()
            self._budget.free(connection, command)
            if self._requests.is_connected(connection):
                # Made anew, from the state of today: nothing of it was kept while it waited.
                self._requests.handle_admitted(connection, command)
        if self._waiting and not self._is_writing:
            self._next.due_ns = self._time.now_ns
