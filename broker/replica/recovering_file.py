"""A start judges by its disk if this node still has all that it ever promised.

This module finds out that a node came back with less than it promised, and keeps that until it is over. What follows
from it is Raft's: `Recovery.may_vote` (raft/recovery.py) has the argument, and `VoteTally` (raft/quorum.py) counts the
votes of nodes that may lack entries. The file `recovering` holds

    flush   the flush mode of the last run
    boot    the boot of the machine in which that was, an opaque text; empty if unknown
    loss    what the node lacks (`raft.recovery_loss.Loss`), empty if nothing

Invariant: from the moment that anything is changed on the disk which shows a loss (damage cut, a reset repeated, term
learned, a new boot noted) until raft says that the mode is over, the file says what is lost. So it is written before
the damage is cut, and a crash in the middle begins the mode again.

An unfinished write at the log's end is no loss: what was acknowledged lies before it. The log itself tells it from
damage of its last entries, as it notes how far flushes have covered it (`log.entries.durable_note`). After a stop that
was not in order, in asynchronous mode, the page cache is gone if the machine was started anew since, and with it maybe
acknowledged entries, without a trace in the files: only the boot tells. A crash of the process loses nothing, unless a
flush had failed: pages that it did not write look clean and may leave the cache (Rebello et al., "Can Applications
Recover from fsync Failures?", 2020), so that the log may end before what was acknowledged, as if never written to. How
far asynchronous mode acknowledged is therefore kept as well, in the page cache of a file of its own, `acknowledged`: 8
bytes, the index behind the last entry that this node may have acknowledged.
"""

import struct
from dataclasses import dataclass
from typing import Any, Final

import cbor2

from log.entries.entry_recovery import RecoveryKind
from log.errors import DamagedLogError
from log.files.disk import Disk, MappedFile
from log.files.state_file import read_state, write_state
from log.store import RecoveryReport
from raft.recovery_loss import Loss

RECOVERING_FILE: Final = "recovering"
ACKNOWLEDGED_FILE: Final = "acknowledged"

_INDEX: Final = struct.Struct(">q")

_ADVICE: Final = (
    "a group of one has nobody to take it from; bring the file back from a copy, or set "
    "storage.accept_data_loss = true to go on with what lies before the damage and lose the rest"
)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts of this run of the process: its flush mode, the machine's boot ("" if unknown), the operator's word.

    `accept_data_loss` says that what is damaged is given up, and the node takes part as if nothing had been lost.
    """

    flush: str
    boot: str = ""
    accept_data_loss: bool = False


class RecoveringFile:
    """The files `recovering`, which says what this node lacks, and `acknowledged`, by which a start finds that out."""

    def __init__(self, disk: Disk, run: RunFacts) -> None:
        self._disk = disk
        self._run = run
        self._acknowledged = -1
        self._acknowledged_file: MappedFile | None = None
        # Behind an asynchronous run a synchronous one needs it, too: it judges what that one had acknowledged.
        if run.flush == "async" or disk.exists(ACKNOWLEDGED_FILE):
            self._acknowledged_file = disk.open(ACKNOWLEDGED_FILE, _INDEX.size, create=True)
            self._acknowledged_file.prepare(0, _INDEX.size)
            self._acknowledged = _INDEX.unpack_from(self._acknowledged_file.buffer)[0] - 1

    def acknowledged(self, last_index: int) -> None:
        """Notes that entries up to `last_index`, all of the log, may be acknowledged from now on.

        The note survives this process.
        """
        if last_index != self._acknowledged and self._acknowledged_file is not None:
            self._acknowledged = last_index
            # The index behind it: so a new file, which is all zeros, says that nothing was acknowledged.
            _INDEX.pack_into(self._acknowledged_file.buffer, 0, last_index + 1)

    def judge(self, report: RecoveryReport, *, has_term: bool, only_voter: bool) -> tuple[Loss | None, str]:
        """Returns (what this node lacks, why), and notes it durably. Nothing may have been cut or reset yet.

        Raises DamagedLogError in a group of one whose operator has not accepted the loss, DiskError.
        """
        before = self._read()
        run = self._run
        damaged = report.log.kind is RecoveryKind.DAMAGED
        gone = damaged or report.needs_snapshot
        # Nobody else has what is gone: whether to go on without it the operator says.
        if gone and only_voter and not run.accept_data_loss:
            found = report.log
            raise DamagedLogError(found.damaged_file or "snapshot", found.damaged_at or 0, self._why(report))
        # A mode that was not over goes on. Otherwise the disk says what is missing: the gravest finding counts.
        loss = Loss(before["loss"]) if before["loss"] else None
        reason = "an earlier recovery was not finished"
        # The operator has accepted the loss, or nobody else has counted on this node.
        if run.accept_data_loss or only_voter:
            loss = None
        elif not has_term:
            restored = report.log.last_good_index >= 0
            loss, reason = Loss.ALL, "the store is restored" if restored else "the disk is empty"
        elif loss is None:
            if gone:
                loss, reason = Loss.ENTRIES, report.damage[0] if report.damage else "the snapshot is missing"
            elif self._power_was_lost(before, report):
                loss, reason = Loss.ENTRIES, "the machine stopped before everything was flushed"
            elif self._pages_were_lost(before, report):
                last = report.log.last_good_index
                loss, reason = Loss.ENTRIES, f"the log ends at {last}, acknowledged was {self._acknowledged}"
        # Without a term there is nothing to remember: the next start finds that out again.
        self.keep(None if loss is Loss.ALL else loss)
        # Only now: as long as no loss is noted, the old number is what shows it at the next start.
        self.acknowledged(report.log.last_good_index)
        return loss, reason

    @staticmethod
    def _why(report: RecoveryReport) -> str:
        reason = report.log.reason or "the log begins behind the state that is kept of what was before it"
        return f"{reason}; {_ADVICE}"

    def _power_was_lost(self, before: dict[str, Any], report: RecoveryReport) -> bool:
        """True if the machine was started anew after asynchronous mode without an orderly stop."""
        # Where the system does not tell its boot nothing is known of that.
        boots = (before["boot"], self._run.boot)
        return not report.clean_stop and before["flush"] == "async" and all(boots) and boots[0] != boots[1]

    def _pages_were_lost(self, before: dict[str, Any], report: RecoveryReport) -> bool:
        """True if the log ends before what asynchronous mode may have acknowledged."""
        was_async = before["flush"] == "async"
        return was_async and not report.clean_stop and report.log.last_good_index < self._acknowledged

    def keep(self, loss: Loss | None) -> None:
        """Notes `loss` and this run, durably. Raises DiskError."""
        state = {
            "flush": self._run.flush,
            "boot": self._run.boot,
            "loss": "" if loss is None else loss.value,
        }
        write_state(self._disk, RECOVERING_FILE, cbor2.dumps(state))

    def _read(self) -> dict[str, Any]:
        data = read_state(self._disk, RECOVERING_FILE)
        state: dict[str, Any] = {"flush": "", "boot": "", "loss": ""}
        if data is not None:
            state |= cbor2.loads(data)
        return state
