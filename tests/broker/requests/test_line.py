"""A line is dialled until it is up, and anew when it is lost; its states change as the table says."""

from __future__ import annotations

import pytest

from broker.requests.line import TRANSITIONS, Line, LineState, Patience
from tests.broker.lines import MS, Desk

PATIENCE = Patience(
    connect_ns=2000 * MS,
    answer_ns=5000 * MS,
    rest_ns_min=20 * MS,
    rest_ns_max=500 * MS,
    refused_rest_ns=2000 * MS,
)


class User:
    """Awaits something on each connection; what happens is in `happened`."""

    def __init__(self) -> None:
        self.line: Line
        self.happened: list[object] = []

    def opened(self) -> None:
        self.happened.append("opened")
        self.line.awaits()

    def received(self, data: bytes) -> None:
        self.happened.append(data)

    def due(self) -> None:
        self.happened.append("due")
        self.line.awaits()

    def lost(self, was: LineState, reason: str) -> None:
        self.happened.append((was.value, reason))


def make() -> tuple[Desk, User, Line]:
    desk, user = Desk(), User()
    line = user.line = Line(
        "a line",
        "there:1",
        PATIENCE,
        user,
        surroundings=desk,
        time=desk.time,
        outgoing=desk.outgoing,
        dial=desk.dial,
    )
    line.start()
    return desk, user, line


def test_attempts_that_fail_are_made_anew_after_rests_that_double() -> None:
    desk, user, line = make()
    for _ in range(8):
        line.lost(desk.connection, "refused")
        desk.advance(0.6)
    assert len(desk.dialled) == 9
    rests = [*user.happened]
    assert rests == [("connects", "refused")] * 8
    desk, user, line = make()
    for _ in range(7):
        line.lost(desk.connection, "refused")
        count = len(desk.dialled)
        while len(desk.dialled) == count:
            desk.advance(0.001)
    assert desk.rests_ms() == [20, 40, 80, 160, 320, 500, 500]


def test_a_connection_that_was_up_is_made_anew_soon() -> None:
    desk, _, line = make()
    for _ in range(3):
        line.opened(desk.connection)
        line.up()
        line.lost(desk.connection, "closed")
        desk.advance(0.02)
    assert desk.rests_ms() == [20, 20, 20]


@pytest.mark.parametrize("how", ["lost", "silent", "refused before", "refused behind"])
def test_after_a_refusal_the_rest_is_long(how: str) -> None:
    desk, user, line = make()
    line.opened(desk.connection)
    first = desk.connection
    if how == "lost":
        line.lost(first, "closed")
    elif how == "silent":
        desk.advance(5)
        assert user.happened[-1] == ("awaits", "it said nothing within 5 s")
    else:
        if how == "refused behind":
            line.up()
        line.refuse("nonsense")
    assert first.aborted == (how != "lost")
    count = len(desk.dialled)
    desk.advance(1.999)
    assert len(desk.dialled) == count
    desk.advance(0.001)
    assert len(desk.dialled) == count + 1


def test_an_attempt_that_takes_too_long_is_given_up() -> None:
    desk, user, line = make()
    first = desk.connection
    desk.advance(1.999)
    assert desk.outgoing.connections == []
    desk.advance(0.001)
    assert first.aborted
    assert first in desk.outgoing.connections, "so that whoever makes it hears of it"
    assert user.happened == [("connects", "no connection within 2 s")]
    desk.advance(0.02)
    line.opened(first)
    line.lost(first, "late")
    line.received(b"nothing")
    assert line.state is LineState.CONNECTS, "what comes of an attempt that was given up is ignored"
    assert len(user.happened) == 1


def test_a_late_turn_gives_up_no_attempt() -> None:
    """A node that had no processor for seconds gave up connections that were there, and answers that lay unread."""
    desk, user, line = make()
    first = desk.connection
    for _ in range(3):
        desk.stand_still(3)
    line.opened(first)
    for _ in range(3):
        desk.stand_still(7)
    line.received(b"the answer")
    assert user.happened == ["opened", b"the answer"]
    desk.advance(5)
    assert user.happened[2:] == [("awaits", "it said nothing within 5 s")]
    desk.advance(2)
    count = len(desk.dialled)
    desk.advance(2)
    assert user.happened[3:] == [("connects", "no connection within 2 s")]
    desk.stand_still(60)
    assert len(desk.dialled) == count + 1, "a rest is over, however late that is noticed"


def test_bytes_behind_the_end_are_ignored() -> None:
    desk, user, line = make()
    line.opened(desk.connection)
    line.received(b"x")
    line.refuse("nonsense")
    line.received(b"y")
    assert user.happened == ["opened", b"x", ("awaits", "nonsense")]


def test_the_limit_of_a_line_that_is_up_is_its_users() -> None:
    desk, user, line = make()
    line.opened(desk.connection)
    line.up(desk.now_ns + 30_000 * MS)
    desk.advance(29.9)
    assert user.happened == ["opened"]
    desk.advance(0.2)
    assert user.happened == ["opened", "due"]
    line.up()
    desk.advance(10_000)
    assert user.happened == ["opened", "due"], "without one it waits for ever"


def test_a_line_that_finishes_is_closed_when_all_is_written() -> None:
    desk, user, line = make()
    line.opened(desk.connection)
    line.up()
    desk.connection.send(b"goodbye")
    line.finish()
    assert (desk.connection.close_requested, desk.connection.aborted) == (True, False)
    assert desk.take() == b"goodbye"
    assert (line.is_closed,) == (False,)
    turns = desk.turns_wanted
    line.lost(desk.connection, "closed here")
    assert line.is_closed
    assert desk.turns_wanted > turns, "somebody waits for it"
    desk.advance(100)
    assert len(desk.dialled) == 1
    assert user.happened == ["opened"]


@pytest.mark.parametrize("state", [LineState.RESTS, LineState.CONNECTS, LineState.AWAITS, LineState.UP])
def test_a_line_ends_in_every_state(state: LineState) -> None:
    desk, user, line = make()
    if state is LineState.RESTS:
        line.lost(desk.connection, "refused")
    elif state is not LineState.CONNECTS:
        line.opened(desk.connection)
        if state is LineState.UP:
            line.up()
    connection = desk.connection
    desk.outgoing.take()
    connection.send(b"queued")
    line.end("nobody wants it")
    line.end("once is enough")
    assert connection.aborted
    assert connection in desk.outgoing.take()
    assert connection.take() == [], "an end at once writes nothing"
    assert user.happened[-1] == (state.value, "nobody wants it")
    assert line.is_closed
    desk.advance(100)
    assert len(desk.dialled) == 1


def test_the_table_knows_each_state_and_nothing_follows_the_end() -> None:
    assert set(TRANSITIONS) == set(LineState)
    assert [state for state, next_states in TRANSITIONS.items() if not next_states] == [LineState.ENDED]
    desk, _, line = make()
    line.end("over")
    with pytest.raises(AssertionError, match="ended to up"):
        line.up()
    assert line.connection is desk.connection
