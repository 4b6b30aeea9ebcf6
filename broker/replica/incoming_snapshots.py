"""The snapshots that leaders send to a replica: read in steps, made beside what is there, and written by a worker.

A snapshot may have a hundred thousand rows. It is read in steps, one a turn, and its state and its queues are made
beside those that are there; then a worker writes the files that it brings (log/notes/incoming.py). Raft hears of it
when they are durable, and it replaces all at once. If the node ends before that, it was as if lost on the way.

The rest of the installation is elsewhere: `Follower.install_snapshot` (raft/follower.py) decides whether it replaces
this node's log, `Replica._reset_log` has it replace log and state, and `Store.swap` puts its files into place.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from broker.peers.protocol import BrokenPeerError, RaftFrame
from broker.replica.state_writing import StateWriting
from broker.replica.upkeep import Upkeep
from broker.requests.processing import Pace
from broker.state.snapshot import StateSnapshot, state_read
from broker.state.snapshot_reading import Read
from broker.state.writing import slices
from log.notes.incoming import Incoming
from log.notes.snapshot import Snapshot
from log.queues.consume_queues import EmptyQueues
from log.store import Store
from raft.messages import SnapshotRequest

_ROWS_A_QUEUE: Final = 4
"""To make a queue takes as long as to read so many rows."""


class ReadSnapshot(NamedTuple):
    """A snapshot that a leader has sent, with all that was made of it."""

    frame: RaftFrame
    state: StateSnapshot
    incoming: Incoming


class IncomingSnapshots:
    """The snapshots of leaders, one at a time, until they are on the disk."""

    def __init__(self, store: Store, upkeep: Upkeep, reading: StateWriting, rows_at_once: int) -> None:
        """Snapshots are read by steps of `reading`, of so many rows, and written by a job of `upkeep`."""
        self._store = store
        self._upkeep = upkeep
        self._reading = reading
        self._rows_at_once = rows_at_once
        self.arrived: Callable[[RaftFrame], object]
        """Takes the message of a snapshot that is `written`, and may raise `BrokenPeerError`. To be set at first."""
        self.written: ReadSnapshot | None = None
        """The snapshot that is whole, and on the disk, while the message that brought it is taken."""
        self.broken: tuple[str, BrokenPeerError] | None = None
        """The sender of a snapshot that was read in later turns, and what is wrong with it: its next message is refused
        for that."""
        self._being_read: tuple[str, int, Callable[[], None]] | None = None
        """The sender of the snapshot that is being read, its term, and what gives it up."""

    @property
    def source(self) -> str | None:
        """The sender of the snapshot that is being read; None if none is."""
        return None if self._being_read is None else self._being_read[0]

    def begin(self, frame: RaftFrame, message: SnapshotRequest) -> bool:
        """Reads a snapshot in this turn and those that follow, and has it written; then its message is taken
        (`arrived`).

        Returns True if another turn is wanted. Raises `BrokenPeerError` if it was read at once and is malformed.
        """
        if self._upkeep.writes_snapshot:
            return False  # one is on its way to the disk, and is not called back; as if lost, this one comes again
        if self._being_read is not None:
            source, term, give_up = self._being_read
            if (source, term) == (message.source, message.term):
                return False  # its leader has lost patience
            give_up()
        # Before the first step, which may be the only one: then `_was_read` is called in it.
        self._being_read = None
        give_up_reading = self._reading.begin(
            self._reading_of(frame, message.first_index), lambda read, _: self._was_read(message, read)
        )
        if give_up_reading is not None:
            self._being_read = message.source, message.term, give_up_reading
        self.raise_if_broken(message.source)
        return True

    def raise_if_broken(self, source: str) -> None:
        """Raises what was wrong with the last snapshot of that node, once."""
        if self.broken is not None and self.broken[0] == source:
            _, error = self.broken
            self.broken = None
            raise error

    def _reading_of(self, frame: RaftFrame, first_index: int) -> Read[ReadSnapshot | BrokenPeerError]:
        try:
            state = yield from state_read(memoryview(frame.body), self._rows_at_once)
            queues = yield from self._empty_queues(state.queue_ends)
        except Exception as error:  # whatever its parts raise for malformed bytes
            return BrokenPeerError(f"a snapshot that cannot be read: {type(error).__name__}: {error}")
        snapshot = Snapshot(frame.applied_index, memoryview(frame.body))
        return ReadSnapshot(frame, state, self._store.incoming(first_index, queues, snapshot))

    def _empty_queues(self, ends: dict[tuple[str, int], int]) -> Read[EmptyQueues]:
        """Makes the queues of a snapshot, which begin where those of the leader end."""
        queues, pace = self._store.queues.empty(), Pace(self._rows_at_once)
        for some in slices(ends.items(), max(1, self._rows_at_once // _ROWS_A_QUEUE)):
            queues.add(some)
            if pace.spent(len(some) * _ROWS_A_QUEUE):
                yield
        return queues

    def _was_read(self, message: SnapshotRequest, read: ReadSnapshot | BrokenPeerError) -> None:
        self._being_read = None
        # Nobody who would hear an error need be there in this turn: `begin` raises it, or else the sender's next
        # message.
        if isinstance(read, BrokenPeerError):
            self.broken = message.source, read
        else:
            self._upkeep.write_incoming(read.incoming, partial(self._was_written, read))

    def _was_written(self, read: ReadSnapshot) -> None:
        assert self.written is None, "the message of one snapshot is taken before the next one is written"
        self.written = read
        try:
            self.arrived(read.frame)
        except BrokenPeerError as error:
            self.broken = read.frame.message.source, error
        finally:
            self.written = None
