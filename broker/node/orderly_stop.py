"""The orderly stop of a node: its group and its clients are told, and need not find out that it is gone.

    state           what it does                                       ends when
    HANDS_OVER      leadership goes to the peer that holds most        it leads no more, or after a second
    AWAITS_HEIR     it forwards what still comes to it as the master   name servers know another, or after two seconds
    LINGERS         it forwards what clients send by older routes      `node.linger_s` is over, or no client is there
    SAYS_GOODBYE    name servers are told                              that is written, or after a second
    LEAVES_CLIENTS  it closes each client's connection as soon as      all are closed, or after a second
                    nothing is under way on it, and takes in no other
    AWAITS_JOBS     no new work for threads; what is out comes back    nothing is out
    STOPPED         its owner closes connections and the replica

A client whose connection ends behind a request waits for the response until its time is over, and then fails or begins
anew (RocketMQ's Java client of 4.x, its C++ client); one that has no request under way goes elsewhere at once. What was
sent while leadership went over waits for the heir, so that just in this moment it is likely that there is one. So each
connection ends by itself, right behind its last response, when nothing has come on it that was not read. Responses to
what changes something count: pulls may be held for long. And who lost its connection cannot connect again, and send
into it what nobody would read. Who is arriving meanwhile is let in first, if something has come of it.

A node that does not lead begins with LINGERS, one that has nobody to lead in its place with SAYS_GOODBYE. Until the end
everything else goes on as before. A node whose disk fails on the way stops at once, whatever state it is in.

A client that found no master in a route would fail for as long as it keeps routes, which is why the heir is awaited.
RocketMQ's clients keep a route for 30 s and send to the master that it names, whether that is there or not; nothing in
their protocol tells them to look again. So only a node that outlasts their routes leaves without a failed send. A node
that lingers is a follower as any other; should the group elect it, it hands over again.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, Protocol

from broker.node.ports import Serving
from broker.node.registrar import HEIR_NS, Registrar
from broker.replica.group_changes import GroupChanges
from broker.replica.jobs import Jobs
from broker.requests.deadline import NEVER, Time
from broker.requests.line import Surroundings

HAND_OVER_NS: Final = 1_000_000_000
GOODBYE_NS: Final = 1_000_000_000
LEAVE_NS: Final = 1_000_000_000


class StopState(Enum):
    HANDS_OVER = "hands over"
    AWAITS_HEIR = "awaits heir"
    LINGERS = "lingers"
    SAYS_GOODBYE = "says goodbye"
    LEAVES_CLIENTS = "leaves clients"
    AWAITS_JOBS = "awaits jobs"
    STOPPED = "stopped"


_NEXT: Final[Mapping[StopState, tuple[StopState, ...]]] = {
    StopState.HANDS_OVER: (StopState.AWAITS_HEIR, StopState.LINGERS, StopState.SAYS_GOODBYE),
    StopState.AWAITS_HEIR: (StopState.LINGERS,),
    StopState.LINGERS: (StopState.HANDS_OVER, StopState.SAYS_GOODBYE),
    StopState.SAYS_GOODBYE: (StopState.LEAVES_CLIENTS,),
    StopState.LEAVES_CLIENTS: (StopState.AWAITS_JOBS,),
    StopState.AWAITS_JOBS: (StopState.STOPPED,),
    StopState.STOPPED: (),
}


class Clients(Protocol):
    """The clients of a node that stops."""

    @property
    def has_clients(self) -> bool:
        """True while a client is connected."""

    def refuse_clients(self) -> None:
        """Lets no other client connect."""

    def part_with_clients(self) -> bool:
        """Closes the connections on which nothing is under way; tells whether none is left."""


class OrderlyStop:
    """The stop of one node, which begins at once. `stopped` is called once, at the end of a turn.

    It lingers until `linger_ns` from now at most, while there are clients.
    """

    def __init__(
        self,
        leadership: Serving,
        group_changes: GroupChanges,
        jobs: Jobs,
        registrars: Sequence[Registrar],
        clients: Clients,
        surroundings: Surroundings,
        time: Time,
        stopped: Callable[[], None],
        *,
        linger_ns: int,
    ) -> None:
        self.state = StopState.HANDS_OVER
        self._leadership = leadership
        self._group_changes = group_changes
        self._jobs = jobs
        self._registrars = registrars
        self._clients = clients
        self._wake = surroundings.wake
        self._stopped = stopped
        surroundings.begin()
        self._time = time
        self._linger_until_ns = time.now_ns + linger_ns
        self._deadline = time.add_deadline(self._waited_enough, NEVER)
        if leadership.serving:
            self._hand_over()
        else:
            self._linger()
        self._wake()

    def turned(self) -> None:
        """To be called after each turn of the node."""
        # One after the other, not else: what has ended already when a state begins needs no turn of its own.
        if self.state is StopState.HANDS_OVER and not self._leadership.serving:
            self._become(StopState.AWAITS_HEIR)
            self._deadline.due_ns = self._time.now_ns + HEIR_NS
        if self.state is StopState.AWAITS_HEIR and not any(one.is_master for one in self._registrars):
            self._linger()
        if self.state is StopState.LINGERS:
            if self._leadership.serving:
                self._become(StopState.HANDS_OVER)
                self._hand_over()
            elif not self._clients.has_clients:
                self._say_goodbye()
        if self.state is StopState.SAYS_GOODBYE and all(one.line.is_closed for one in self._registrars):
            self._leave_clients()
        if self.state is StopState.LEAVES_CLIENTS and self._clients.part_with_clients():
            self._await_jobs()
        if self.state is StopState.AWAITS_JOBS and not self._jobs.out:
            self._become(StopState.STOPPED)
            self._stopped()

    def _hand_over(self) -> None:
        self._deadline.due_ns = self._time.now_ns + HAND_OVER_NS
        # Nobody could lead in its place: then it is of no use to wait.
        if self._group_changes.hand_over() is None:
            self._say_goodbye()

    def _linger(self) -> None:
        self._become(StopState.LINGERS)
        self._deadline.due_ns = self._linger_until_ns
        if self._time.now_ns >= self._linger_until_ns or not self._clients.has_clients:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        self._become(StopState.SAYS_GOODBYE)
        self._deadline.due_ns = self._time.now_ns + GOODBYE_NS
        for registrar in self._registrars:
            registrar.say_goodbye()

    def _waited_enough(self) -> None:
        self._deadline.due_ns = NEVER
        if self.state is StopState.AWAITS_HEIR:
            self._linger()
        elif self.state in (StopState.HANDS_OVER, StopState.LINGERS):
            self._say_goodbye()
        elif self.state is StopState.SAYS_GOODBYE:
            self._leave_clients()
        elif self.state is StopState.LEAVES_CLIENTS:
            self._await_jobs()

    def _leave_clients(self) -> None:
        self._become(StopState.LEAVES_CLIENTS)
        self._deadline.due_ns = self._time.now_ns + LEAVE_NS
        # Clients whose connections are closed now would come again, to a node that takes nothing any more.
        self._clients.refuse_clients()

    def _await_jobs(self) -> None:
        self._become(StopState.AWAITS_JOBS)
        self._deadline.due_ns = NEVER
        # Files must not change any more when the replica is closed: no job begins, and those that are out come back
        # first.
        self._jobs.is_closed = True

    def _become(self, state: StopState) -> None:
        assert state in _NEXT[self.state], f"{self.state.value} to {state.value}"
        self.state = state
        self._wake()
