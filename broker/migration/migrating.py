"""A source becomes a backup: surveyed from end to end first, then copied, with checksums and with its state.

A copy that broke off goes on where it was, in the same directory; so does one that was begun while the broker ran, and
is completed once that has stopped. What is there already is compared with the source, which is surveyed anew.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

from broker.backups.directory import BackupWriter
from broker.migration.dledger import EntryFiles, Piece
from broker.migration.errors import MigrationError
from broker.migration.report import Origin, Report, report_of
from broker.migration.source import Source
from broker.migration.state_found import FoundState, state_of
from broker.migration.survey import Survey
from broker.remoting.backup_description import BackupDescription
from broker.state.release import FIRST_FORMAT, Release
from broker.state.snapshot import encode_parts
from log.errors import DamagedRangeError
from log.formats.entry_range import EntryRange, check_range
from log.formats.layout import HEADER_BYTES
from log.formats.own_topics import DEFAULT_DELAY_LEVELS_MS
from log.formats.record import QUEUE_OFFSET_AT, SYS_FLAG_AT, SYS_FLAG_ROLLBACK, peek

_TERM: Final = struct.Struct(">q")
_CHECKSUM: Final = struct.Struct(">iiI")
"""`channel`, `chainCrc`, `bodyCrc`."""
_TERM_AT, _CHECKSUM_AT = 16, 32
_FIRST_TERM: Final = 1
"""DLedger counts terms from 0 on, Raft's paper from 1: each term becomes the next one."""
_LOWEST_FLAG_BYTE: Final = 3

Progress = Callable[[str, int], None]
"""Called with what is being done, in a word, and the index of the last entry."""


def _silent(what: str, index: int) -> None:
    """Tells nobody."""


@dataclass(slots=True)
class Surveyed:
    """A source that was found sound."""

    source: Source
    files: EntryFiles
    survey: Survey
    state: FoundState
    group: str
    cluster: str
    cut_off: str
    """A sentence that says where an unfinished write at the end was left out; empty if there is none."""

    def report(self, directory: Path | None, *, copied: int, is_complete: bool) -> Report:
        """Returns what there is to say of it."""
        files = self.files
        origin = Origin(
            source=str(self.source.root),
            node=self.source.node,
            is_store=True,
            directory="" if directory is None else str(directory),
            is_complete=is_complete,
            first_index=files.first_index,
            last_index=files.last_index,
            last_term=files.last_term,
            committed_index=self.source.committed_index(),
            data_file_bytes=files.file_bytes,
            entries_copied=copied,
        )
        return report_of(self.survey, self.state, origin, _remarks(self))


def survey_source(
    source: Source,
    *,
    group: str,
    cluster: str,
    left_out: frozenset[str] = frozenset(),
    delay_levels_ms: tuple[int, ...] = DEFAULT_DELAY_LEVELS_MS,
    progress: Progress = _silent,
) -> Surveyed:
    """Checks every message and every table; of a store in use only what its checkpoint calls committed.

    Raises MigrationError, DamagedSourceError, OSError.
    """
    files = source.entries()
    committed = source.committed_index()
    if source.is_running and committed < files.first_index:
        raise MigrationError(f"the broker on {source.root} has committed nothing yet by its checkpoint")
    survey = Survey(source.config(), source.queues(), delay_levels_ms, left_out)
    for piece in files.entries(committed if source.is_running else None):
        survey.take(piece)
        progress("checked", files.last_index)
    survey.finish()
    return Surveyed(source, files, survey, state_of(survey, group, cluster), group, cluster, files.cut_off)


def copy_entries(
    surveyed: Surveyed, directory: BackupWriter, release: Release, progress: Progress = _silent
) -> int:
    """Copies what the directory does not have, and completes the backup unless the store is in use.

    Returns the number of entries that were copied. Raises MigrationError, BackupError, DamagedSourceError, OSError.
    """
    files, survey = surveyed.files, surveyed.survey
    last_index = files.last_index
    snapshot = encode_parts(surveyed.state.metadata, surveyed.state.ends)
    description = _description(surveyed, release, len(snapshot))
    directory.check_group(surveyed.group, last_index)
    directory.begin(description)
    copied = 0
    for piece in files.entries(last_index):
        entries = _with_checksums(piece, survey, files.file_bytes)
        # What an earlier run has copied must be what the source has now: either may have been written anew since.
        here = max(0, directory.last_index + 1 - entries.first_index)
        if here:
            directory.check_same(entries)
        directory.append(entries, skip=here)
        copied += max(0, len(piece.heads) - here)
        progress("copied", directory.last_index)
    if files.last_index != last_index:
        raise MigrationError(
            f"the store changed while it was copied: it ends with entry {files.last_index} now"
        )
    if not surveyed.source.is_running:
        directory.finish(description, snapshot)
    return copied


class Following:
    """A copy that keeps up with a store in use, until its broker has stopped: then only the last entries are missing.

    What has been copied cannot be marked afterwards. So a topic that is deleted meanwhile, with messages that were
    copied, ends it with an error.
    """

    def __init__(self, surveyed: Surveyed, directory: BackupWriter, release: Release) -> None:
        """Goes on behind what `copy_entries` has copied of a store in use."""
        assert directory.last_index == surveyed.files.last_index, "all that was surveyed is copied"
        self._surveyed = surveyed
        self._directory = directory
        self._release = release
        self._dead = surveyed.survey.dead

    def step(self) -> int:
        """Copies what the source has committed by now; returns the number of entries.

        Raises MigrationError, BackupError, DamagedSourceError, OSError.
        """
        source = self._surveyed.source
        committed = source.committed_index()
        self._surveyed.files.look_again(committed, is_clean=False)
        return self._copy(committed)

    def finish(self) -> int:
        """Copies the rest once the broker has stopped, and completes the backup; returns the number of entries.

        Raises MigrationError, BackupError, DamagedSourceError, OSError.
        """
        surveyed, directory = self._surveyed, self._directory
        source, files, survey = surveyed.source, surveyed.files, surveyed.survey
        assert not source.is_running, "a store in use has no last state"
        files.look_again(source.committed_index(), is_clean=source.is_clean)
        copied = self._copy(None)
        survey.take_newer(source.config(), source.queues())
        survey.finish()
        self._check_none_deleted()
        surveyed.cut_off = files.cut_off
        surveyed.state = state_of(survey, surveyed.group, surveyed.cluster)
        snapshot = encode_parts(surveyed.state.metadata, surveyed.state.ends)
        directory.finish(_description(surveyed, self._release, len(snapshot)), snapshot)
        return copied

    def _copy(self, up_to: int | None) -> int:
        surveyed, copied = self._surveyed, 0
        for piece in surveyed.files.entries(up_to, go_on=True):
            surveyed.survey.take(piece)
            self._check_none_deleted()
            self._directory.append(_with_checksums(piece, surveyed.survey, surveyed.files.file_bytes))
            copied += len(piece.heads)
        return copied

    def _check_none_deleted(self) -> None:
        if self._surveyed.survey.dead != self._dead:
            raise MigrationError(
                "a topic was deleted while its messages were copied: begin again in another directory, or without "
                "--follow when the broker has stopped"
            )


def _with_checksums(piece: Piece, survey: Survey, file_bytes: int) -> EntryRange:
    """Fills in the checksums that RocketMQ leaves 0, and marks what no queue of the source has any more."""
    data = piece.data
    view = memoryview(data)
    for head in piece.heads:
        body = view[head.at + HEADER_BYTES : head.at + head.size]
        if survey.has_dead:
            found = peek(body)
            topic = bytes(body[found.topic_begin : found.topic_end]).decode()
            if survey.is_dead(head.entry, topic, found.queue_id):
                body[SYS_FLAG_AT + _LOWEST_FLAG_BYTE] |= SYS_FLAG_ROLLBACK
                # Records without a queue have no offset.
                body[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = bytes(8)
        _TERM.pack_into(data, head.at + _TERM_AT, head.term + _FIRST_TERM)
        _CHECKSUM.pack_into(data, head.at + _CHECKSUM_AT, 0, 0, crc32(body))
    try:
        return check_range(data, piece.heads[0].entry, piece.position, file_bytes)
    except DamagedRangeError as error:
        raise MigrationError(f"{piece.path} at byte {piece.begin}: {error}") from error


def _description(surveyed: Surveyed, release: Release, snapshot_bytes: int) -> BackupDescription:
    files = surveyed.files
    return BackupDescription(
        group=surveyed.group,
        cluster=surveyed.cluster,
        node=f"{surveyed.source.node} of RocketMQ",
        release=release.name,
        format=FIRST_FORMAT,
        data_file_bytes=files.file_bytes,
        first_index=files.first_index,
        first_position=files.first_position,
        base_term=files.base_term + _FIRST_TERM if files.first_index else 0,
        last_index=files.last_index,
        end_position=files.end_position,
        snapshot_bytes=snapshot_bytes,
    )


def _remarks(surveyed: Surveyed) -> list[str]:
    """Returns what else whoever moves a store should know, a sentence each."""
    source, survey = surveyed.source, surveyed.survey
    remarks = list(source.other_parts())
    remarks += [f"{name}: missing, taken as empty" for name in survey.config.missing]
    if surveyed.cut_off:
        remarks.append(f"the end of the log, an unfinished write: {surveyed.cut_off}")
    if not source.is_clean and not source.is_running:
        remarks.append(
            "the broker was not stopped in order: consumer offsets and delays may be seconds older than the log, so "
            "that messages come again"
        )
    voted = source.voted_for()
    if voted != source.node:
        remarks.append(
            f"{source.node} voted for {voted or 'nobody'} last, and did not lead: RocketMQ copies tables and consumer "
            "offsets from its leader every 10 s, so that those of the node that led last are the newest"
        )
    remarks += [f"{queue.differing}" for queue in survey.found.values() if queue.differing]
    return remarks
