"""The group's time goes on from leader to leader (broker/replica/group_clock.py), whatever wall clocks show.

Who is elected has heard the time from the leader that it followed last. What it makes of that is compared with what
that leader's time was, and with the true time that has passed: it neither falls back nor leaps ahead. A node that has
heard no leader since it started is passed over: it may have been told by anybody, or ask wall clocks. Where a leader's
clock has stood still, who follows it is ahead, and may be until that leader's words have all been behind for `LATE_NS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.peers.protocol import RaftFrame
from broker.replica.group_clock import LATE_NS
from broker.replica.replica import Replica
from raft.effects import Role
from simulation.journal import Violation
from simulation.scheduler import MILLISECOND, SECOND

GOES_ON: Final = "the group's time goes on from leader to leader"

_RATE: Final = 0.12
"""Two monotonic clocks are each wrong by five percent at most, and the leader's time slews by one."""
_RATE_BEHIND: Final = _RATE + 1.05 / 8
"""The rate of a node that hears words from before: it goes back by an eighth of the time that it has counted (`DRIFT`).
"""
BELIEVED_NS: Final = int(1.06 * LATE_NS) + SECOND
"""By any monotonic clock, and until the next word, which a leader has sent a heartbeat later."""
_SLACK_NS: Final = 50 * MILLISECOND
"""Times are whole milliseconds, and a leader's is the one at the beginning of its turn."""


@dataclass(slots=True)
class _Heard:
    """The leader's time, as a node has heard it."""

    term: int
    true_ns: int
    error_ns: float
    """The most that the node's time may have been wrong just then."""
    sets: bool = False
    """The next word sets the time, however late it is: the node has followed nobody, or somebody else, since."""
    ahead_ns: int = 0
    """How long the leader's clock stood still in pauses that the node has heard of since `ahead_since_ns`: as it may
    not have believed the leader yet, it may be ahead by so much."""
    ahead_since_ns: int = 0
    stood_ns: int = 0
    """How long the leader's clock had stood still in all when its last word came."""


class GroupTime:
    """Watches the clocks of a group. Times are true ones."""

    def __init__(self) -> None:
        self._leaders: dict[int, tuple[int, int]] = {}
        """By term, when its leader had its last turn, and the group's time then (ns)."""
        self._led: dict[str, int] = {}
        """By node, the last term that it has led."""
        self._stood_ns: dict[int, int] = {}
        """By term, for how long its leader's clock has stood still in all, if it has."""
        self._heard: dict[str, _Heard] = {}

    def stopped(self, name: str) -> None:
        """The process of a node has ended."""
        self._heard.pop(name, None)

    def stood_still(self, name: str, duration_ns: int) -> None:
        """A node's machine was suspended: its monotonic clock has stood still for so long."""
        if name in self._led:
            term = self._led[name]
            self._stood_ns[term] = self._stood_ns.get(term, 0) + duration_ns
        if name in self._heard:
            self._heard[name].error_ns += duration_ns

    def turned(self, name: str, replica: Replica, now_ns: int) -> None:
        """A node has had its turn."""
        term = replica.term
        if replica.raft.role is Role.LEADER:
            time_ns = replica.clock.ahead_ms(0) * MILLISECOND
            self._leaders[term] = now_ns, time_ns
            self._led[name] = term
            self._heard[name] = _Heard(term, now_ns, 0)

    def taken(self, frame: RaftFrame, replica: Replica, now_ns: int) -> None:
        """A node has taken a message."""
        message = frame.message
        said = frame.time_ms >= 0 and message.term == replica.term and message.source == replica.leader
        if not said or message.term not in self._leaders:
            return
        late_ns = max(0, self._expected_ns(message.term, now_ns) - frame.time_ms * MILLISECOND)
        heard = self._heard.get(message.target)
        now = _Heard(message.term, now_ns, late_ns, stood_ns=self._stood_ns.get(message.term, 0))
        if heard is not None and heard.term == message.term and not heard.sets:
            now.error_ns = min(late_ns, heard.error_ns + _RATE_BEHIND * (now_ns - heard.true_ns))
            now.ahead_ns = heard.ahead_ns + now.stood_ns - heard.stood_ns
            is_new = now.stood_ns != heard.stood_ns or now_ns - heard.true_ns >= LATE_NS
            now.ahead_since_ns = now_ns if is_new else heard.ahead_since_ns
            if now_ns - now.ahead_since_ns > BELIEVED_NS:
                now.ahead_ns = 0
        self._heard[message.target] = now

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
            # The word may be of one that led no more, and stood for it by its own clock since its last turn as leader.
            counted_from_ns = min(heard.true_ns, self._leaders[heard.term][0])
            may_be_ns = _SLACK_NS + heard.error_ns + _RATE * (now_ns - counted_from_ns)
            ahead_ns = heard.ahead_ns + self._stood_ns.get(heard.term, 0) - heard.stood_ns
            if not -may_be_ns <= time_ns - expected_ns <= may_be_ns + ahead_ns:
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
