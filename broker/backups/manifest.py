"""The manifest of a backup: what its files are, with a checksum of each and of itself.

It is JSON, for people and scripts, and replaced as a whole when a backup is complete: until then it tells of the one
before, whose bytes are all still there. So a backup that breaks off takes nothing away.
"""

import hashlib
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from broker.backups.errors import DamagedBackupError
from broker.remoting.backup_description import BackupDescription
from log.files.replacement import replace_file

NAME: Final = "manifest.json"
NEW_NAME: Final = "manifest.json.new"
"""The file that takes the place of the manifest once it is whole; one that is here was broken off."""
_LAYOUT: Final = 1
"""The version of a backup's layout of files; a later one is refused."""

_Number = Annotated[int, Meta(ge=0)]


class BackupFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first `bytes` of a file; `name` is its path below the backup's directory."""

    name: Annotated[str, Meta(pattern=r"^(log/[0-9]{20}|snapshot-[0-9]+)$")]
    bytes: _Number
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entries `first_index`..`last_index`, which are the bytes [first_position, end_position) of the group's log."""

    layout: Annotated[int, Meta(ge=1, le=_LAYOUT)] = _LAYOUT
    group: str
    cluster: str
    node: str
    """The node that was read last."""
    release: str
    format: Annotated[int, Meta(ge=1)]
    data_file_bytes: Annotated[int, Meta(ge=1)]
    first_index: _Number
    first_position: _Number
    base_term: _Number
    last_index: Annotated[int, Meta(ge=-1)]
    end_position: _Number
    terms: tuple[tuple[int, int], ...] = ()
    """(first index, term) of every run of entries of one term, ascending."""
    taken_at: str = ""
    """UTC, when it was complete; empty while the first backup into this directory has never been."""
    files: tuple[BackupFile, ...] = ()
    """The log's, in order, and the snapshot."""
    checksum: str = ""
    """SHA-256 of this manifest with an empty checksum, as `_encode` writes it."""

    @property
    def is_complete(self) -> bool:
        """True if the backup can be restored."""
        return bool(self.taken_at)

    @property
    def last_term(self) -> int:
        """The term of the last entry."""
        return self.terms[-1][1] if self.terms else self.base_term

    @property
    def snapshot_name(self) -> str:
        """The file with the state behind the last entry."""
        return f"snapshot-{self.last_index}"


def begun(description: BackupDescription) -> Manifest:
    """Returns the manifest of a backup into which nothing has been read yet."""
    return Manifest(
        group=description.group,
        cluster=description.cluster,
        node=description.node,
        release=description.release,
        format=description.format,
        data_file_bytes=description.data_file_bytes,
        first_index=description.first_index,
        first_position=description.first_position,
        base_term=description.base_term,
        last_index=description.first_index - 1,
        end_position=description.first_position,
    )


def read_manifest(directory: Path) -> Manifest | None:
    """Returns the manifest, None where there is none. Raises DamagedBackupError, OSError."""
    path = directory / NAME
    if not path.exists():
        return None
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedBackupError(NAME, f"{error}") from error
    if manifest.checksum != _checksum(manifest):
        raise DamagedBackupError(NAME, "it does not match its checksum")
    return manifest


def write_manifest(directory: Path, manifest: Manifest) -> Manifest:
    """Replaces the manifest, durably; returns it with its checksum. Raises OSError."""
    manifest = msgspec.structs.replace(manifest, checksum=_checksum(manifest))
    replace_file(directory / NAME, directory / NEW_NAME, _encode(manifest))
    return manifest


def _encode(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def _checksum(manifest: Manifest) -> str:
    return hashlib.sha256(_encode(msgspec.structs.replace(manifest, checksum=""))).hexdigest()
