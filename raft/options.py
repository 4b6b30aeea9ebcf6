"""The numbers of a group that may be tuned; defaults suit a local network."""

from dataclasses import dataclass

_MILLISECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class RaftOptions:
    """All durations are in nanoseconds.

    An election starts after a random silence between `election_timeout_min_ns` and `election_timeout_max_ns` (5.2,
    9.3). The lower one is also how long a voter defends a leader it hears, the upper one how long a leader goes on
    without a majority. `campaign_round_ns` is the time of one round of an election that needs no silence, enough for
    a question, an answer and a flush of the vote: so long each voter waits for the one before it in line, and a round
    for its result; it doubles from round to round, up to `election_timeout_min_ns`.

    `max_inflight_appends`: requests with entries that a follower may leave unanswered.
    `commit_notice_delay_ns`: how long a commit index waits for an append to travel with before it is told alone.
    `max_uncommitted_entries`: proposals beyond it are refused.
    `catch_up_lag_entries`: a member at most this far behind may be promoted, or be handed the leadership unasked.
    `preferred_leaders`: a leader that is not among them hands over to one that is; looked at once in
    `preferred_check_interval_ns`.

    Raises ValueError for a heartbeat interval or an election timeout that is out of order, and for a number that is too
    small.
    """

    election_timeout_min_ns: int = 1000 * _MILLISECOND
    election_timeout_max_ns: int = 2000 * _MILLISECOND
    heartbeat_interval_ns: int = 150 * _MILLISECOND
    campaign_round_ns: int = 50 * _MILLISECOND
    max_inflight_appends: int = 64
    commit_notice_delay_ns: int = 1 * _MILLISECOND
    max_uncommitted_entries: int = 65536
    catch_up_lag_entries: int = 1000
    preferred_leaders: tuple[str, ...] = ()
    preferred_check_interval_ns: int = 1000 * _MILLISECOND

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_interval_ns < self.election_timeout_min_ns:
            raise ValueError("heartbeat_interval_ns must be positive and below election_timeout_min_ns")
        if self.election_timeout_max_ns <= self.election_timeout_min_ns:
            raise ValueError("election_timeout_max_ns must be above election_timeout_min_ns")
        for name in ("campaign_round_ns", "max_inflight_appends", "max_uncommitted_entries"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("commit_notice_delay_ns", "catch_up_lag_entries", "preferred_check_interval_ns"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
