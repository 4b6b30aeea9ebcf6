"""Places for connections: those who show nothing of themselves give theirs up, others keep them."""

from __future__ import annotations

from collections import Counter

import pytest
import structlog.testing
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand, encode, request
from broker.requests import client_sessions
from broker.requests.client_sessions import (
    SENT_AWAY_AT_ONCE,
    SWEEP_NS,
    ClientSession,
    ClientSessions,
    SessionLimits,
)
from broker.requests.connection import Connection
from broker.statistics.events import EventKind, Events
from tests.broker.lines import Desk, let_in

IDLE_S = 120
HERE = "10.0.0.1"
PROOF = int(RequestCode.GET_ALL_TOPIC_CONFIG)
"""The request that shows an account, in these tests."""


class Rig:
    """A server with a few places, and who had to go."""

    def __init__(self, places: int = 2) -> None:
        self.desk = Desk()
        self.proving = True
        self.events = Events()
        self.known: list[str] = []
        """The connections that the server has heard of and not lost."""
        self.sessions = ClientSessions(
            self,
            SessionLimits(connections_max=places, idle_ns=IDLE_S * 10**9),
            self.desk,
            self.desk.time,
            self.desk.outgoing,
            bytes,
            self.events,
        )

    @property
    def can_prove_clients(self) -> bool:
        return self.proving

    @property
    def has_strangers(self) -> bool:
        return self.proving

    def client_connected(self, connection: Connection) -> None:
        self.known.append(connection.name)

    def client_disconnected(self, connection: Connection) -> None:
        self.known.remove(connection.name)

    def received(self, connection: Connection, command: RemotingCommand) -> None:
        connection.is_proven = connection.is_proven or command.code == PROOF

    def asks(self, port: int, *, proven: bool = False, address: str = HERE) -> ClientSession:
        session = let_in(self.sessions, f"{address}:{port}")
        ask(session, proven=proven)
        return session

    @property
    def gone(self) -> list[str]:
        """The ports of those that were to be closed since this was asked last."""
        turned = self.desk.outgoing.take()
        assert all(connection.aborted for connection in turned)
        return [connection.name.rpartition(":")[2] for connection in turned]


def ask(session: ClientSession, *, proven: bool = False) -> None:
    session.received(encode(request(PROOF if proven else 1)))


def test_the_silent_go_before_strangers_and_those_before_nobody() -> None:
    rig = Rig()
    rig.asks(1)
    let_in(rig.sessions, f"{HERE}:2")
    rig.asks(3, proven=True)
    assert rig.gone == ["2"]
    rig.asks(4, proven=True)
    assert rig.gone == ["1"]
    with structlog.testing.capture_logs() as logs:
        assert rig.sessions.accept("10.0.0.9:5") is None
    assert rig.gone == []
    assert [(each["event"], each["source"], each["limit"]) for each in logs] == [
        (EventKind.CONNECTION_REFUSED.value, "10.0.0.9", 2)
    ]
    assert rig.events.counts == {
        (EventKind.CONNECTION_CLOSED, "too many connections"): 2,
        (EventKind.CONNECTION_REFUSED, "too many connections"): 1,
    }


def test_of_strangers_the_one_goes_that_has_asked_for_nothing_for_longest() -> None:
    rig = Rig()
    first = rig.asks(1)
    rig.asks(2)
    ask(first)
    rig.asks(3)
    assert rig.gone == ["2"]


def test_where_nobody_can_prove_anything_whoever_has_asked_stays() -> None:
    rig = Rig()
    rig.proving = False
    rig.asks(1)
    let_in(rig.sessions, f"{HERE}:2")
    rig.asks(3)
    assert rig.gone == ["2"]
    assert rig.sessions.accept(f"{HERE}:4") is None


def test_a_sender_of_many_connections_loses_his_own() -> None:
    rig = Rig(places=4)
    let_in(rig.sessions, "10.0.0.2:99")
    for port in range(9):
        let_in(rig.sessions, f"{HERE}:{port}")
    assert rig.gone == ["0", "1", "2", "3", "4", "5"]


def test_addresses_of_one_network_of_ipv6_are_those_of_one_sender() -> None:
    rig = Rig(places=4)
    let_in(rig.sessions, "2001:db8:0:2::1:99")
    with structlog.testing.capture_logs() as logs:
        for number in range(9):
            let_in(rig.sessions, f"2001:db8:0:1::{number}:{number}")
    assert rig.gone == ["0", "1", "2", "3", "4", "5"]
    assert [each["source"] for each in logs] == ["2001:db8:0:1::0"], "the first of many, by its own address"


def test_who_is_sent_away_before_he_is_let_in_is_never_heard_of() -> None:
    """As in the midst of a TLS handshake."""
    rig = Rig()
    first = rig.sessions.accept(f"{HERE}:1")
    assert first is not None
    first.shakes_hands()
    rig.asks(2), rig.asks(3)
    assert rig.gone == ["1"]
    first.lost()
    assert rig.known == [f"{HERE}:2", f"{HERE}:3"]
    assert rig.sessions.places.taken == 2
    assert rig.sessions.arriving == {}


@pytest.mark.parametrize(
    ("shakes", "limit_s", "detail"),
    [(False, IDLE_S, "nothing came within 120 s"), (True, 10, "no TLS handshake within 10 s")],
)
def test_who_is_not_let_in_in_time_is_refused_once(shakes: bool, limit_s: int, detail: str) -> None:
    rig = Rig()
    session = rig.sessions.accept(f"{HERE}:1")
    assert session is not None
    if shakes:
        rig.desk.advance(IDLE_S - 1)  # the handshake has its time from its first byte on
        session.shakes_hands()
    rig.desk.advance(limit_s - 1)
    rig.sessions.sweep()
    assert rig.gone == []
    rig.desk.advance(1)
    with structlog.testing.capture_logs() as logs:
        rig.sessions.sweep()
        rig.sessions.sweep()
    assert rig.gone == ["1"]
    assert [(each["event"], each["reason"], each["detail"]) for each in logs] == [
        (EventKind.CONNECTION_REFUSED.value, "not let in", detail)
    ]
    session.lost()
    assert (rig.known, rig.sessions.places.taken) == ([], 0)


def test_who_has_lost_his_place_is_not_told_to_be_refused_too() -> None:
    """As one whose far end is closed in the same moment, before his task has heard."""
    rig = Rig()
    first = rig.sessions.accept(f"{HERE}:1")
    assert first is not None
    rig.asks(2), rig.asks(3)
    first.refuse(client_sessions.NOT_LET_IN, "closed before its first byte")
    first.lost()
    assert rig.gone == ["1"]
    assert rig.events.counts == {(EventKind.CONNECTION_CLOSED, "too many connections"): 1}


@pytest.mark.parametrize("is_in", [False, True])
def test_a_crowd_that_came_at_once_is_sent_away_in_steps(is_in: bool) -> None:
    """Each costs its task a tenth of a millisecond, and all of them are due in the same moment."""
    crowd = 2 * SENT_AWAY_AT_ONCE + 1
    rig = Rig(places=crowd)
    here = [rig.sessions.accept(f"{HERE}:{port}") for port in range(crowd)]
    for session in here:
        assert session is not None
        if is_in:
            session.let_in()
    rig.desk.advance(IDLE_S + 1)
    now_ns = rig.desk.time.now_ns
    steps = []
    for _ in range(3):
        rig.sessions.sweep()
        steps.append((len(rig.gone), rig.sessions.sweep_due_ns - now_ns))
    assert steps == [(SENT_AWAY_AT_ONCE, 0), (SENT_AWAY_AT_ONCE, 0), (1, SWEEP_NS)]


def test_what_is_refused_for_various_reasons_is_told_ten_times() -> None:
    rig = Rig(places=20)
    with structlog.testing.capture_logs() as logs:
        for port in range(12):
            session = rig.sessions.accept(f"{HERE}:{port}")
            assert session is not None
            session.refuse(client_sessions.NOT_LET_IN, f"reason {port}")
            session.lost()
    assert [each["detail"] for each in logs] == [f"reason {port}" for port in range(10)]
    assert rig.events.counts == {(EventKind.CONNECTION_REFUSED, "not let in"): 12}


PLACES = 6
CROWD, OTHERS = "10.6.6.6", [f"10.0.0.{number}" for number in range(1, 4)]


class Door(RuleBasedStateMachine):
    """A crowd of one address and few clients of others, who come, ask and go in any order.

    The crowd shows nothing of itself, and asks only where those who can prove something stay.
    """

    proving = False

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(PLACES)
        self.rig.proving = self.proving
        self.number = 0
        self.here: dict[ClientSession, str] = {}
        """Those whose connections are open, with what they have done: came, let in, asked, proved."""

    def _come(self, address: str) -> ClientSession | None:
        self.number += 1
        before = list(self.here)
        session = self.rig.sessions.accept(f"{address}:{self.number}")
        gone = [one for one in before if one.connection.aborted]
        assert len(gone) <= (session is not None)
        for one in gone:
            self._judge(one, before)
            self._end(one)
        if session is not None:
            self.here[session] = "came"
        return session

    def _judge(self, gone: ClientSession, before: list[ClientSession]) -> None:
        """Judges that this one had to go, of all that were there."""
        assert len(before) == PLACES
        classes = [("came", "let in"), ("asked",)]
        ranks = {one: next(k for k in (0, 1, 2) if k == 2 or self.here[one] in classes[k]) for one in before}
        assert ranks[gone] == min(ranks.values()) < (2 if self.proving else 1)
        crowd = Counter(one.connection.share for one in before if ranks[one] == ranks[gone])
        assert crowd[gone.connection.share] == max(crowd.values())

    def _end(self, session: ClientSession) -> None:
        del self.here[session]
        session.lost()

    @rule()
    def one_of_the_crowd_comes(self) -> None:
        self._come(CROWD)

    @rule(address=st.sampled_from(OTHERS))
    def a_client_comes_and_asks(self, address: str) -> None:
        """It gets in: the others hold half of the places at most, and it has asked before any other comes."""
        for one in [one for one in self.here if one.connection.address == address]:
            self._end(one)
        session = self._come(address)
        assert session is not None
        session.let_in()
        ask(session, proven=self.proving)
        self.here[session] = "proved" if self.proving else "asked"

    @rule(data=st.data())
    def it_is_let_in(self, data: st.DataObject) -> None:
        arriving = [one for one, what in self.here.items() if what == "came"]
        if arriving:
            session = data.draw(st.sampled_from(arriving))
            if data.draw(st.booleans()):
                session.shakes_hands()
            session.let_in(is_encrypted=True)
            self.here[session] = "let in"

    @rule(data=st.data())
    def one_of_the_crowd_asks(self, data: st.DataObject) -> None:
        silent = [one for one, what in self.here.items() if what in ("let in", "asked") and self.proving]
        if silent:
            session = data.draw(st.sampled_from(silent))
            ask(session)
            self.here[session] = "asked"

    @rule(data=st.data())
    def a_connection_ends(self, data: st.DataObject) -> None:
        if self.here:
            self._end(data.draw(st.sampled_from(list(self.here))))

    @invariant()
    def all_that_is_kept_is_of_those_who_are_there(self) -> None:
        sessions = self.rig.sessions
        assert sessions.places.taken == len(self.here) <= PLACES
        assert set(sessions.arriving) == {one for one, what in self.here.items() if what == "came"}
        assert sorted(self.rig.known) == sorted(
            one.connection.name for one, what in self.here.items() if what != "came"
        )
        assert not any(one.connection.aborted for one in self.here)


class DoorWithAccounts(Door):
    """The same where clients can show whose they are."""

    proving = True


@pytest.mark.parametrize("door", [Door, DoorWithAccounts])
def test_bounds_hold_and_others_get_in_whatever_a_crowd_does(door: type[Door]) -> None:
    run_state_machine_as_test(
        door,
        settings=settings(
            max_examples=100, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
        ),
    )
