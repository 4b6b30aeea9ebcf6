"""Answers that strangers leave unread: of all of them together they take a bounded memory."""

import pytest

from broker.requests.connection import Connection, Outgoing
from broker.requests.deadline import Time
from broker.requests.strangers_unread import StrangersUnread

KIB = 1024


class Rig:
    """1 MiB may be unread."""

    def __init__(self) -> None:
        self.time = Time(0, 0)
        self.closed: list[str] = []
        self.unread = StrangersUnread(self.time, self._close, bytes_max=1024 * KIB)
        self._outgoing = Outgoing()

    def connect(self, name: str) -> Connection:
        return Connection(self._outgoing, name)

    def answer(self, connection: Connection, size: int, *, reads: bool) -> None:
        """A request of the connection is answered; what it does not read is left."""
        connection.send(bytes(size))
        self.unread.close_if_too_much(connection)
        connection.take()
        connection.unsent_bytes += 0 if reads else size

    def advance(self, seconds: float) -> None:
        self.time.now_ns += int(seconds * 1e9)

    def _close(self, connection: Connection, _: str) -> None:
        self.closed.append(connection.name)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_who_reads_is_never_too_many(rig: Rig) -> None:
    for number in range(100):
        rig.answer(rig.connect(f"client:{number}"), 100 * KIB, reads=True)
    assert rig.closed == []


def test_those_who_read_nothing_go_and_those_who_read_stay(rig: Rig) -> None:
    """Each might leave 4 MiB, and ten thousand might connect."""
    for number in range(100):
        rig.answer(rig.connect(f"flood:{number}"), 10 * KIB, reads=False)
    rig.advance(2)
    reader = rig.connect("reader:1")
    for _ in range(10):
        rig.answer(reader, 300 * KIB, reads=True)
        rig.advance(0.01)
    assert reader.name not in rig.closed
    assert 30 < len(rig.closed) < 50


def test_who_reads_slowly_goes_on(rig: Rig) -> None:
    slow = rig.connect("slow:1")
    rig.answer(slow, 600 * KIB, reads=False)
    others = [rig.connect(f"flood:{number}") for number in range(4)]
    for other in others:
        rig.answer(other, 100 * KIB, reads=False)
    rig.advance(2)
    slow.unsent_bytes -= 40 * KIB
    for number in range(4, 8):
        rig.advance(0.5)
        slow.unsent_bytes -= 20 * KIB
        rig.answer(rig.connect(f"flood:{number}"), 150 * KIB, reads=False)
    assert rig.closed == [f"flood:{number}" for number in range(5)], "as many as make some room"


def test_accounts_are_not_counted(rig: Rig) -> None:
    for number in range(100):
        account = rig.connect(f"account:{number}")
        rig.answer(account, 10 * KIB, reads=False)
        account.is_proven = True
    rig.answer(rig.connect("stranger:1"), 900 * KIB, reads=False)
    assert rig.closed == []


def test_who_has_gone_counts_no_more(rig: Rig) -> None:
    for number in range(100):
        stranger = rig.connect(f"stranger:{number}")
        rig.answer(stranger, 100 * KIB, reads=False)
        rig.unread.lost(stranger)
    assert rig.closed == []
