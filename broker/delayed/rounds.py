"""When delivering goes on: for delay levels and for timers alike.

A round delivers what is due, and says when to look again. What the log refuses is tried again soon. When nothing more
follows for a while, the log is told that the last batch is done: the next batch says so, too, and mostly comes soon.
"""

from collections.abc import Callable
from typing import Final

from broker.delayed.deliveries import tell_of_refusal
from broker.node.ports import Appends
from broker.requests.deadline import NEVER, Time
from broker.requests.errors import BatchUnderWayError, ReplicaError
from broker.statistics.events import Events
from log.errors import DiskFullError

RETRY_NS: Final = 100_000_000
"""After what could not be appended or read, the time to the next attempt."""


class Rounds:
    """Has a service deliver when something is due, and put off what the log does not take now."""

    def __init__(
        self,
        what: str,
        deliver: Callable[[], None],
        idle_ns: int,
        appends: Appends,
        time: Time,
        events: Events,
        due_ns: int = NEVER,
    ) -> None:
        """`deliver` may raise as `Leadership.propose_command`; whoever is on call is told that `what` waits then.

        After `idle_ns` without a delivery the last batch is settled. The first round comes at `due_ns`.
        """
        self._what = what
        self._deliver = deliver
        self._idle_ns = idle_ns
        self._appends = appends
        self._time = time
        self._events = events
        self._idle_from_ns = 0
        """The last batch was committed then, or settled."""
        self._blocked_until_ns = 0
        self._deadline = time.add_deadline(self._run, due_ns)

    def look_now(self) -> None:
        """A round comes in the next turn."""
        self.look_at(self._time.now_ns)

    def look_at(self, due_ns: int) -> None:
        """A round comes then, if none does before."""
        self._deadline.due_ns = min(self._deadline.due_ns, due_ns)

    def look_no_more(self) -> None:
        """No round comes before somebody says when."""
        self._deadline.due_ns = NEVER

    def put_off(self) -> None:
        """The next round comes in `RETRY_NS`, and none before."""
        self._deadline.due_ns = self._blocked_until_ns = self._time.now_ns + RETRY_NS

    def committed(self) -> None:
        """A batch is committed: the next one may follow."""
        self.idle_from_now()
        self.look_now()

    def idle_from_now(self) -> None:
        """Nothing is to be settled before it has been idle for as long again."""
        self._idle_from_ns = self._time.now_ns

    def is_idle(self) -> bool:
        """Tells whether nothing has been delivered for so long that the last batch is to be settled.

        If not, there will be a round when it is.
        """
        idle_at_ns = self._idle_from_ns + self._idle_ns
        if self._time.now_ns >= idle_at_ns:
            return True
        self.look_at(idle_at_ns)
        return False

    def _run(self) -> None:
        if self._time.now_ns < self._blocked_until_ns:
            self._deadline.due_ns = self._blocked_until_ns
            return
        self._deadline.due_ns = NEVER
        try:
            self._deliver()
        except BatchUnderWayError:
            # No refusal of which to tell: it goes on as soon as the batch is over, whatever else waits for that.
            self._appends.batches.when_over(self._run)
        except (ReplicaError, DiskFullError) as error:
            # The log takes no more now, or is not this node's to write any more.
            tell_of_refusal(self._events, self._what, error, self._time.now_ns)
            self.put_off()
