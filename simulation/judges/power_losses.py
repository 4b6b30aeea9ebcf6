"""Looks at what power failures take, and decides whether they may.

The contract (docs/configuration.md) with asynchronous flush: an acknowledged entry is in the page caches of a majority,
and each node flushes what it has written every `flush_interval_ms`. Hence a power failure

- never takes from a node what a flush of its own covered, nor what it has held for longer than the interval and a
  flush: whatever it does to the others, this is looked at for each node alone;
- may take what is younger. While one voter still holds it the group gets it back, because nodes that may have lost
  something elect unanimously, and so the one with the longest log (raft/recovery.py, Unanimity). Only what no voter
  holds any more, and a majority lost to power failures, is gone, as the contract allows: a `DataLoss`, which ends the
  run without being a finding. The same without these failures is a violation;
- is joined by a flush that fails: the node stops, and pages that were not written may leave its cache with its process.
  What they had is lost to this node as by a power failure, and within the same bounds.

What a node holds is read from its disk as its machine shows it now, which is what a start would find: its log begins
where it says so on the disk, a snapshot stands for what was before that, and the data files have the entries, at the
positions where the group has committed them. The log of a process that has ended is not asked: it was closed in order
and maps its files again, or index units have gone with the power, or the process ended in the middle of a cut, when the
disk had changed already and the log had not.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from log.entries.entry_log import EntryLog
from log.entries.entry_recovery import LogBegin, read_begin
from log.errors import DamagedStateError
from log.formats.layout import ENTRY_MAGIC, HEADER, HEADER_BYTES, MARKER_BYTES
from log.notes.snapshot import read_snapshot
from raft.recovery_loss import Loss
from simulation.journal import Violation
from simulation.judges.group_model import GroupModel
from simulation.machines.broker_host import BrokerHost
from simulation.machines.clock import RATE_MAX_PPM
from simulation.machines.data_files import data_file
from simulation.machines.inode import PAGE_BYTES
from simulation.scheduler import MILLISECOND, SECOND

CAUSE: Final = "damage has a cause"
FAILED_FLUSH: Final = "a failed flush"
"""The fault of a node whose process has ended, and some of what it had not managed to flush with it."""

_SLACK_NS: Final = 50 * MILLISECOND
"""Time for the turn that begins a flush, and for the flush itself while the disk is not slow."""


@dataclass(frozen=True, slots=True)
class LostBy:
    """A node that lost its log's end, from `first_index` on, the fault that took it, and the true time.

    The fault is a kind of power failure, or `FAILED_FLUSH`.
    """

    node: str
    fault: str
    time_ns: int
    first_index: int


@dataclass(frozen=True, slots=True)
class DataLoss:
    """Committed entries from `first_index` on that no voter holds any more, as asynchronous flush allows."""

    first_index: int
    entries: int
    acknowledged: int
    """The number of messages among them that were acknowledged to their senders."""
    nodes: tuple[LostBy, ...]

    def describe(self) -> str:
        """Tells of the loss in a sentence."""
        nodes = ", ".join(
            f"{lost.node} from {lost.first_index} on by {lost.fault} at {lost.time_ns / SECOND:.6f} s"
            for lost in self.nodes
        )
        return (
            f"lost by a majority before their flush: {self.entries} committed entries from {self.first_index} on, "
            f"{self.acknowledged} acknowledged messages among them; {nodes}"
        )


@dataclass(frozen=True, slots=True)
class _Log:
    """A node's log, also after the process that worked on it."""

    host: BrokerHost
    bounds: EntryLog
    """Asked only how far its process had got: nothing is read through it."""


class _Holder:
    """A node that holds entries."""

    __slots__ = ("appends", "is_known", "log", "lost", "recovers")

    def __init__(self) -> None:
        self.log: _Log | None = None
        self.appends: list[tuple[int, int]] = []
        """(first index, true time) of what this process has appended, in order of the log."""
        self.lost: LostBy | None = None
        """The entries that power failures took from the node, and that it has not got back."""
        self.is_known = True
        """True if `lost` is all that power may have taken since the last start."""
        self.recovers = False
        """True if the node said itself, when it started last, that it may lack what it has promised."""


class PowerLosses:
    """Knows what each node of a group holds of the committed entries."""

    def __init__(self, model: GroupModel, *, sync_flush: bool) -> None:
        self._model = model
        self._sync_flush = sync_flush
        self._holders: dict[str, _Holder] = {}

    # ---- the life of a log ---------------------------------------------------------------------------

    def started(self, host: BrokerHost, log: EntryLog, lacks: Loss | None) -> None:
        """Notes that a process has recovered `log`, and flushed it. `lacks`: what it may lack, by its own judgement.

        Raises Violation if it says that it may lack entries though no fault has taken any: it has lost them itself.
        """
        holder = self._holders.setdefault(host.name, _Holder())
        if lacks is Loss.ENTRIES and not (
            holder.log is None
            or holder.lost is not None
            or holder.recovers
            or host.disk_faulty
            or not holder.is_known
        ):
            raise Violation(
                CAUSE,
                host.name,
                "starts as if it lacked what it has acknowledged, and nothing took that from it",
            )
        holder.log, holder.appends = _Log(host, log), []
        holder.is_known, holder.recovers = True, lacks is not None

    def wiped(self, node: str) -> None:
        """Notes that a disk is empty, or harmed: nothing on it counts before the next start."""
        self._holders.setdefault(node, _Holder()).log = None

    def is_whole(self, node: str) -> None:
        """Notes that a node has again all that others may have counted on."""
        if (holder := self._holders.get(node)) is not None:
            holder.recovers = False

    def appended(self, node: str, first_index: int, now_ns: int) -> None:
        """Entries from `first_index` on joined its log."""
        holder = self._holders[node]
        holder.appends.append((first_index, now_ns))
        if holder.lost is not None and first_index <= holder.lost.first_index:
            holder.lost = None

    def truncated(self, node: str, last_index: int) -> None:
        """Notes that a log ends at `last_index` now, or begins behind it."""
        appends = self._holders[node].appends
        while appends and appends[-1][0] > last_index:
            appends.pop()

    # ---- power failures ------------------------------------------------------------------------------

    def power_failed(self, host: BrokerHost, before: dict[int, bytes], fault: str, now_ns: int) -> None:
        """Its machine went dark; `before` is what its page cache held right before that. Raises Violation."""
        if not self._sync_flush or not before or fault == "power inside":
            self._holders.setdefault(host.name, _Holder()).is_known = False
        if not before:
            return  # the process was starting, or had ended, in order if so: its log stays as it was at its end
        self._taken(host, before, fault, now_ns)

    def pages_left(self, host: BrokerHost, before: dict[int, bytes], now_ns: int) -> None:
        """Its process has ended behind a failed flush; `before` as for a power failure. Raises Violation."""
        if before:
            self._taken(host, before, FAILED_FLUSH, now_ns)

    def _taken(self, host: BrokerHost, before: dict[int, bytes], fault: str, now_ns: int) -> None:
        """Finds the entries that the disk has lost, which may be none, and notes them."""
        holder = self._holders[host.name]
        assert holder.log is not None, "it has run"
        log = holder.log.bounds
        changed = _first_change(host, before)
        first = log.last_index + 1 if changed is None else _first_gone(log, before, changed)
        if first > log.last_index:
            return
        if first <= log.durable_index:
            raise Violation(
                "durability",
                host.name,
                f"{fault} took entries from {first} on; flushed were those up to {log.durable_index}",
            )
        if not self._sync_flush:
            self._was_due(host, holder, first, fault, now_ns)
        holder.lost = LostBy(host.name, fault, now_ns, first)

    def _was_due(self, host: BrokerHost, holder: _Holder, index: int, fault: str, now_ns: int) -> None:
        """Checks that nothing waited for its flush for longer than the interval, unless process or disk was held up.

        Raises Violation.
        """
        at = bisect_right(holder.appends, index, key=lambda append: append[0]) - 1
        assert at >= 0, "what a start found is flushed"
        interval_ns = host.settings.storage.flush_interval_ms * MILLISECOND
        longest_ns = interval_ns * 1_000_000 // (1_000_000 - RATE_MAX_PPM) + _SLACK_NS
        waited_ns = now_ns - max(holder.appends[at][1], host.held_up_until_ns)
        if waited_ns > longest_ns:
            raise Violation(
                "durability",
                host.name,
                f"{fault} took entries from {index} on, which had waited {waited_ns / SECOND:.3f} s for a flush that "
                f"was due after {interval_ns / SECOND:.3f} s",
            )

    # ---- the group -----------------------------------------------------------------------------------

    def data_loss(self) -> tuple[int, tuple[LostBy, ...]] | None:
        """(first index, who lost it) of the committed entries that no voter holds; None if there are none.

        Raises Violation if power failures and failed flushes of a majority do not explain it, or flush is sync.
        """
        model = self._model
        voters = model.voters
        first_index = 1 + max((self._held(voter) for voter in voters), default=-1)
        if first_index > model.last_index:
            return None
        lost = self._lost_by(voters, first_index)
        if self._sync_flush or 2 * len(lost) <= len(voters):
            raise Violation(
                "durability",
                "group",
                f"no voter holds entries {first_index}..{model.last_index}, which are committed; power failures and "
                f"failed flushes took them from {' '.join(one.node for one in lost) or 'none'} of {' '.join(voters)}",
            )
        return first_index, lost

    def _lost_by(self, voters: Sequence[str], index: int) -> tuple[LostBy, ...]:
        known = [self._holders[voter].lost for voter in voters if voter in self._holders]
        return tuple(lost for lost in known if lost is not None and lost.first_index <= index)

    def _held(self, node: str) -> int:
        """Returns the last committed index up to which a node has everything, -1 for none."""
        holder = self._holders.get(node)
        if holder is None or holder.log is None:
            return -1
        host = holder.log.host
        first_index = _first_index(host)
        if first_index is None:
            return -1
        image, positions = self._model.image, self._model.positions
        file_bytes = host.options.data_file_bytes
        index, last = first_index, self._model.last_index
        while index <= last:
            begin = positions[index]
            start = begin - begin % file_bytes
            # A file at a time: comparing bytes by the megabyte is what makes it possible at each loss of power.
            next_file = bisect_left(positions, start + file_bytes, index, last + 1)
            end = positions[next_file - 1] + HEADER.unpack_from(image, positions[next_file - 1])[1]
            stored = host.disk.cached_bytes(data_file(host.options, start))[begin - start : end - start]
            differs = _first_difference(image[begin:end], stored)
            if differs is not None:
                return bisect_right(positions, begin + differs, index, next_file) - 2
            index = next_file
        return index - 1


def _first_index(host: BrokerHost) -> int | None:
    """Returns the first entry of the log that a start would find; a snapshot has all that was before it.

    None for a log that a start gives up: its snapshot is still to come, or does not reach the beginning.
    """
    with host.disk.reads_succeed():
        begin = read_begin(host.disk, f"{host.options.dledger_directory}/begin") or LogBegin()
        try:
            snapshot = read_snapshot(host.disk)
        except DamagedStateError:
            return None
    covered = -1 if snapshot is None else snapshot.applied_index
    return None if begin.pending or covered < begin.index - 1 else begin.index


def _first_change(host: BrokerHost, before: dict[int, bytes]) -> int | None:
    """Returns the position of the first byte that is another one on the disk now; None if all are the same.

    Pages that the disk had changed itself do not count: their repair may have been in memory alone, not yet flushed.
    """
    harmed = [page for page in host.damaged_pages if host.disk.medium.is_harmed(page)]
    for start, old in before.items():
        path = data_file(host.options, start)
        stored = bytearray(host.disk.cached_bytes(path))
        for page in harmed:
            if page.path == path:
                where = slice(page.begin, page.begin + PAGE_BYTES)
                stored[where] = old[where]
        differs = _first_difference(old, stored)
        if differs is not None:
            return start + differs
    return None


def _first_difference(expected: bytes | bytearray, stored: bytes | bytearray) -> int | None:
    """Returns where `stored`, which zeros follow, differs from `expected`; None if it does not."""
    stored = stored[: len(expected)].ljust(len(expected), b"\0")
    if stored == expected:
        return None
    return next(at for at, pair in enumerate(zip(expected, stored, strict=True)) if pair[0] != pair[1])


def _first_gone(log: EntryLog, files: dict[int, bytes], position: int) -> int:
    """The index of the first entry that ends behind `position`, by the bytes of the data files; last + 1 if none does.

    Bytes that were cut off, and are on the disk again because the cut had not got that far, do not count as an entry.
    Without the marker at a file's end a start finds no entry of the files behind it: with the marker these are gone.
    """
    if position >= log.end_position:
        return log.last_index + 1
    start = max(start for start in files if start <= position)
    end = start + len(files[start])
    at = max(start, log.first_position)
    last_index = log.last_index
    while at + HEADER_BYTES <= end:
        magic, size, index, *_ = HEADER.unpack_from(files[start], at - start)
        if magic != ENTRY_MAGIC:
            break
        at += size
        last_index = int(index)
        if at > position:
            return last_index
    is_of_marker = end < log.end_position and position < at + MARKER_BYTES
    return last_index + 1 if is_of_marker else log.last_index + 1
