"""``trivet backup`` and ``trivet restore`` (docs/backup.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from broker.tools.cli.errors import USAGE, CommandError
from broker.tools.cli.options import DEFAULT_SERVERS, AsJson, Group, Servers, check_address
from broker.tools.cli.orders import Yes, confirm
from broker.tools.cli.output import print_facts, print_json

if TYPE_CHECKING:
    from broker.backups.manifest import Manifest

app = App(
    name="backup",
    help="Copy a running group's log and state into a directory.",
    backend="trio",
)

_Directory = Annotated[Path, Parameter(help="The directory of the backup.")]


@app.default
async def backup(
    directory: _Directory,
    /,
    *,
    group: Group = None,
    source: Annotated[
        str | None, Parameter(name="--from", help="The node to read, HOST:PORT; a follower by default.")
    ] = None,
    rate: Annotated[
        float | None, Parameter(help="MiB per second to read at most; no limit by default.")
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Copy all that a running group has committed by now into DIRECTORY.

    The group goes on serving. A directory with an earlier backup of the group gets only what is newer; a copy that
    broke off goes on where it was. Until the new one is complete the earlier one can be restored. Needs an
    administrator's account where there are accounts. `trivet backup verify DIRECTORY` checks every byte.
    """
    from broker.backups.copying import BackupCopy
    from broker.backups.directory import BackupWriter
    from broker.tools.backup.reading import read_backup
    from broker.tools.cli.progress import Progress

    if source is not None:
        check_address(source, f"--from {source}")
    if rate is not None and not 0.001 <= rate <= 1e6:
        raise CommandError(f"--rate {rate:g}: MiB per second, from 0.001 on", USAGE)
    progress = Progress(10.0)
    copies: list[BackupCopy] = []

    def state() -> str:
        return f"{copies[-1].read_bytes >> 20:,} MiB read" if copies else "looking for the group"

    with BackupWriter(directory) as writer:
        async with progress.showing(state), servers.admin() as admin:
            copy = await read_backup(
                admin,
                writer,
                group=group,
                source=source,
                bytes_per_s=None if rate is None else rate * (1 << 20),
                begun=copies.append,
            )
    assert copy.manifest is not None, "a copy that was read to its end is complete"
    _tell(directory, copy.manifest, json=json, read_bytes=copy.read_bytes)
    return 0


@app.command
def verify(directory: _Directory, /, *, json: AsJson = False) -> int:
    """Check every checksum, every entry and the state of a backup. It reads only the files and asks no server."""
    from broker.backups.directory import Backup
    from broker.state.release import THIS_RELEASE

    found = Backup(directory, THIS_RELEASE)
    found.verify()
    _tell(directory, found.manifest, json=json)
    return 0


def restore(
    directory: _Directory,
    /,
    *,
    config: Annotated[Path, Parameter(help="The settings with which the node will be started.")],
    yes: Yes = False,
) -> int:
    """Make the store of one node from a backup, at the place that the node's settings name.

    Do so for every node of the new group, each with its own settings, which have the same new `raft.lineage`; then
    start them. The whole backup is checked before anything is written, and the place must be empty.
    """
    import time

    from broker.backups.directory import Backup
    from broker.backups.restoring import check_settings, restore
    from broker.settings.loading import load
    from broker.state.release import THIS_RELEASE
    from log.files.mmap_disk import MmapDisk

    settings = load(config)
    place = f"{settings.storage.path} for {settings.node.id} of {settings.node.group}"
    backup = Backup(directory, THIS_RELEASE)
    check_settings(backup, settings)  # nobody is asked about what cannot be
    confirm(f"Make the store {place} of the backup in {directory}?", yes=yes)
    disk = MmapDisk(Path(settings.storage.path))
    restore(backup, disk, settings, THIS_RELEASE, time.time_ns() // 1_000_000)
    print(f"{settings.node.id} of {settings.node.group}: store made in {settings.storage.path}")
    return 0


def _tell(directory: Path, manifest: Manifest, *, json: bool, read_bytes: int | None = None) -> None:
    if json:
        print_json(
            {
                "directory": str(directory),
                "group": manifest.group,
                "node": manifest.node,
                "release": manifest.release,
                "format": manifest.format,
                "first_index": manifest.first_index,
                "last_index": manifest.last_index,
                "bytes": sum(file.bytes for file in manifest.files),
                "read_bytes": read_bytes,
                "taken_at": manifest.taken_at,
            }
        )
        return
    rows = [
        ("backup", f"{directory}, of group {manifest.group}, read from {manifest.node}"),
        ("entries", f"{manifest.first_index:,} to {manifest.last_index:,}, terms to {manifest.last_term}"),
        ("size", f"{sum(file.bytes for file in manifest.files):,} bytes in {len(manifest.files)} files"),
        ("written by", f"release {manifest.release}, format {manifest.format}"),
        ("complete at", manifest.taken_at),
    ]
    if read_bytes is not None:
        rows.append(("read now", f"{read_bytes:,} bytes of the log"))
    else:
        rows.append(("checked", "every checksum, every entry and the state"))
    print_facts(rows)
