"""The group's time goes on from leader to leader (broker/replica/group_clock.py), whatever wall clocks show.

Who is elected has heard the time from the leader that it followed last. What it makes of that is compared with what
that leader's time was, and with the true time that has passed: it neither falls back nor leaps ahead. A node that has
heard no leader since it started is passed over: it may have been told by anybody, or ask wall clocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.peers.protocol import RaftFrame
from broker.replica.replica import Replica
from raft.effects import Role
from simulation.journal import Violation
from simulation.scheduler import MILLISECOND

GOES_ON: Final = "the group's time goes on from leader to leader"

_RATE: Final = 0.12
"""Two monotonic clocks are each wrong by five percent at most, and the leader's time slews by one."""
_RATE_BEHIND: Final = _RATE + 1.05 / 8
"""Of a node that hears words from before: it goes back by an eighth of the time that it has counted (`DRIFT`)."""
_SLACK_NS: Final = 50 * MILLISECOND
"""Times are whole milliseconds, and a leader's is the one at the beginning of its turn."""


@dataclass(slots=True)
class _Heard:
    """The leader's time, as a node has heard it."""

    term: int
    true_ns: int
    error_ns: float
    """How wrong the node's time may have been just then."""
    sets: bool = False
    """The next word sets the time, however late it is: the node has followed nobody, or somebody else, since."""


class GroupTime:
    """Watches the clocks of a group. Times are true ones."""

    def __init__(self) -> None:
        self._leaders: dict[int, tuple[int, int]] = {}
        """By term, when its leader had its last turn, and the group's time then (ns)."""
        self._heard: dict[str, _Heard] = {}

    def stopped(self, name: str) -> None:
        """The process of a node has ended."""
        self._heard.pop(name, None)

    def turned(self, name: str, replica: Replica, now_ns: int) -> None:
        """A node has had its turn."""
        if replica.raft.role is Role.LEADER:
            self._leaders[replica.term] = now_ns, replica.clock.ahead_ms(0) * MILLISECOND
            self._heard[name] = _Heard(replica.term, now_ns, 0)

    def taken(self, frame: RaftFrame, replica: Replica, now_ns: int) -> None:
        """A node has taken a message."""
        message = frame.message
        said = frame.time_ms >= 0 and message.term == replica.term and message.source == replica.leader
        if not said or message.term not in self._leaders:
            return
        late_ns = max(0, self._expected_ns(message.term, now_ns) - frame.time_ms * MILLISECOND)
        heard = self._heard.get(message.target)
        error_ns: float = late_ns
        if heard is not None and heard.term == message.term and not heard.sets:
            error_ns = min(late_ns, heard.error_ns + _RATE_BEHIND * (now_ns - heard.true_ns))
        self._heard[message.target] = _Heard(message.term, now_ns, error_ns)

    def role(self, name: str, replica: Replica, now_ns: int) -> None:
        """A node's role, its term or the leader that it follows has changed. Raises Violation."""
        heard = self._heard.get(name)
        if heard is None:
            return
        heard.sets = True
        if replica.raft.role is Role.LEADER:
            time_ns, expected_ns = (
                replica.clock.ahead_ms(0) * MILLISECOND,
                self._expected_ns(heard.term, now_ns),
            )
            may_be_ns = _SLACK_NS + heard.error_ns + _RATE * (now_ns - heard.true_ns)
            if abs(time_ns - expected_ns) > may_be_ns:
                raise Violation(
                    GOES_ON,
                    name,
                    f"its time in term {replica.term} is ahead by {(time_ns - expected_ns) / 1e9:.3f} s of that of "
                    f"term {heard.term}, which it heard {(now_ns - heard.true_ns) / 1e9:.3f} s ago",
                )

    def _expected_ns(self, term: int, now_ns: int) -> int:
        """Returns the group's time now if it has gone on as true time has since the last turn of that term's leader."""
        true_ns, time_ns = self._leaders[term]
        return time_ns + now_ns - true_ns
