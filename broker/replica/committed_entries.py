"""The entries that are committed and not applied yet: when they are applied, and who is told what.

A leader applies them in the turn in which they are committed. A follower rests between two passes, for a pass over a
hundred entries costs little more than one over ten, and catches up when somebody asks it.
"""

from typing import Any, Final

from broker.replica.applied import AppliedState
from broker.replica.basis import Basis
from broker.replica.leadership import Leadership
from broker.replica.trace import ReplicaTrace
from broker.state.commands import Command
from raft.effects import Committed

FOLLOWER_RESTS_NS: Final = 10_000_000
"""A follower that has dispatched does so again after this time at the earliest, unless much is waiting. What it learns
of commits is late in any case."""

FOLLOWER_RESTS_ENTRIES_MAX: Final = 1000
"""The most committed entries that a follower leaves for later: as a new leader it dispatches them before it serves."""


class CommittedEntries:
    """The entries of one replica behind `AppliedState.index`, up to `index`."""

    __slots__ = (
        "_applied",
        "_disk_space",
        "_leadership",
        "_observer",
        "_raft",
        "_rests_until_ns",
        "_snapshot_interval_entries",
        "_store",
        "_time",
        "_trace",
        "index",
    )

    def __init__(
        self,
        basis: Basis,
        applied: AppliedState,
        leadership: Leadership,
        trace: ReplicaTrace,
        snapshot_interval_entries: int,
    ) -> None:
        """A snapshot of the state begins each time that `snapshot_interval_entries` more are applied than the last one
        reflects."""
        self.index = basis.raft.commit_index
        """The last entry of whose commit raft has told. Always applied index <= committed index <= last index."""
        self._store = basis.store
        self._raft = basis.raft
        self._applied = applied
        self._leadership = leadership
        self._disk_space = basis.disk_space
        self._trace = trace
        self._observer = basis.observer
        self._time = basis.time
        self._snapshot_interval_entries = snapshot_interval_entries
        self._rests_until_ns = 0
        """A follower applies from then on, or if much is waiting."""

    def committed(self, effect: Committed) -> None:
        """Notes that a majority holds the entries up to there, as raft says; turns apply them."""
        # The same one comes behind a log that began anew, which `Replica` has noted with it.
        assert self.index <= effect.index <= self._store.log.last_index, (
            f"committed up to {effect.index}, behind {self.index}, of a log up to {self._store.log.last_index}"
        )
        self.index = effect.index

    @property
    def due_ns(self) -> int:
        """The time from which on more of what is committed may be applied."""
        due_ns = self._disk_space.dispatch_due_ns
        # A leader does not rest: it has those who wait until an entry is applied.
        if (
            self._leadership.serving_from is None
            and due_ns < self._rests_until_ns
            and self.index - self._applied.index <= FOLLOWER_RESTS_ENTRIES_MAX
        ):
            return self._rests_until_ns
        return due_ns

    @property
    def is_behind(self) -> bool:
        """True if more is committed than one turn has applied, and need not wait: the next turn is wanted at once."""
        return self._applied.index < self.index and self._time.now_ns >= self.due_ns

    def tell_committed(self) -> None:
        """Tells the trace, and then those who wait for no more, what is committed: a checker compares the two."""
        if self._trace.is_kept:
            self._trace.committed(self._time.now_ns, self.index, self._raft.term)
        self._leadership.uncommitted.committed(self.index)

    def tell_more(self) -> None:
        """Tells some more of those who wait for what is committed or applied already."""
        self.tell_committed()
        self._leadership.uncommitted.applied(self._applied.index)

    def apply_and_answer(self, upto: int) -> None:
        """Dispatches and applies entries, then answers: all who are answered in this turn can read what they wrote.

        They are those up to `upto`, or fewer (`AppliedState.apply`).
        """
        time, leadership = self._time, self._leadership
        arrivals = self._applied.apply(upto, time.now_ns, time.group_ms, self._command_applied)
        upto = self._applied.index
        # It rests when all is applied: a slice is not to be the most of ten milliseconds.
        self._rests_until_ns = time.now_ns + FOLLOWER_RESTS_NS if upto >= self.index else 0
        if self._trace.is_kept:
            self._trace.dispatched(time.now_ns, upto)
        serving_from = leadership.serving_from
        if serving_from is not None and not leadership.serving and upto >= serving_from:
            # What earlier leaders took arrives while this one does not serve yet: it is not counted as its own.
            if arrivals:
                self._observer.arrived(arrivals)
                arrivals = []
            leadership.start_serving()
        leadership.uncommitted.applied(upto)
        if arrivals:
            self._observer.arrived(arrivals)
        if upto - self._store.snapshot.applied_index > self._snapshot_interval_entries:
            self._applied.save()

    def _command_applied(self, index: int, command: Command, result: Any) -> None:
        self._leadership.uncommitted.command_applied(index, result)
        self._observer.metadata_changed(command)

    def catch_up(self) -> None:
        """Applies what a follower knows as committed and has left for later, or as much of it as one turn may: whoever
        asks this node now is to find it. Does nothing on a leader, and none of it while that has to wait for room or a
        repair."""
        if self._leadership.serving_from is None and self._time.now_ns >= self._disk_space.dispatch_due_ns:
            self._rests_until_ns = 0
            upto = min(self.index, self._applied.index + self._store.options.dispatch_entries)
            if upto > self._applied.index:
                # As in `tell_committed`: the trace knows of the commit before anybody is told what follows from it.
                if self._trace.is_kept:
                    self._trace.committed(self._time.now_ns, self.index, self._raft.term)
                self.apply_and_answer(upto)
