"""A replica records its roles, appends, truncations, commits and digests (docs/trace-format.md).

Appends are recorded once a turn, as ranges of one term, so that recording costs nothing per message. A digest of the
committed prefix is taken at every index that is a multiple of `DIGEST_INTERVAL`, on every replica at the same ones.
"""

from typing import Final

from broker.trace import TraceWriter, extend_digest
from log.entries.entry_log import EntryLog
from log.errors import DamagedLogError
from raft.effects import RoleChanged

DIGEST_INTERVAL: Final = 1024
_RUN_BYTES_MAX: Final = 1 << 20


class ReplicaTrace:
    """Records the events of one replica into `writer`; with None it records nothing."""

    def __init__(
        self, writer: TraceWriter | None, entry_log: EntryLog, now_ns: int, term: int, commit_index: int
    ) -> None:
        self._writer = writer
        self._log = entry_log
        self.is_kept = writer is not None
        """False while nobody wants a trace: then nothing need be told."""
        self.appended_index = entry_log.last_index
        """The last entry that was recorded."""
        self._committed_index = commit_index
        """The commit index that was recorded last."""
        self._digest = 0
        """The digest of all entries up to `_digest_index`; it means nothing once it is not `_digest_known`."""
        self._digest_index = -1
        self._digest_known = entry_log.first_index == 0
        if writer is not None:
            writer.start(now_ns, term, entry_log.last_index, commit_index)

    def appended(self, now_ns: int) -> None:
        """Records the entries that joined the log since the last call."""
        writer = self._writer
        if writer is None or self._log.last_index == self.appended_index:
            return
        log = self._log
        first = self.appended_index + 1
        while first <= log.last_index:
            last, _, data = log.run(first, log.last_index, _RUN_BYTES_MAX)
            # An event is about entries of one term: a run that reaches into the next term is cut at its beginning.
            term = log.term_of(first)
            if log.term_of(last) != term:
                last = next(start for start, _ in log.term_starts() if start > first) - 1
                data = log.run(first, last).body
            writer.append(now_ns, first, last, term, extend_digest(0, data))
            first = last + 1
        self.appended_index = log.last_index

    def truncated(self, now_ns: int, last_index: int) -> None:
        """Records that every entry after `last_index` has left the log."""
        self.appended_index = min(self.appended_index, last_index)
        if self._writer is not None:
            self._writer.truncate(now_ns, last_index)

    def role(self, now_ns: int, change: RoleChanged) -> None:
        """Records a change of role, term or leader."""
        if self._writer is not None:
            # First what joined the log: the line of the role says where it ends.
            self.appended(now_ns)
            # As the trace format spells it.
            role = "precandidate" if change.role.value == "pre-candidate" else change.role.value
            self._writer.role(
                now_ns, role, change.term, change.leader, self._log.last_index, self._log.last_term
            )

    def committed(self, now_ns: int, index: int, term: int) -> None:
        """Records the commit index if it rose; to be called before anybody is told."""
        if self._writer is not None and index > self._committed_index:
            self._committed_index = index
            # An entry is told of before its commit.
            self.appended(now_ns)
            self._writer.commit(now_ns, index, term)

    def dispatched(self, now_ns: int, index: int) -> None:
        """Records that everything up to `index` is dispatched, and the digests up to there."""
        writer = self._writer
        if writer is None:
            return
        writer.dispatch(now_ns, index)
        if self._digest_known:
            self._extend_digest(writer, now_ns, index)

    def _extend_digest(self, writer: TraceWriter, now_ns: int, index: int) -> None:
        log = self._log
        while self._digest_index < index:
            first = self._digest_index + 1
            if first < log.first_index:
                self._digest_known = False  # retention took what the digest has not seen yet
                return
            # A digest is told at the same indices by every replica, so that they can be compared: no run goes beyond
            # the next one.
            milestone = first - first % DIGEST_INTERVAL + DIGEST_INTERVAL - 1
            try:
                last, _, data = log.run(first, min(index, milestone), _RUN_BYTES_MAX)
            except DamagedLogError:
                return  # the next entries that are dispatched have it tried again; by then it may be repaired
            self._digest = extend_digest(self._digest, data)
            self._digest_index = last
            if last == milestone:
                writer.digest(now_ns, last, self._digest)

    def reset(self, now_ns: int, first_index: int) -> None:
        """Records that the log begins anew from a snapshot, of which no digest is known: none is told any more."""
        self.appended_index = first_index - 1
        self._digest_known = False
        if self._writer is not None:
            self._writer.reset(now_ns, first_index)

    def stopped(self, now_ns: int) -> None:
        """Records that the node stops in order."""
        if self._writer is not None:
            self.appended(now_ns)
            self._writer.stop(now_ns)
