"""The messages that raft has a replica send to its peers: votes, answers, runs of the log's entries, snapshots of the
state.

It goes into the outboxes of the links, and leaves the process when the turn sends. A peer without a link gets nothing,
as any network may lose it; raft sends again.
"""

from collections.abc import Callable
from typing import Final

import structlog

from broker.peers import protocol as peer_protocol
from broker.peers.protocol import LOST_VOTERS_SINCE, LOST_VOTES_SINCE, RaftFrame
from broker.remoting.pieces import Pieces
from broker.replica.applied import AppliedState
from broker.replica.basis import Basis
from broker.requests.connection import Connection
from log.entries.entry_log import EntryLog, Run
from log.entries.entry_reads import check_run, index_of
from log.errors import DamagedEntryError
from raft.effects import Role, Send, SnapshotNeeded
from raft.messages import (
    AppendRequest,
    AppendResponse,
    Message,
    RecoveryRequest,
    RecoveryResponse,
    SnapshotRequest,
    VoteResponse,
)

log = structlog.get_logger("trivet.replica")

SNAPSHOT_NS_PER_BYTE: Final = 50
"""The time that a snapshot may take on its way to a peer and there, by its size: 20 MB/s."""

_UNSENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""No snapshot is begun while more waits for its link: an earlier one that is on its way, as many appends, or what this
node forwarded there before it led, of which four times as much may wait (broker/node/forwarding.py). Relayed responses
alone stop at half of it (broker/node/relayed_clients.py)."""


def clip(entries: EntryLog, bytes_max: int, first_index: int, last_index: int) -> Run:
    """Returns the entries of one append, for raft: as many as fit, from `first_index` to `last_index` at most.

    They end before an entry whose header is damaged. If that is the first one the run has no bytes.
    """
    while True:
        try:
            return entries.run(first_index, last_index, bytes_max)
        except DamagedEntryError as error:
            damaged = index_of(entries, error.position)
            if damaged is None or damaged <= first_index:
                return Run(first_index, error.position, memoryview(b""))
            last_index = damaged - 1


class ToPeers:
    """The sends of one replica."""

    def __init__(
        self,
        basis: Basis,
        links: dict[str, Connection],
        link_versions: dict[str, int],
        applied: AppliedState,
    ) -> None:
        self._links = links
        self._link_versions = link_versions
        self._log = basis.store.log
        self._raft = basis.raft
        self._applied = applied
        self._disk_space = basis.disk_space
        self._clock = basis.clock
        self._time = basis.time
        self._snapshots: dict[str, Callable[[], None]] = {}
        """The calls that give up the snapshot being written for a peer, by peer."""

    def send(self, effect: Send) -> None:
        """Queues a message of raft's, with the entries that it carries."""
        message, run = effect.message, effect.run
        link = self._links.get(message.target)
        if link is None:
            return
        if isinstance(message, AppendResponse):
            # The position of an answer says whether there is room here (`RaftFrame`).
            frame = RaftFrame(message, int(self._disk_space.refuses_sends))
        elif isinstance(message, VoteResponse):
            if message.lost_voters and self._link_versions[message.target] < LOST_VOTERS_SINCE:
                # Without these names it would count where not all of them agree (raft/recovery.py, Unanimity).
                message = message._replace(granted=False, lost_voters=())
            frame = RaftFrame(message, time_ms=self._clock.time_ms if self._clock.is_agreed else -1)
        elif isinstance(message, RecoveryRequest | RecoveryResponse):
            frame = RaftFrame(self._as_read_by(message))
        elif not isinstance(message, AppendRequest):
            assert run is None, "only appends carry entries"
            frame = RaftFrame(message)
        elif run is None:
            frame = RaftFrame(message, time_ms=self._time.group_ms)
        else:
            assert isinstance(run, Run), "clipped by this replica's own log"
            # Damage is as if lost on the way: raft sends it again, and `repairs` has it put back.
            if not run.body:
                return
            try:
                check_run(self._log, message.prev_index + 1, run)
            except DamagedEntryError:
                return
            frame = RaftFrame(message, run.position, body=run.body, time_ms=self._time.group_ms)
        link.send(*peer_protocol.encode_frame(frame))

    def _as_read_by(self, message: RecoveryRequest | RecoveryResponse) -> Message:
        """Returns the message without the field that its target cannot read."""
        if self._link_versions[message.target] >= LOST_VOTES_SINCE:
            return message
        if isinstance(message, RecoveryRequest):
            return message._replace(lost_votes=False)
        return message._replace(voters=())

    def begin_snapshot(self, effect: SnapshotNeeded) -> None:
        """Begins to write the state for a peer that lacks what is deleted here; some turns later it is sent.

        Not before the state is that of one place in the log: queues that end earlier than the snapshot says would go on
        there on the peer, once that has deleted what is between, and offsets be given twice.
        """
        message, applied = effect.message, self._applied
        link = self._links.get(message.target)
        if link is None or not applied.is_of_one_place(applied.index):
            self._raft.snapshot_failed(message.target)
            return
        # A slow link has not taken the last one yet. Others behind it would be memory here, and on the link they would
        # keep entries and heartbeats waiting: it is asked for again.
        if link.unread_bytes > _UNSENT_BYTES_MAX:
            self._raft.snapshot_sent(message.target, self._time.now_ns)
            return
        # Named by where its writing begins: what is applied until its end is not in it.
        frame = RaftFrame(message, self._log.first_position, applied.index)
        if (give_up := self._snapshots.pop(message.target, None)) is not None:
            give_up()
        give_up = applied.writing.begin(applied.written(), lambda state, _: self._send_snapshot(frame, state))
        if give_up is not None:
            self._snapshots[message.target] = give_up

    def _send_snapshot(self, frame: RaftFrame, state: Pieces) -> None:
        """Sends a snapshot that was wanted some turns ago, if it is of use still."""
        message, raft, now_ns = frame.message, self._raft, self._time.now_ns
        assert isinstance(message, SnapshotRequest), "snapshots are sent by such a message"
        self._snapshots.pop(message.target, None)
        link = self._links.get(message.target)
        # It was begun some turns ago. If the head of the log has gone meanwhile, the peer would lack entries behind it
        # again.
        leads = raft.role is Role.LEADER and raft.term == message.term
        if link is None or not leads or message.first_index != self._log.first_index:
            raft.snapshot_failed(message.target)
            return
        try:
            buffers = peer_protocol.encode_snapshot(frame, state)
        except peer_protocol.PeerProtocolError as error:
            log.warning("snapshot not sent", target=message.target, reason=str(error))
            raft.snapshot_failed(message.target)
            return
        link.send(*buffers)
        # A long one is on its way for a while, and is not to be sent again meanwhile.
        length = sum(map(len, buffers))
        raft.snapshot_sent(message.target, now_ns + length * SNAPSHOT_NS_PER_BYTE)
