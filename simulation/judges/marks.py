"""States of the protocol that runs should come to: a batch that never reached one has checked nothing there.

Each is noted where the monitor sees it, at the cost of a comparison; a batch adds them up (`trivet simulate --seeds`).
"""

from __future__ import annotations

from typing import Final

from raft.core import Raft
from raft.effects import Role
from raft.messages import AppendResponse, Message, SnapshotRequest, VoteResponse
from simulation.journal import Journal
from simulation.judges.group_model import GroupModel
from simulation.scheduler import SECOND

MARKS: Final = (
    "two candidates of a term",
    "a leader elected while a change of members is uncommitted",
    "a recovering node elected",
    "a leader removed",
    "a former leader leads again",
    "a vote that comes after its term",
    "an acknowledgement that comes after its term",
    "several entries truncated",
    "a log that begins anew",
    "a log that begins anew while nobody leads",
    "a snapshot for a log that reaches beyond it",
    "an earlier term's entry committed",
    "a learner promoted in the first second of a term",
    "two voters",
    "four voters",
    "two learners",
    "a start with lost entries",
    "a start without term or vote",
    "a head deleted for its age",
    "a head deleted on a full disk",
    "a snapshot written while it runs",
    "too many requests wait for a leader",
    "too many requests wait for the leader's answer",
    "too many requests wait for a turn",
    "no room for a topic",
    "no room for a consumer group",
    "no room for an offset",
)


class Marks:
    """Notes in the journal what a group's nodes come to."""

    def __init__(self, journal: Journal, model: GroupModel) -> None:
        self._reached = journal.reached
        self._model = model
        self._candidates: dict[int, str] = {}
        """Term -> its first candidate."""
        self._elected_ns = -SECOND
        self._leaders: list[str] = []
        """In the order of their last election."""
        self._snapshots: dict[str, int] = {}
        """Node -> the last entry that its snapshot covers."""

    def role(self, name: str, role: str, term: int, raft: Raft, now_ns: int) -> None:
        """A node has another role."""
        if role == "candidate" and self._candidates.setdefault(term, name) != name:
            self._reached("two candidates of a term")
        elif role == "leader":
            self._elected_ns = now_ns
            if name in self._leaders[:-1]:
                self._reached("a former leader leads again")
            if name in self._leaders:
                self._leaders.remove(name)
            self._leaders.append(name)
            if raft.configuration_index > raft.commit_index:
                self._reached("a leader elected while a change of members is uncommitted")
            if raft.recovering is not None:
                self._reached("a recovering node elected")

    def heard(self, message: Message, raft: Raft | None) -> None:
        """A message comes to a node of that state."""
        if raft is None:
            return
        match message:
            case VoteResponse(granted=True, pre_vote=False, request_term=term) if term < raft.term:
                if raft.role in (Role.CANDIDATE, Role.PRE_CANDIDATE):
                    self._reached("a vote that comes after its term")
            case AppendResponse(success=True, term=term) if term < raft.term:
                if raft.role is Role.LEADER:
                    self._reached("an acknowledgement that comes after its term")
            case SnapshotRequest(term=term) if term >= raft.term:
                log, last = raft.log_terms, message.first_index - 1
                if raft.commit_index < last < log.last_index and log.matches(last, message.prev_term):
                    self._reached("a snapshot for a log that reaches beyond it")

    def started(self, name: str, raft: Raft, snapshot_index: int) -> None:
        """A node has started."""
        self._snapshots[name] = snapshot_index
        if raft.recovering is not None:
            lost = raft.recovering.name == "ENTRIES"
            self._reached("a start with lost entries" if lost else "a start without term or vote")

    def truncated(self, entries: int) -> None:
        """A node has cut so many entries off its log."""
        if entries > 1:
            self._reached("several entries truncated")

    def reset(self, *, is_led: bool) -> None:
        """A log has begun anew from a leader's snapshot."""
        self._reached("a log that begins anew")
        if not is_led:
            self._reached("a log that begins anew while nobody leads")

    def committed(self, *, is_of_term: bool) -> None:
        """A node has committed an entry that nobody had committed before."""
        if not is_of_term:
            self._reached("an earlier term's entry committed")

    def members_changed(self, voters: tuple[str, ...], now_ns: int) -> None:
        """The committed voters, which were `voters`, are now those of the model."""
        model = self._model
        promoted = [name for name in model.voters if name not in voters]
        if promoted and now_ns - self._elected_ns < SECOND:
            self._reached("a learner promoted in the first second of a term")
        newest_leader = self._leaders[-1] if self._leaders else ""
        for reached, state in (
            (newest_leader in voters and newest_leader not in model.voters, "a leader removed"),
            (len(model.voters) == 2, "two voters"),
            (len(model.voters) == 4, "four voters"),
            (len(model.learners) == 2, "two learners"),
        ):
            if reached:
                self._reached(state)

    def head_deleted(self, *, for_its_age: bool) -> None:
        """The head of a log is gone."""
        self._reached("a head deleted for its age" if for_its_age else "a head deleted on a full disk")

    def turned(self, name: str, snapshot_index: int) -> None:
        """A turn is over."""
        if snapshot_index != self._snapshots.get(name):
            self._snapshots[name] = snapshot_index
            self._reached("a snapshot written while it runs")
