"""The directory of a backup.

    manifest.json        what all this is (`manifest`)
    log/<position>       the entries of one data file of the log, byte for byte; the name is where the first one begins
    snapshot-<index>     the replicated state behind the last entry (broker/state/snapshot.py)

Log files only grow. What stands behind the end that the manifest tells is of a backup that broke off: the next one goes
on behind the last whole entry of it, and whoever restores does not look at it.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

import msgspec

from broker.backups.errors import BackupError, DamagedBackupError
from broker.backups.manifest import NEW_NAME, BackupFile, Manifest, begun, read_manifest, write_manifest
from broker.remoting.backup_description import BackupDescription
from broker.state.release import Release
from broker.state.snapshot import StateSnapshot, decode_state
from log.errors import DamagedRangeError
from log.files.private_files import make_directories, open_file, write_file
from log.files.replacement import sync
from log.formats.entry_range import EntryRange, check_range
from log.formats.layout import HEADER, HEADER_BYTES, file_name

_LOG: Final = "log"
_NAME_LENGTH: Final = len(file_name(0))
_READ_BYTES: Final = 1 << 20


class BackupWriter:
    """A directory into which a backup is read: a new one, or one with an earlier backup, whole or not.

    Always the entries from the manifest's first one to `last_index` are in the files, and end at `end_position`.
    """

    def __init__(self, path: Path) -> None:
        """Makes the directory if it is missing, and looks at what is in it. Raises BackupError, OSError."""
        self.path = path
        make_directories(path)
        self._lock = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._open()
        except BlockingIOError:
            self.close()
            raise BackupError(f"another process takes a backup in {path}") from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets others use the directory."""
        os.close(self._lock)

    def _open(self) -> None:
        path = self.path
        self.manifest = read_manifest(path)
        if self.manifest is None:
            if any(one.name != NEW_NAME for one in path.iterdir()):
                raise BackupError(f"{path} is neither empty nor a backup")
            self._terms: list[tuple[int, int]] = []
            return
        self.last_index = self.manifest.last_index
        self.end_position = self.manifest.end_position
        self._terms = list(self.manifest.terms)
        self._read_on()

    def check_group(self, group: str, commit_index: int) -> None:
        """Checks what can be known before a node is read: a group, and how far it has committed. Raises BackupError."""
        manifest = self.manifest
        if manifest is None or self.is_empty:
            return
        if manifest.group != group:
            raise BackupError(
                f"{self.path} is a backup of group {manifest.group!r}, not of {group!r}: use another directory"
            )
        if commit_index < self.last_index:
            raise BackupError(
                f"the backup in {self.path} ends with entry {self.last_index}, and the group has committed up to "
                f"{commit_index}: it was made anew since. Take a new backup in another directory"
            )

    def begin(self, description: BackupDescription) -> None:
        """Begins with what a node has, or goes on. Raises BackupError where one does not follow the other, OSError."""
        manifest = self.manifest
        if manifest is None or self.is_empty:
            manifest = self.manifest = write_manifest(self.path, begun(description))
            make_directories(self.path / _LOG)
            self.last_index, self.end_position = manifest.last_index, manifest.end_position
            return
        if description.data_file_bytes != manifest.data_file_bytes:
            raise BackupError(
                f"{description.node} has data files of {description.data_file_bytes} bytes, and the backup in "
                f"{self.path} those of {manifest.data_file_bytes}: use another directory"
            )
        if description.first_index > self.last_index:
            raise BackupError(
                f"the backup in {self.path} ends with entry {self.last_index}, and the log of {description.node} "
                f"begins with {description.first_index}: take a new backup in another directory"
            )

    @property
    def is_empty(self) -> bool:
        """True if there is no entry yet."""
        return self.manifest is None or self.last_index < self.manifest.first_index

    def check_same(self, entries: EntryRange) -> None:
        """Checks that these entries, as far as there are such here, are the ones here; to check the last is enough.

        In one group equal index and term mean equal logs up to there (Raft, 5.3); groups that were restored from one
        backup may have both in common, and not the bytes. Raises BackupError, OSError.
        """
        assert entries.first_index <= self.last_index, "an entry that is here is compared"
        path = self._file_of(entries.position)
        size = min(self.end_position, entries.end_position) - entries.position
        here = b""
        if path.is_file():
            with path.open("rb") as file:
                file.seek(max(0, entries.position - int(path.name)))
                here = file.read(max(0, size))
        if not here or here != entries.data[:size]:
            raise BackupError(
                f"entry {entries.first_index} of the backup in {self.path} is another one in the group, which was made "
                "anew, or restored from an earlier backup: take a new backup in another directory"
            )

    def entries(self) -> Iterator[EntryRange]:
        """Yields all entries that are here, in order, checked. Raises DamagedBackupError, OSError."""
        assert self.manifest is not None, "begin comes first"
        return _entries_in(((path, path.stat().st_size) for path in self._log_files()), self.manifest)

    def body_at(self, place: int, size: int) -> bytes:
        """Returns the record of an entry, whose place in the log is known. Raises OSError."""
        path = self._file_of(place)
        with path.open("rb") as file:
            file.seek(place - int(path.name))
            return file.read(size)

    def append(self, entries: EntryRange, skip: int = 0) -> None:
        """Adds checked entries, without the first `skip`. Raises BackupError if they do not follow, OSError."""
        manifest = self.manifest
        assert manifest is not None, "begin comes first"
        first = entries.first_index + skip
        if first > entries.last_index:
            return
        position, term = entries.position_of(first), entries.term_of(first)
        last_term = self._terms[-1][1] if self._terms else manifest.base_term
        # An entry begins where the last one ends, or a new file if the rest was too short for it: nothing in between.
        start = position - position % manifest.data_file_bytes
        follows = position == (
            self.end_position if start < self.end_position else max(start, manifest.first_position)
        )
        if first != self.last_index + 1 or not follows or term < last_term:
            raise BackupError(
                f"entry {first} at {position} of term {term} does not follow entry {self.last_index}"
            )
        # Each file is durable before the next begins, so that at the end only the last one has to be waited for.
        if start >= self.end_position and not self.is_empty:
            sync(self._file_of(self.end_position - 1))
        with open_file(self._file_of(position), "ab") as file:
            data = entries.data[position - entries.position :]
            while data:
                data = data[file.write(data) :]
        self._add_terms(entries, first)
        self.last_index, self.end_position = entries.last_index, entries.end_position

    def finish(self, description: BackupDescription, snapshot: bytes) -> Manifest:
        """Completes the backup, durably; returns its manifest. Raises OSError."""
        before = self.manifest
        assert before is not None, "begin comes first"
        assert self.last_index == description.last_index, "the snapshot is behind the last entry"
        if before.is_complete and before.last_index == self.last_index:
            return before  # nothing has happened since, and what it lists is not touched
        manifest = msgspec.structs.replace(
            before,
            cluster=description.cluster,
            node=description.node,
            release=description.release,
            format=description.format,
            last_index=self.last_index,
            end_position=self.end_position,
            terms=tuple(self._terms),
            taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        sync(self._file_of(self.end_position - 1))
        sync(self.path / _LOG)
        write_file(self.path / manifest.snapshot_name, snapshot)
        sync(self.path / manifest.snapshot_name)
        known = {file.name: file for file in before.files}
        files = []
        for path in self._log_files():
            name, size = f"{_LOG}/{path.name}", path.stat().st_size
            file = known.get(name)
            if file is None or file.bytes != size:
                file = BackupFile(name, size, _sha256(path, size))
            files.append(file)
        files.append(BackupFile(manifest.snapshot_name, len(snapshot), hashlib.sha256(snapshot).hexdigest()))
        manifest = msgspec.structs.replace(manifest, files=tuple(files))
        self.manifest = manifest = write_manifest(self.path, manifest)
        for path in self.path.glob("snapshot-*"):
            if path.name != manifest.snapshot_name:
                path.unlink()
        return manifest

    def _read_on(self) -> None:
        """Finds the whole entries behind the manifest's end, which a backup that broke off left; cuts off the rest."""
        manifest = self.manifest
        assert manifest is not None, "only an earlier backup may have broken off"
        sizes = {file.name: file.bytes for file in manifest.files}
        damaged = False
        for path in self._log_files():
            size, noted = path.stat().st_size, sizes.get(f"{_LOG}/{path.name}", 0)
            if size < noted:
                raise DamagedBackupError(f"{_LOG}/{path.name}", f"it has {size} bytes of {noted}")
            if damaged:  # the log ends before that file: its entries would leave a hole
                path.unlink()
                continue
            position, end = int(path.name), noted
            try:
                for entries in _entries_of(path, noted, size, self.last_index + 1, manifest.data_file_bytes):
                    self._add_terms(entries, entries.first_index)
                    self.last_index, self.end_position = entries.last_index, entries.end_position
                    end = self.end_position - position
            except DamagedRangeError:
                damaged = True
                if not end:
                    path.unlink()
                    continue
                with path.open("r+b") as file:
                    file.truncate(end)

    def _add_terms(self, entries: EntryRange, first: int) -> None:
        for index, term in entries.term_spans:
            if not self._terms or self._terms[-1][1] != term:
                self._terms.append((max(index, first), term))

    def _file_of(self, position: int) -> Path:
        manifest = self.manifest
        assert manifest is not None, "positions have files once a backup has begun"
        start = position - position % manifest.data_file_bytes
        return self.path / _LOG / file_name(max(start, manifest.first_position))

    def _log_files(self) -> list[Path]:
        """Returns the files of the log, oldest first; others' files are let alone."""
        found = (self.path / _LOG).iterdir() if (self.path / _LOG).is_dir() else ()
        return sorted(path for path in found if path.name.isdigit() and len(path.name) == _NAME_LENGTH)


class Backup:
    """A complete backup, for reading."""

    def __init__(self, path: Path, release: Release) -> None:
        """Reads the manifest. Raises BackupError if there is none, or `release` cannot read the backup; OSError."""
        manifest = read_manifest(path) if path.is_dir() else None
        if manifest is None:
            raise BackupError(f"{path} is no backup: there is no manifest in it")
        if not manifest.is_complete:
            raise BackupError(
                f"the backup in {path} was never completed: run the command that began it again"
            )
        if manifest.format > release.newest_format:
            raise BackupError(
                f"the backup has format {manifest.format}, written by release {manifest.release} of Trivet; this "
                f"release ({release.name}) reads formats up to {release.newest_format}: use that release or a later one"
            )
        self.path = path
        self.manifest = manifest

    def verify(self) -> None:
        """Checks every checksum, every entry and the state. Raises DamagedBackupError, OSError."""
        manifest = self.manifest
        for file in manifest.files:
            path = self.path / file.name
            if not path.is_file():
                raise DamagedBackupError(file.name, "it is missing")
            if path.stat().st_size < file.bytes:
                raise DamagedBackupError(file.name, f"it has {path.stat().st_size} bytes of {file.bytes}")
            if _sha256(path, file.bytes) != file.sha256:
                raise DamagedBackupError(file.name, f"its {file.bytes} bytes do not match their SHA-256")
        # SHA-256 says that the files are what was written. That they were a log when they were written is another
        # question, and so is whether the manifest speaks of this one.
        terms: list[tuple[int, int]] = []
        last_index, end_position = manifest.first_index - 1, manifest.first_position
        for entries in self.entries():
            terms += [span for span in entries.term_spans if not terms or terms[-1][1] != span[1]]
            last_index, end_position = entries.last_index, entries.end_position
        if (last_index, end_position, tuple(terms)) != (
            manifest.last_index,
            manifest.end_position,
            manifest.terms,
        ):
            raise DamagedBackupError(
                _LOG, f"its entries end with {last_index}, and the manifest says {manifest.last_index}"
            )
        self.state()

    def entries(self) -> Iterator[EntryRange]:
        """Yields all entries in order, checked. Raises DamagedBackupError, OSError."""
        files = [
            (self.path / file.name, file.bytes) for file in self.manifest.files if file.name.startswith(_LOG)
        ]
        return _entries_in(files, self.manifest)

    def state(self) -> tuple[bytes, StateSnapshot]:
        """Returns the state behind the last entry, as bytes and decoded. Raises DamagedBackupError, OSError."""
        name = self.manifest.snapshot_name
        if not any(file.name == name for file in self.manifest.files):
            raise DamagedBackupError(name, "the manifest does not list it")
        data = (self.path / name).read_bytes()
        try:
            return data, decode_state(data)
        except Exception as error:  # whatever readers of bytes raise for those that are no state
            raise DamagedBackupError(name, f"it holds no state: {error!r}") from error


def _entries_in(files: Iterable[tuple[Path, int]], manifest: Manifest) -> Iterator[EntryRange]:
    """Yields the entries in so many bytes of each file of the log. Raises DamagedBackupError, OSError."""
    index = manifest.first_index
    for path, size in files:
        try:
            for entries in _entries_of(path, 0, size, index, manifest.data_file_bytes):
                yield entries
                index = entries.last_index + 1
        except DamagedRangeError as error:
            raise DamagedBackupError(f"{_LOG}/{path.name}", f"behind entry {index - 1}: {error}") from error


def _entries_of(
    path: Path, begin: int, end: int, first_index: int, data_file_bytes: int
) -> Iterator[EntryRange]:
    """Yields the entries in bytes [begin, end) of a file of the log. Raises DamagedRangeError, OSError."""
    position, at, index = int(path.name), begin, first_index
    with path.open("rb") as file:
        while at < end:
            file.seek(at)
            data = file.read(min(_READ_BYTES, end - at))
            whole = _whole_entries(data)
            if not whole and len(data) >= HEADER_BYTES:
                # One large entry; malformed bytes are refused by the check.
                size = HEADER.unpack_from(data)[1]
                file.seek(at)
                data = file.read(max(HEADER_BYTES, min(size, end - at)))
                whole = len(data)
            entries = check_range(data[: whole or len(data)], index, position + at, data_file_bytes)
            yield entries
            at, index = at + whole, entries.last_index + 1


def _whole_entries(data: bytes) -> int:
    """Returns the bytes of the entries at the beginning of `data` that are whole; all bytes from a malformed one on."""
    at = 0
    while at + HEADER_BYTES <= len(data):
        size = HEADER.unpack_from(data, at)[1]
        if size < HEADER_BYTES:
            return len(data)
        if at + size > len(data):
            break
        at += size
    return at


def _sha256(path: Path, size: int) -> str:
    """Returns the checksum of a file's first `size` bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size > 0 and (data := file.read(min(size, _READ_BYTES))):
            digest.update(data)
            size -= len(data)
    return digest.hexdigest()
