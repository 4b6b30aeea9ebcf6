"""The reasons why a node's role, term or leader has changed: every transition of the table in core.py names its cause.

What only the caller can know, that this node itself stood still, it says by `Raft.paused`; the silence that falls into
such a pause counts for nothing, and what follows from it elsewhere is put down to it, and not to a peer.
"""

from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    """The kinds of causes; what `Cause.peer` and `Cause.after_ns` say of each stands behind it."""

    NO_HEARTBEAT = "no heartbeat"  # the leader that was silent, and for how long
    CONNECTION_LOST = "connection lost"  # the leader, or the path to it, that is gone
    NO_LEADER = "no leader"  # an election timeout passed, and none was heard of
    ONLY_VOTER = "only voter"
    HIGHER_TERM = "higher term"  # who told of it
    MAJORITY_LOST = "majority lost"  # how long no majority has answered this leader
    TRANSFER = "transfer"  # the other side of a transfer that an operator asked for
    PREFERRED = "preferred leader"  # the preferred leader that this one makes way for
    STOP = "orderly stop"  # the heir
    DISK_FULL = "disk full"  # the heir, whose disk has room; none where this node has none and resigns
    REMOVED = "removed"
    PRE_VOTE_WON = "pre-vote won"
    ELECTED = "elected"
    VOTES_REFUSED = "votes refused"
    LEADER_HEARD = "leader heard"  # the leader
    TERM_LEARNED = "term learned"  # a node without a term has been told one (recovery.py)
    LOOP_STALLED = "loop stalled"  # how long this node did nothing at all; the peer as without the pause
    SLOW_FLUSH = "slow flush"  # how long this node waited for its disk, likewise


@dataclass(frozen=True, slots=True)
class Cause:
    """A reason, whom it is about, and how long that lasted in ns (0 where time plays no part)."""

    reason: Reason
    peer: str | None = None
    after_ns: int = 0


@dataclass(frozen=True, slots=True)
class Pause:
    """This node did nothing from `begin_ns` to `end_ns`, for LOOP_STALLED or SLOW_FLUSH."""

    reason: Reason
    begin_ns: int
    end_ns: int
