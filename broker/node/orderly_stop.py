"""The orderly stop of a node: its group and its clients are told, and need not find out that it is gone.

    state           what it does                                       ends when
    HANDS_OVER      leadership goes to the peer that holds most        it leads no more, or after a second
    AWAITS_HEIR     it forwards what still comes to it as the master   name servers know another, or after two seconds
    SAYS_GOODBYE    name servers are told                              that is written, or after a second
    AWAITS_JOBS     no new work for threads; what is out comes back    nothing is out
    STOPPED         its owner closes connections and the replica

A node that does not lead, or has nobody to lead in its place, begins with SAYS_GOODBYE. (A client that found no master
in a route, in between, would fail for as long as it keeps routes.) Until the end everything else
goes on as before. A node whose disk fails on the way stops at once, whatever state it is in.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final

from broker.node.registrar import HEIR_NS, Registrar
from broker.replica.jobs import Jobs
from broker.replica.operator_requests import hand_over
from broker.replica.replica import Replica
from broker.requests.deadline import NEVER, Time
from broker.requests.line import Surroundings

HAND_OVER_NS: Final = 1_000_000_000
GOODBYE_NS: Final = 1_000_000_000


class StopState(Enum):
    HANDS_OVER = "hands over"
    AWAITS_HEIR = "awaits heir"
    SAYS_GOODBYE = "says goodbye"
    AWAITS_JOBS = "awaits jobs"
    STOPPED = "stopped"


_NEXT: Final[Mapping[StopState, tuple[StopState, ...]]] = {
    StopState.HANDS_OVER: (StopState.AWAITS_HEIR, StopState.SAYS_GOODBYE),
    StopState.AWAITS_HEIR: (StopState.SAYS_GOODBYE,),
    StopState.SAYS_GOODBYE: (StopState.AWAITS_JOBS,),
    StopState.AWAITS_JOBS: (StopState.STOPPED,),
    StopState.STOPPED: (),
}


class OrderlyStop:
    """The stop of one node, which begins at once. `stopped` is called once, at the end of a turn."""

    def __init__(
        self,
        replica: Replica,
        jobs: Jobs,
        registrars: Sequence[Registrar],
        surroundings: Surroundings,
        time: Time,
        stopped: Callable[[], None],
    ) -> None:
        self.state = StopState.HANDS_OVER
        self._replica = replica
        self._jobs = jobs
        self._registrars = registrars
        self._wake = surroundings.wake
        self._stopped = stopped
        surroundings.begin()
        self._time = time
        self._deadline = time.add_deadline(self._waited_enough, time.now_ns + HAND_OVER_NS)
        if not replica.serving or hand_over(replica) is None:
            self._say_goodbye()
        self._wake()

    def turned(self) -> None:
        """To be called after each turn of the node."""
        if self.state is StopState.HANDS_OVER and not self._replica.serving:
            self._become(StopState.AWAITS_HEIR)
            self._deadline.due_ns = self._time.now_ns + HEIR_NS
        if self.state is StopState.AWAITS_HEIR and not any(one.is_master for one in self._registrars):
            self._say_goodbye()
        if self.state is StopState.SAYS_GOODBYE and all(one.line.is_closed for one in self._registrars):
            self._await_jobs()
        if self.state is StopState.AWAITS_JOBS and not self._jobs.out:
            self._become(StopState.STOPPED)
            self._stopped()

    def _say_goodbye(self) -> None:
        self._become(StopState.SAYS_GOODBYE)
        self._deadline.due_ns = self._time.now_ns + GOODBYE_NS
        for registrar in self._registrars:
            registrar.say_goodbye()

    def _waited_enough(self) -> None:
        self._deadline.due_ns = NEVER
        if self.state in (StopState.HANDS_OVER, StopState.AWAITS_HEIR):
            self._say_goodbye()
        elif self.state is StopState.SAYS_GOODBYE:
            self._await_jobs()

    def _await_jobs(self) -> None:
        self._become(StopState.AWAITS_JOBS)
        self._jobs.is_closed = True

    def _become(self, state: StopState) -> None:
        assert state in _NEXT[self.state], f"{self.state.value} to {state.value}"
        self.state = state
        self._wake()
