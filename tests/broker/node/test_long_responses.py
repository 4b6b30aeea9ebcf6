"""Answers that take steps are written one at a time; who has waited goes on some at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from typing import Any, cast

from broker.node.long_responses import _BEGUN_IN_A_TURN, LongResponses
from broker.remoting.command import RemotingCommand, request
from broker.remoting.pieces import Pieces
from broker.requests.connection import Connection, Outgoing
from broker.requests.deadline import Time


class Rig:
    """A node that asks for an answer of `steps` steps whenever a request is handled."""

    def __init__(self) -> None:
        self.time = Time(0, 0)
        self.answers = LongResponses(cast(Any, self), self.time)
        self.steps = 1
        self.under_way: deque[Iterator[None]] = deque()
        self.begun = 0
        self.outgoing = Outgoing()

    def is_connected(self, connection: Connection) -> bool:
        return not connection.aborted

    def handle_admitted(self, connection: Connection, command: RemotingCommand) -> None:
        self.begun += 1

        def body() -> Generator[None, None, Pieces]:
            for _ in range(self.steps):
                yield
            return Pieces()

        steps = self.answers.tell(connection, command, body())
        if next(steps, self) is None:
            self.under_way.append(steps)

    def ask(self) -> Connection:
        connection = Connection(self.outgoing, f"10.0.0.1:{self.begun}")
        self.handle_admitted(connection, request(308))
        return connection

    def turn(self) -> int:
        """Returns how many were begun in it."""
        begun = self.begun
        self.time.now_ns += 1
        self.time.run_due()
        if self.under_way and next(self.under_way[0], self) is not None:
            self.under_way.popleft()
        return self.begun - begun


def test_those_that_have_waited_and_are_short_now_go_on_some_in_each_turn() -> None:
    """All of them went on in the turn in which a long one ended: as many as may wait, thousands."""
    rig = Rig()
    waiting = [rig.ask() for _ in range(1 + 4 * _BEGUN_IN_A_TURN)]
    assert len(rig.under_way) == 1
    rig.steps = 0
    turns = []
    while not all(connection.outbox for connection in waiting):
        turns.append(rig.turn())
        assert len(turns) < 20, "all are answered in the end"
    assert turns == [0, *4 * [_BEGUN_IN_A_TURN]]


def test_of_those_that_are_long_one_goes_on_and_the_others_wait_again() -> None:
    rig = Rig()
    waiting = [rig.ask() for _ in range(5)]
    for _ in range(40):
        rig.turn()
        assert len(rig.under_way) <= 1, "one is written at a time"
    assert all(connection.outbox for connection in waiting)


def test_those_that_are_gone_hold_nobody_up() -> None:
    rig = Rig()
    waiting = [rig.ask() for _ in range(2 * _BEGUN_IN_A_TURN)]
    for connection in waiting[:-1]:
        connection.abort()
    for _ in range(6):
        rig.turn()
    assert waiting[-1].outbox
