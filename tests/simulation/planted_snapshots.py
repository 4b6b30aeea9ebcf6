"""Mistakes about snapshots that do not get to the node that needs them, each put into the real code by a patch.

Each does harm only where something fails while a snapshot is on its way. `planted_bugs` lists them.
"""

from __future__ import annotations

import pytest

from broker.peers.protocol import RaftFrame
from broker.replica.incoming_snapshots import IncomingSnapshots
from broker.replica.upkeep import Upkeep
from log.errors import FlushError
from log.notes.incoming import Incoming
from raft.messages import SnapshotRequest
from raft.progress import PeerState, Progress
from tests.simulation.planting import planted


@planted(
    "snapshot: one that finds no room is kept", "broker/replica/upkeep.py: a leader sends its snapshot again"
)
def one_that_finds_no_room_is_kept(patch: pytest.MonkeyPatch) -> None:
    """A leader's, for which the disk was full once, is taken for one under way: no other is taken."""
    original = Upkeep.incoming_saved

    def incoming_saved(self: Upkeep, job: Incoming, now_ns: int) -> None:
        original(self, job, now_ns)
        if job.refused is not None:
            self._incoming = job

    patch.setattr(Upkeep, "incoming_saved", incoming_saved)


@planted(
    "snapshot: one that cannot be written is waited for",
    "broker/replica/jobs.py: nobody knows what the disk holds",
)
def one_that_cannot_be_written_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    """The node goes on behind an error of its disk, and the job never comes back."""
    run, saved = Incoming.run, Upkeep.incoming_saved
    failed: dict[int, Incoming] = {}

    def run_and_fail(self: Incoming) -> None:
        try:
            run(self)
        except FlushError:
            failed[id(self)] = self

    def incoming_saved(self: Upkeep, job: Incoming, now_ns: int) -> None:
        if id(job) not in failed:
            saved(self, job, now_ns)

    patch.setattr(Incoming, "run", run_and_fail)
    patch.setattr(Upkeep, "incoming_saved", incoming_saved)


@planted(
    "snapshot: one that was lost with its link is on its way",
    "raft/progress.py: all that is under way is lost",
)
def one_that_was_lost_with_its_link_is_on_its_way(patch: pytest.MonkeyPatch) -> None:
    """Nobody sends it again to a node that is there again."""
    original = Progress.disconnected

    def disconnected(self: Progress) -> None:
        was_sent = self.state is PeerState.SNAPSHOT and self.snapshot_deadline is not None
        original(self)
        if was_sent:
            self.become_snapshot()

    patch.setattr(Progress, "disconnected", disconnected)


@planted(
    "snapshot: another leader's is not begun", "broker/replica/incoming_snapshots.py: the newer one is read"
)
def another_leaders_is_not_begun(patch: pytest.MonkeyPatch) -> None:
    """That of the leader before is given up for it, and it counts as being read from then on."""
    original = IncomingSnapshots.begin

    def begin(self: IncomingSnapshots, frame: RaftFrame, message: SnapshotRequest) -> bool:
        being_read = self._being_read
        if being_read is None or being_read[:2] == (message.source, message.term):
            return original(self, frame, message)
        _, _, give_up = being_read
        give_up()
        self._being_read = message.source, message.term, lambda: None
        return False

    patch.setattr(IncomingSnapshots, "begin", begin)
