"""The follower's part of replication (5.3): it takes its leader's requests and acknowledges them.

Up to `_agreed_index` this log is known to be the leader's: the index begins at the commit index, rises with every
request that fits, and holds for the leader's term, since a leader never changes its log. What is acknowledged is
the smaller of it and what is on the disk. An acknowledgement covers everything before it, so one is sent at the end
of the turn, however many requests and flushes came to an end in it; entries that are not on the disk wait for the
turn in which they are. A refusal is sent at once.

A follower without room for entries hears its leader, and takes none. It answers heartbeats with one entry less than it
has: that is true, the leader goes on to count its answers, and the leader's open probe, which such an answer does not
close, keeps it from sending entries over and over. The first answer in full, when there is room, has them sent again.
"""

from raft.effects import AcceptEntries
from raft.errors import ImpossibleMessage
from raft.messages import AppendRequest, AppendResponse, SnapshotRequest, SnapshotResponse
from raft.state import NodeState


class Follower:
    """A follower's view of one leader's log; a new one for every term."""

    __slots__ = ("_acknowledged_index", "_agreed_index", "_answer_due", "_round", "_state")

    def __init__(self, state: NodeState) -> None:
        self._state = state
        # Always: commit index <= agreed index <= last index, and acknowledged index <= agreed index, which rises only.
        # A leader has all that is committed (leader completeness, 5.4.3), so the logs agree up to there at least.
        self._agreed_index = state.commit_index
        self._acknowledged_index = self._agreed_index
        # The latest heartbeat round that the leader has told.
        self._round = 0
        self._answer_due = False

    def append(self, request: AppendRequest) -> None:
        """Takes the entries that are new, if they follow what is here; answers as `AppendRequest` says."""
        state = self._state
        log = state.log
        if state.lacks_room and request.spans:
            return  # as if lost on the way
        # The consistency check of 5.3. What is committed here is the same there and needs none; this log may not even
        # reach back to prev_index.
        if request.prev_index > state.commit_index and not log.matches(request.prev_index, request.prev_term):
            self._refuse(request)
            return
        last_index = request.last_index
        if request.spans and last_index > state.commit_index:
            self._accept(request, last_index)
        self._agreed_index = max(self._agreed_index, last_index)
        # Figure 2, AppendEntries 5: entries after the ones agreed on may still differ from the leader's.
        commit_index = min(request.commit_index, self._agreed_index)
        if commit_index > state.commit_index:
            state.advance_commit(commit_index)
        news = request.round > self._round
        if news:
            self._round = request.round
        # Entries that are not on the disk are answered when they are, but a new round does not wait for a disk.
        if request.spans:
            if news or state.persisted.index >= last_index:
                self._answer_due = True
        # Round 0 tells a commit index, and wants no answer.
        elif request.round:
            self._answer_due = True

    def _accept(self, request: AppendRequest, last_index: int) -> None:
        """Adds the entries of the request that this log lacks; entries in conflict with them go first (5.3).

        Raises `ImpossibleMessage` if they contradict what the same leader said before.
        """
        state = self._state
        log = state.log
        # What is here under the same index and term is the same (figure 3, log matching), and stays: a request that
        # comes late or twice takes nothing away that a newer one has brought.
        first_new = self._first_new(request)
        if first_new > last_index:
            return
        if first_new <= self._agreed_index:
            raise ImpossibleMessage(f"the leader of term {state.term} has changed its log at {first_new}")
        if first_new <= log.last_index:
            state.truncate(first_new - 1)
        index = request.prev_index + 1
        for term, count in request.spans:
            end = index + count
            if end > first_new:
                log.append(term, end - max(index, first_new))
            index = end
        state.change_log(AcceptEntries(request, first_new, first_new - request.prev_index - 1))
        for index, configuration in request.configurations:
            if index >= first_new:
                state.append_configuration(index, configuration)

    def _first_new(self, request: AppendRequest) -> int:
        """Returns the first entry of the request that this log lacks or contradicts; one past the last if there is
        none."""
        state = self._state
        prev_index, spans = request.prev_index, request.spans
        # Nearly always: it goes on where this log ends.
        if prev_index == state.log.last_index:
            return prev_index + 1
        skipped = state.commit_index - prev_index
        if skipped <= 0:
            return state.log.first_difference(prev_index, spans)
        # What is committed is the same in both logs (5.4.3). It is not compared, and may be gone from this one.
        remaining = []
        for term, count in spans:
            if skipped < count:
                remaining.append((term, count - skipped))
            skipped = max(0, skipped - count)
        return state.log.first_difference(state.commit_index, remaining)

    def contradicts(self, request: AppendRequest) -> bool:
        """Returns True if entries of this log would have to go for those of the request."""
        log = self._state.log
        if not request.spans or request.prev_index >= log.last_index:
            return False  # all of them are new
        return self._first_new(request) <= min(log.last_index, request.last_index)

    def _refuse(self, request: AppendRequest) -> None:
        """Refuses, with a hint that lets the leader pass over a whole term at a time (the end of 5.3)."""
        state = self._state
        # A refusal, too, says that its leader was heard in this round (dissertation 6.4).
        self._round = max(self._round, request.round)
        # All before this log is committed, so that the logs agree there, whatever the refused term is.
        hint_index = max(
            state.log.last_not_after(request.prev_index, request.prev_term), state.log.first_index - 1
        )
        state.send(
            AppendResponse(
                state.node_id,
                request.source,
                state.term,
                False,
                self._holds(),
                request.prev_index,
                self._round,
                hint_index,
                state.log.term_at(hint_index),
                recovering=state.recovering,
            )
        )

    def _holds(self) -> int:
        """Returns the index up to which the leader may count on this log."""
        return min(self._agreed_index, self._state.counted_index)

    def persisted(self) -> None:
        """Has an acknowledgement sent if it covers more, now that more of the log is on the disk."""
        if min(self._agreed_index, self._state.persisted.index) > self._acknowledged_index:
            self._answer_due = True

    @property
    def agreed_index(self) -> int:
        """The entry up to which this log is known to be the leader's."""
        return self._agreed_index

    @property
    def owes_answer(self) -> bool:
        """True when `acknowledge` has something to send."""
        return self._answer_due

    def acknowledge(self) -> None:
        """Ends a turn: sends the acknowledgement that is due, if one is."""
        state = self._state
        # Without a leader there is nobody to tell: a flush may end when it is lost.
        if not self._answer_due or state.leader is None:
            return
        assert state.commit_index <= self._agreed_index <= state.log.last_index, (
            f"agreed up to {self._agreed_index}, in a log that ends at {state.log.last_index} and is committed to "
            f"{state.commit_index}"
        )
        self._answer_due = False
        self._acknowledged_index = durable = self._holds()
        agreed = self._agreed_index
        # One entry less than it has: that is true, and keeps the leader from sending entries (the module says how).
        if state.lacks_room:
            agreed = min(agreed, max(state.log.last_index - 1, -1))
            durable = min(durable, agreed)
        state.send(
            AppendResponse(
                state.node_id,
                state.leader,
                state.term,
                True,
                durable,
                agreed,
                self._round,
                recovering=state.recovering,
            )
        )

    def install_snapshot(self, request: SnapshotRequest) -> None:
        """Begins anew where the leader's log begins, unless this log reaches as far (section 7).

        Raises ImpossibleMessage if that contradicts what the same leader said before.
        """
        state = self._state
        base_index = request.first_index - 1
        # A log that has the entry before the snapshot's end keeps what follows it (figure 13, step 6).
        if base_index > state.commit_index and not state.log.matches(base_index, request.prev_term):
            if base_index <= self._agreed_index:
                raise ImpossibleMessage(
                    f"the leader of term {state.term} has changed its log at {base_index}"
                )
            state.reset_log(
                request.first_index, request.prev_term, request.configuration_index, request.configuration
            )
        self._agreed_index = max(self._agreed_index, base_index)
        state.send(SnapshotResponse(state.node_id, request.source, state.term, self._holds()))
