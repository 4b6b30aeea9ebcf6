"""Clients' connections: requests are handled in order, nonsense and silence end a connection."""

from __future__ import annotations

import gc
import struct
import sys
from collections import Counter

import pytest
import structlog.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand, encode, request
from broker.remoting.frame import FrameDecoder
from broker.requests import incoming
from broker.requests.client_sessions import WORK_AT_ONCE, ClientSession, ClientSessions, SessionLimits
from broker.requests.connection import Connection
from broker.requests.strangers_unread import StrangersUnread
from broker.requests.work import work_of
from broker.statistics.events import EventKind, Events
from tests.broker.lines import Desk, let_in

IDLE_S = 120


class Rig:
    """A server that notes what it is told."""

    can_prove_clients = True
    has_strangers = True

    def __init__(self) -> None:
        self.desk = Desk()
        self.handled: list[tuple[str, int]] = []
        self.closed: list[str] = []
        self.sessions = ClientSessions(
            self,
            SessionLimits(connections_max=10_000, idle_ns=IDLE_S * 10**9),
            self.desk,
            self.desk.time,
            self.desk.outgoing,
            bytes,
            Events(),
        )

    def client_connected(self, connection: Connection) -> None:
        pass

    def client_disconnected(self, connection: Connection) -> None:
        self.closed.append(connection.name)

    def received(self, connection: Connection, command: RemotingCommand) -> None:
        self.handled.append((connection.name, command.code))

    def connect(self, name: str) -> ClientSession:
        return let_in(self.sessions, name)

    def sweep(self) -> set[str]:
        """Who has been closed for silence."""
        self.sessions.sweep()
        return {connection.name for connection in self.sessions.open if connection.aborted}


def data(*codes: int) -> bytes:
    return b"".join(encode(request(code)) for code in codes)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_requests_are_handled_in_order_and_a_turn_follows(rig: Rig) -> None:
    session = rig.connect("a")
    both = data(10, 11)
    session.received(both[:30])
    session.received(both[30:] + data(12))
    assert rig.handled == [("a", 10), ("a", 11), ("a", 12)]
    assert rig.desk.turns_wanted == 2
    session.lost()
    assert (rig.closed, rig.sessions.open) == (["a"], {})


def test_what_is_no_frame_closes_behind_the_requests_before_it(rig: Rig) -> None:
    """The simulated name server did not answer those."""
    session = rig.connect("a")
    with structlog.testing.capture_logs() as logs:
        session.received(data(10) + b"\xff" * 8)
    assert rig.handled == [("a", 10)]
    assert (session.connection.close_requested, session.connection.aborted) == (True, False)
    assert [(entry["event"], entry["reason"]) for entry in logs] == [("connection closed", "oversized")]


def test_what_is_held_of_a_frame_goes_with_its_connection(rig: Rig) -> None:
    """It waited for the garbage collector, and whoever was closed for holding memory went on holding it."""
    session = rig.connect("a")
    session.received(data(10)[:-1])
    assert session._decoder.pending_size
    session.lost()
    assert session._decoder.pending_size == 0


@pytest.mark.parametrize("end", ["what is no frame", "sweep", "too much held", "its user"])
def test_what_comes_on_a_connection_that_is_to_be_closed_is_ignored(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """It was handled, although nobody reads the responses, or was told once more to be no frame."""
    monkeypatch.setattr(incoming, "INCOMPLETE_BYTES_MAX", 1000)
    rig = Rig()
    session = rig.connect("a")
    with structlog.testing.capture_logs() as logs:
        if end == "what is no frame":
            session.received(b"\xff" * 8)
        elif end == "sweep":
            rig.desk.advance(IDLE_S + 1)
            rig.sweep()
        elif end == "too much held":
            session.received(encode(request(10, None, bytes(2000)))[:1500])
        else:
            session.connection.abort()
        told = len(logs)
        for _ in range(2):
            session.received(data(10) + b"\xff" * 8)
    assert rig.handled == []
    assert len(logs) == told
    assert rig.closed == []
    session.lost()
    assert (rig.closed, rig.sessions.open) == (["a"], {})


def test_the_end_of_a_session_is_told_with_its_time_and_its_frame_counts_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(incoming, "INCOMPLETE_BYTES_MAX", 1000)
    rig = Rig()
    one, other = rig.connect("one"), rig.connect("other")
    frame = encode(request(10, None, bytes(2000)))
    one.received(frame[:600])
    rig.desk.now_ns += 7
    turns = rig.desk.turns_wanted
    one.lost()
    assert rig.desk.time.now_ns == rig.desk.now_ns
    assert rig.desk.turns_wanted > turns, "others may have waited for what it had"
    other.received(frame[:900])
    assert not other.connection.aborted


def test_a_connection_is_aborted_by_one_sweep_only(rig: Rig) -> None:
    session = rig.connect("a")
    rig.desk.advance(IDLE_S + 1)
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            assert rig.sweep() == {"a"}
    assert rig.desk.outgoing.take() == [session.connection]
    assert [(entry["event"], entry["reason"]) for entry in logs] == [("connection closed", "idle")]
    assert rig.sessions.events.count(EventKind.CONNECTION_CLOSED) == 1


def test_who_neither_reads_nor_writes_is_closed(rig: Rig) -> None:
    """The simulator counted what came only, so that a client that was sent to all the time was closed."""
    silent, sends, takes = rig.connect("silent"), rig.connect("sends"), rig.connect("takes")
    rig.desk.advance(IDLE_S)
    assert rig.sweep() == set()
    sends.received(data(10))
    takes.connection.was_written = True
    rig.desk.advance(1)
    assert rig.sweep() == {"silent"}
    assert silent.connection in rig.desk.outgoing.connections
    assert rig.sessions.events.counts == {(EventKind.CONNECTION_CLOSED, "idle"): 1}
    silent.lost()
    rig.desk.advance(IDLE_S - 1)
    assert rig.sweep() == set()
    rig.desk.advance(2)
    assert rig.sweep() == {"sends", "takes"}


def test_who_holds_most_of_what_is_not_whole_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As shipped; the simulator had no limit."""
    monkeypatch.setattr(incoming, "INCOMPLETE_BYTES_MAX", 1000)
    rig = Rig()
    one, other = rig.connect("one"), rig.connect("other")
    frame = encode(request(10, None, bytes(900)))
    one.received(frame[:400])
    other.received(frame[:500])
    assert not other.connection.aborted
    one.received(frame[400:450])
    other.received(frame[500:600])
    assert (one.connection.aborted, other.connection.aborted) == (False, True)
    other.lost()
    one.received(frame[450:])
    assert rig.handled == [("one", 10)]


def test_whoever_sends_a_frame_beyond_a_bound_is_told_and_sent_away(rig: Rig) -> None:
    session = rig.connect("a")
    many = request(10, {f"f{number}": "x" for number in range(129)}, opaque=8)
    session.received(data(9) + encode(many) + data(11))
    assert rig.handled == [("a", 9)]
    connection = session.connection
    (answer,) = FrameDecoder().feed(b"".join(bytes(buffer) for buffer in connection.take()))
    assert (answer.opaque, answer.code, answer.remark) == (
        8,
        1,
        "too many fields: the header has more than 128 fields",
    )
    assert connection.close_requested
    assert not connection.aborted


def test_a_client_is_greeted_once(rig: Rig) -> None:
    """Whoever it is: but it cannot have responses made that it never reads."""
    session = rig.connect("a")
    session.received(encode(request(RequestCode.TRIVET_GREETING, opaque=5)))
    (answer,) = FrameDecoder().feed(b"".join(session.connection.take()))
    assert (answer.code, answer.opaque, answer.fields) == (0, 5, {"nonce": "0" * 32, "sign": "each"})
    assert rig.handled == []
    session.received(encode(request(RequestCode.TRIVET_GREETING, opaque=6)))
    assert session.connection.close_requested
    assert session.connection.take() == []


def test_a_flood_of_garbage_fills_no_log(rig: Rig) -> None:
    """690 connections in a second had 690 lines, 113 kB."""
    with structlog.testing.capture_logs() as logs:
        for number in range(1_000):
            session = rig.connect(f"10.0.0.9:{number}")
            session.received(b"\xff" * 8)
            session.lost()
        assert [entry["client"] for entry in logs] == ["10.0.0.9:0"]
        rig.desk.time.now_ns += 20 * 10**9
        rig.sweep()
    assert (len(logs), logs[-1]["source"], logs[-1]["not_told"]) == (2, "10.0.0.9", 999)
    assert rig.sessions.events.counts == {(EventKind.CONNECTION_CLOSED, "oversized"): 1_000}


# ---------------------------------------------------------------------- more than is handled at once


def many(first: int, count: int) -> bytes:
    """Requests of a code that nobody knows, told apart by their numbers."""
    return b"".join(encode(request(10_000 + number)) for number in range(first, first + count))


def numbers(rig: Rig, name: str) -> list[int]:
    return [code - 10_000 for who, code in rig.handled if who == name]


def test_of_one_read_only_some_is_handled_at_once(rig: Rig) -> None:
    """All of it was: 4,000 questions for the settings of a node took seconds, in which its leader was silent."""
    session = rig.connect("10.0.0.1:1")
    session.received(many(0, 400))
    at_once = WORK_AT_ONCE // work_of(request(10_000))
    assert numbers(rig, "10.0.0.1:1") == list(range(at_once))
    turns = 0
    while rig.sessions.unhandled:
        assert session.connection.has_unhandled, "nothing more is read meanwhile"
        before = len(rig.handled)
        rig.sessions.go_on()
        turns += 1
        assert 0 < len(rig.handled) - before <= at_once
    assert turns == -(-400 // at_once) - 1
    assert numbers(rig, "10.0.0.1:1") == list(range(400))
    assert not session.connection.has_unhandled
    assert rig.desk.outgoing.take() == [session.connection], "the shell hears that it may be read again"


def test_a_long_body_counts_as_several(rig: Rig) -> None:
    session = rig.connect("10.0.0.1:1")
    session.received(b"".join(encode(request(310, None, bytes(40_000))) for _ in range(40)))
    assert len(rig.handled) == -(-WORK_AT_ONCE // 10)


def test_addresses_take_turns_and_on_each_the_connections_do(rig: Rig) -> None:
    crowd = [rig.connect(f"10.0.0.1:{port}") for port in range(8)]
    other = rig.connect("10.0.0.2:1")
    for session in (*crowd, other):
        session.received(many(0, 100))
    rig.handled.clear()
    rig.sessions.go_on()
    counts = Counter(name for name, _ in rig.handled)
    assert counts["10.0.0.2:1"] == sum(counts.values()) // 2
    assert {counts[f"10.0.0.1:{port}"] for port in range(8)} == {2}


def test_what_is_no_frame_ends_the_connection_behind_all_that_came_before_it(rig: Rig) -> None:
    session = rig.connect("10.0.0.1:1")
    with structlog.testing.capture_logs() as logs:
        session.received(many(0, 50) + b"\xff" * 8)
        assert rig.sessions.unhandled, "it is not closed before they are handled"
        while rig.sessions.unhandled:
            rig.sessions.go_on()
    assert numbers(rig, "10.0.0.1:1") == list(range(50))
    assert session.connection.close_requested
    assert [entry["reason"] for entry in logs] == ["oversized"]


@pytest.mark.parametrize("end", ["lost", "aborted", "closed"])
def test_what_waits_on_a_connection_that_ends_is_not_handled(rig: Rig, end: str) -> None:
    session = rig.connect("10.0.0.1:1")
    session.received(many(0, 100))
    handled = len(rig.handled)
    if end == "lost":
        session.lost()
    elif end == "aborted":
        session.connection.abort()
    else:
        session.connection.close()
    for _ in range(3):
        rig.sessions.go_on()
    assert len(rig.handled) == handled
    assert not rig.sessions.unhandled


def test_what_comes_while_others_wait_is_handled_behind_them(rig: Rig) -> None:
    """What a TLS record brings beyond a read, or the rest of a long frame."""
    session = rig.connect("10.0.0.1:1")
    session.received(many(0, 100))
    session.received(many(100, 3))
    while rig.sessions.unhandled:
        rig.sessions.go_on()
    assert numbers(rig, "10.0.0.1:1") == list(range(103))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_however_it_is_cut_each_connection_is_handled_in_order_and_whole(data: st.DataObject) -> None:
    rig = Rig()
    rig.sessions.work_at_once = data.draw(st.integers(1, 300))
    names = [f"10.0.0.{data.draw(st.integers(1, 2))}:{port}" for port in range(3)]
    left = {name: many(0, data.draw(st.integers(0, 80))) for name in names}
    sent = {name: left[name].count(b'"code"') for name in names}
    open_sessions = {name: rig.connect(name) for name in names}
    while any(left.values()) or rig.sessions.unhandled:
        name = data.draw(st.sampled_from(names))
        if left[name] and not open_sessions[name].connection.has_unhandled:
            size = data.draw(st.integers(1, 10_000))
            open_sessions[name].received(left[name][:size])
            left[name] = left[name][size:]
        rig.sessions.go_on()
    for name in names:
        assert numbers(rig, name) == list(range(sent[name]))


def test_what_a_stranger_leaves_unread_is_counted_behind_requests_that_waited(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their responses were not: one read of short questions, and then of long lists, was past the bound."""
    looked: list[tuple[str, int]] = []

    def look(_: StrangersUnread, connection: Connection) -> None:
        looked.append((connection.name, len(rig.handled)))

    monkeypatch.setattr(StrangersUnread, "close_if_too_much", look)
    session = rig.connect("10.0.0.1:1")
    session.received(many(0, 100))
    while rig.sessions.unhandled:
        rig.sessions.go_on()
    assert looked[-1] == ("10.0.0.1:1", 100)


def test_a_session_that_has_ended_for_what_came_keeps_nothing_of_it(rig: Rig) -> None:
    """Each left a cycle with all that was read: strangers filled the memory before the collector came."""
    header = b'{"code":310,"language":"JAVA"'
    read = struct.pack(">II", 4 + len(header) + (1 << 20), len(header)) + header + bytes(1 << 20)
    before = sys.getrefcount(read)
    gc.disable()
    try:
        session = rig.connect("a")
        session.received(read)
        assert session.connection.close_requested
        session.lost()
        assert sys.getrefcount(read) == before
    finally:
        gc.enable()
