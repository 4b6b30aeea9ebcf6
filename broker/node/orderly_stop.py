"""The orderly stop of a node: its group and its clients are told, and need not find out that it is gone.

    state           what it does                                       ends when
    HANDS_OVER      leadership goes to the peer that holds most        it leads no more, or after a second
    AWAITS_HEIR     it forwards what still comes to it as the master   name servers know another, or after two seconds
    LINGERS         it forwards what clients send by older routes      `node.linger_s` is over, or no client is there
    SAYS_GOODBYE    name servers are told                              that is written, or after a second
    AWAITS_JOBS     no new work for threads; what is out comes back,   nothing is out, and nobody waits (or after
                    and the heir's answers to what was forwarded       a second, who does)
    STOPPED         its owner closes connections and the replica

What a client has sent while leadership went over waits for the heir, so that just in this moment it is likely that one
waits; a client whose connection ends first waits for an answer until its time is over, and fails then (RocketMQ's Java
client of 4.x). So answers are awaited at the end, those to what changes something: pulls may be held for long.

A node that does not lead begins with LINGERS, one that has nobody to lead in its place with SAYS_GOODBYE. Until the end
everything else goes on as before. A node whose disk fails on the way stops at once, whatever state it is in.

A client that found no master in a route would fail for as long as it keeps routes, which is why the heir is awaited.
RocketMQ's clients keep a route for 30 s and send to the master that it names, whether that is there or not; nothing in
their protocol tells them to look again. So only a node that outlasts their routes leaves without a failed send. A node
that lingers is a follower as any other; should the group elect it, it hands over again.
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
ANSWERS_NS: Final = 1_000_000_000


class StopState(Enum):
    HANDS_OVER = "hands over"
    AWAITS_HEIR = "awaits heir"
    LINGERS = "lingers"
    SAYS_GOODBYE = "says goodbye"
    AWAITS_JOBS = "awaits jobs"
    STOPPED = "stopped"


_NEXT: Final[Mapping[StopState, tuple[StopState, ...]]] = {
    StopState.HANDS_OVER: (StopState.AWAITS_HEIR, StopState.LINGERS, StopState.SAYS_GOODBYE),
    StopState.AWAITS_HEIR: (StopState.LINGERS,),
    StopState.LINGERS: (StopState.HANDS_OVER, StopState.SAYS_GOODBYE),
    StopState.SAYS_GOODBYE: (StopState.AWAITS_JOBS,),
    StopState.AWAITS_JOBS: (StopState.STOPPED,),
    StopState.STOPPED: (),
}


class OrderlyStop:
    """The stop of one node, which begins at once. `stopped` is called once, at the end of a turn.

    It lingers until `linger_ns` from now at most, while `has_clients`. `owes_answers` tells whether clients wait for
    what this node has forwarded, or would.
    """

    def __init__(
        self,
        replica: Replica,
        jobs: Jobs,
        registrars: Sequence[Registrar],
        surroundings: Surroundings,
        time: Time,
        stopped: Callable[[], None],
        *,
        linger_ns: int,
        has_clients: Callable[[], bool],
        owes_answers: Callable[[], bool],
    ) -> None:
        self.state = StopState.HANDS_OVER
        self._replica = replica
        self._jobs = jobs
        self._registrars = registrars
        self._wake = surroundings.wake
        self._stopped = stopped
        self._has_clients = has_clients
        self._owes_answers = owes_answers
        self._answers_until_ns = NEVER
        surroundings.begin()
        self._time = time
        self._linger_until_ns = time.now_ns + linger_ns
        self._deadline = time.add_deadline(self._waited_enough, NEVER)
        if replica.serving:
            self._hand_over()
        else:
            self._linger()
        self._wake()

    def turned(self) -> None:
        """To be called after each turn of the node."""
        if self.state is StopState.HANDS_OVER and not self._replica.serving:
            self._become(StopState.AWAITS_HEIR)
            self._deadline.due_ns = self._time.now_ns + HEIR_NS
        if self.state is StopState.AWAITS_HEIR and not any(one.is_master for one in self._registrars):
            self._linger()
        if self.state is StopState.LINGERS:
            if self._replica.serving:
                self._become(StopState.HANDS_OVER)
                self._hand_over()
            elif not self._has_clients():
                self._say_goodbye()
        if self.state is StopState.SAYS_GOODBYE and all(one.line.is_closed for one in self._registrars):
            self._await_jobs()
        if self.state is StopState.AWAITS_JOBS and not self._jobs.out:
            if self._time.now_ns < self._answers_until_ns and self._owes_answers():
                return
            self._become(StopState.STOPPED)
            self._stopped()

    def _hand_over(self) -> None:
        self._deadline.due_ns = self._time.now_ns + HAND_OVER_NS
        if hand_over(self._replica) is None:
            self._say_goodbye()

    def _linger(self) -> None:
        self._become(StopState.LINGERS)
        self._deadline.due_ns = self._linger_until_ns
        if self._time.now_ns >= self._linger_until_ns or not self._has_clients():
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
            self._await_jobs()
        elif self.state is StopState.AWAITS_JOBS:
            self._wake()

    def _await_jobs(self) -> None:
        self._become(StopState.AWAITS_JOBS)
        self._jobs.is_closed = True
        self._deadline.due_ns = self._answers_until_ns = self._time.now_ns + ANSWERS_NS

    def _become(self, state: StopState) -> None:
        assert state in _NEXT[self.state], f"{self.state.value} to {state.value}"
        self.state = state
        self._wake()
