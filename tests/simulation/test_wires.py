"""Simulated connections count, close and drop as those of the shell do (broker/shell/sockets.py)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from broker.requests.connection import Connection, Outgoing
from simulation.machines.network import WINDOW_BYTES, Endpoint, Network
from simulation.machines.wires import Wires
from simulation.scheduler import SECOND, Scheduler

UNSENT_MAX = 1_000_000


class Rig:
    """A connection of a process, whose remote end reads when a test says so."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        network = Network(self.scheduler, lambda _: Random(1), lambda kind: None)
        self.outgoing = Outgoing()
        self.wires = Wires(self.outgoing, self.scheduler, self.guarded, UNSENT_MAX)
        self.connection = Connection(self.outgoing, "a client")
        self.received: list[bytes] = []
        self.lost: list[str] = []
        self.read = 0
        """Bytes that the remote end has."""
        self._reads_until = 0
        self.ends: list[str] = []
        """The remote end is told that its connection is closed."""
        remote: list[Endpoint] = []

        def accepted(endpoint: Endpoint) -> None:
            self.wires.attach(self.connection, endpoint, self.received.append, self.lost.append)

        def connected(endpoint: Endpoint | None, reason: str) -> None:
            assert endpoint is not None, reason
            remote.append(endpoint)

        network.listen("b:1", "b", accepted)
        network.connect("a", "a", "b:1", connected)
        self.run()
        (self.remote,) = remote
        self.remote.on_data = self._remote_received
        self.remote.on_closed = self.ends.append

    def guarded(self, callback: Callable[..., object]) -> Callable[..., None]:
        return lambda *arguments: void(callback(*arguments))

    def _remote_received(self, data: bytes) -> None:
        self.read += len(data)
        self.remote.readable = self.read < self._reads_until

    def run(self, seconds: float = 1) -> None:
        self.scheduler.run_until(self.scheduler.now_ns + round(seconds * SECOND))

    def send(self, size: int) -> None:
        self.connection.send(bytes(size))
        self.wires.hand_out()

    def remote_reads(self, size: int) -> None:
        """The remote end reads on, until it has at least so many bytes in all or there are no more."""
        self._reads_until = size
        self.remote.readable = True
        self.remote.peer.kick()
        self.run()

    def was_written(self) -> bool:
        """Looks as a sweep does."""
        was_written = self.connection.was_written
        self.connection.was_written = False
        return was_written

    def asks(self) -> bool:
        """Tells whether something that the remote end sends is read."""
        count = len(self.received)
        self.remote.send([b"question"])
        self.run()
        return len(self.received) > count


def void(_: object) -> None:
    pass


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.remote.readable = False
    return rig


def test_what_the_system_has_not_taken_is_unread_and_falls_as_it_takes_more(rig: Rig) -> None:
    """It was counted anew only when all was taken."""
    rig.send(3 * WINDOW_BYTES)
    assert rig.connection.unsent_bytes == 2 * WINDOW_BYTES
    rig.send(1000)
    assert rig.connection.unsent_bytes == 2 * WINDOW_BYTES + 1000
    rig.remote_reads(1)
    assert rig.connection.unsent_bytes == 2 * WINDOW_BYTES + 1000 - rig.read
    rig.remote_reads(3 * WINDOW_BYTES + 1000)
    assert (rig.connection.unsent_bytes, rig.read) == (0, 3 * WINDOW_BYTES + 1000)


def test_whoever_takes_a_part_is_not_idle(rig: Rig) -> None:
    """A client that read slowly was closed, however much it read, unless it once had all."""
    rig.send(3 * WINDOW_BYTES)
    assert rig.was_written(), "the system took a part"
    rig.send(1000)
    rig.run()
    assert not rig.was_written(), "nothing was taken"
    rig.remote_reads(1)
    assert rig.was_written()
    assert rig.connection.unsent_bytes > 0


def test_who_leaves_too_much_unsent_is_not_read_from_until_it_is_less(rig: Rig) -> None:
    """As shipped; simulated it was read from again when nothing was left."""
    rig.send(WINDOW_BYTES + UNSENT_MAX)
    assert rig.asks(), "as much as that may wait"
    rig.send(1)
    assert not rig.asks()
    rig.remote_reads(1)
    rig.run()
    assert 0 < rig.connection.unsent_bytes <= UNSENT_MAX
    assert b"".join(rig.received) == 2 * b"question"


def test_nothing_is_read_from_a_connection_whose_requests_wait(rig: Rig) -> None:
    rig.connection.has_unhandled = True
    assert rig.asks(), "what is there when it begins to wait"
    assert not rig.asks()
    rig.wires.hand_out()
    rig.run()
    assert rig.received == [b"question"]
    rig.connection.go_on_reading()
    rig.wires.hand_out()
    rig.run()
    assert rig.received == 2 * [b"question"]


def test_a_process_that_stood_still_reads_no_more_than_it_would_have(rig: Rig) -> None:
    """It read once from everybody, also from those whose requests waited or who left too much unread."""
    end = rig.remote.peer
    assert rig.wires.held_back() == set()
    rig.connection.has_unhandled = True
    assert rig.wires.held_back() == {end}
    rig.connection.has_unhandled = False
    rig.send(WINDOW_BYTES + UNSENT_MAX + 1)
    assert rig.wires.held_back() == {end}
    rig.remote_reads(1)
    assert rig.wires.held_back() == set()


def test_a_connection_that_is_to_be_closed_is_when_all_is_written(rig: Rig) -> None:
    rig.connection.send(bytes(2 * WINDOW_BYTES))
    rig.connection.close()
    rig.wires.hand_out()
    rig.run()
    assert (rig.lost, rig.ends) == ([], [])
    rig.remote_reads(2 * WINDOW_BYTES + 1)
    rig.run()
    assert rig.read == 2 * WINDOW_BYTES
    assert len(rig.lost) == len(rig.ends) == 1
    assert rig.wires.endpoints == {}


@pytest.mark.parametrize("unsent", [False, True])
def test_an_aborted_connection_is_closed_at_once_and_that_is_told_once(rig: Rig, unsent: bool) -> None:
    connection = rig.connection
    if unsent:
        rig.send(2 * WINDOW_BYTES)
    connection.send(b"queued")
    connection.abort()
    connection.send(b"late")
    rig.wires.hand_out()
    assert connection.take() == []
    assert rig.lost == [], "behind the turn, and not within"
    rig.remote_reads(3 * WINDOW_BYTES)
    rig.run()
    assert rig.lost == ["closed here"]
    assert rig.read == (WINDOW_BYTES if unsent else 0), "no more than what the system had"
    assert not rig.asks()
    assert rig.wires.endpoints == {}


def test_what_is_queued_for_a_connection_that_is_gone_is_dropped(rig: Rig) -> None:
    rig.remote.close()
    rig.remote_reads(1)
    assert len(rig.lost) == 1
    rig.connection.send(b"late")
    rig.wires.hand_out()
    assert (rig.connection.take(), len(rig.lost)) == ([], 1)


def test_of_two_ends_of_a_connection_the_first_is_told(rig: Rig) -> None:
    rig.connection.abort()
    rig.wires.hand_out()
    rig.remote.peer.on_closed("connection reset by the remote end")
    rig.run()
    assert rig.lost == ["connection reset by the remote end"]
