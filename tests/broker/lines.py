"""The surroundings of lines and sessions without I/O: a clock that a test moves, and a list of what was dialled."""

from __future__ import annotations

from itertools import pairwise

from broker.requests.client_sessions import ClientSession, ClientSessions
from broker.requests.connection import LOOPBACK_HOST, Connection, Outgoing
from broker.requests.deadline import Time
from broker.requests.line import Line

SECOND = 1_000_000_000
MS = 1_000_000


class Desk:
    """All that a line needs. Each attempt is in `dialled`, with the time at which it was made."""

    def __init__(self) -> None:
        self.time = Time(1000 * SECOND, 0)
        self.now_ns = self.time.now_ns
        self.outgoing = Outgoing()
        self.dialled: list[tuple[int, Connection]] = []
        self.turns_wanted = 0

    def begin(self) -> None:
        self.time.now_ns = self.now_ns

    def wake(self) -> None:
        self.turns_wanted += 1

    def dial(self, line: Line) -> None:
        self.dialled.append((self.now_ns, line.connection))

    def advance(self, seconds: float) -> None:
        """Lets time pass, with a turn at each deadline."""
        end_ns = self.now_ns + round(seconds * SECOND)
        while self.time.earliest_ns <= end_ns:
            self.now_ns = max(self.now_ns, self.time.earliest_ns)
            self.begin()
            self.time.run_due()
        self.now_ns = end_ns
        self.begin()

    def stand_still(self, seconds: float) -> None:
        """Lets time pass without a turn; then comes the one that was due meanwhile, before anything is read."""
        self.now_ns += round(seconds * SECOND)
        self.begin()
        self.time.run_due()

    @property
    def connection(self) -> Connection:
        """Of the newest attempt."""
        return self.dialled[-1][1]

    def take(self) -> bytes:
        """What was sent on it."""
        return b"".join(self.connection.take())

    def rests_ms(self) -> list[int]:
        """The times between attempts, rounded to milliseconds."""
        times = [at for at, _ in self.dialled]
        return [round((later - earlier) / MS) for earlier, later in pairwise(times)]


def let_in(clients: ClientSessions, name: str, host: bytes = LOOPBACK_HOST) -> ClientSession:
    """The session of a client that has connected in the clear."""
    session = clients.accept(name, host)
    assert session is not None, "there is a place"
    session.let_in()
    return session
