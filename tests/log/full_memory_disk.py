"""A process that opens a store on a file system in memory (tmpfs) which is full; `test_full_memory_disk` starts it.

It mounts one in a namespace of its own, which ends with it. Prints what came of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from log.errors import DiskFullError
from log.files.mmap_disk import MmapDisk
from log.notes.hard_state import StoredHardState
from log.options import StoreOptions
from log.store import Store
from tests.full_disks import fill
from tests.log.messages import NOW, Writer
from tests.log.stores import checkpoint, flush

OPTIONS = StoreOptions()


def make(root: Path, stop: str) -> None:
    """Makes a store with messages, which ends in order, by a crash right behind a checkpoint or some messages later, or
    by one without any."""
    store, _ = Store.open(MmapDisk(root), OPTIONS, NOW)
    store.hard_state.write(StoredHardState(1, "n0"))
    writer = Writer(store)
    for number in range(300):
        writer.send(f"T{number % 20}", body=bytes(1000))
    flush(store)
    last_index = store.log.last_index
    if stop == "behind a checkpoint":
        store.dispatch(last_index - 100, NOW)
        checkpoint(store, last_index - 100)
    store.dispatch(last_index, NOW)
    if stop == "behind a checkpoint":
        return
    if stop != "without a checkpoint":
        checkpoint(store, last_index)
    if stop == "in order":
        store.close(last_index)


def main(place: Path, stop: str, left_bytes: int) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", str(place)], check=True)
    if os.fork() == 0:
        make(place / "made", stop)
        os._exit(0)
    assert os.wait()[1] == 0
    # As a copy has it: what was made ready for the writer takes no space.
    subprocess.run(["cp", "-a", "--sparse=always", place / "made", place / "store"], check=True)
    subprocess.run(["rm", "-r", place / "made"], check=True)
    fill(place / "filler", left_bytes)
    try:
        store, report = Store.open(MmapDisk(place / "store"), OPTIONS, NOW)
        store.dispatch(store.log.last_index, NOW)
        print("opened", report.log.kind.value, store.log.last_index + 1)
    except DiskFullError as error:
        print("full", error)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
