"""Files made ready in a worker thread while the writer goes on, as far as it likes."""

from pathlib import Path

import pytest

from log.entries.segments import Segments
from log.entries.tail import PrepareStep, Tail
from log.files.mmap_disk import MmapDisk

FILE_BYTES = 4096


def started_step(tail: Tail) -> PrepareStep:
    """The preparation of the second file, finished in its worker and not yet given back."""
    tail.move_to(0)
    step = next(step for step in tail.wanted(100) if step.start == FILE_BYTES)
    step.run()
    assert step.created
    return step


@pytest.mark.parametrize("files_outrun", [0, 1, 2, 3, 5])
def test_a_file_is_kept_however_far_the_writer_outran_its_preparation(
    tmp_path: Path, files_outrun: int
) -> None:
    disk = MmapDisk(tmp_path)
    segments = Segments(disk, "data", FILE_BYTES, mappings_max=16)
    tail = Tail(segments, FILE_BYTES, FILE_BYTES)
    step = started_step(tail)
    for _ in range(files_outrun):
        tail.ensure_next(tail.start + FILE_BYTES + 100)
        tail.roll()
    tail.finish(step)
    assert segments.starts == [FILE_BYTES * number for number in range(max(files_outrun, 1) + 1)]
    assert [int(name) for name in disk.list("data")] == segments.starts


def test_a_file_behind_a_truncated_end_is_removed(tmp_path: Path) -> None:
    disk = MmapDisk(tmp_path)
    segments = Segments(disk, "data", FILE_BYTES, mappings_max=16)
    tail = Tail(segments, FILE_BYTES, FILE_BYTES)
    step = started_step(tail)
    tail.move_to(50)  # a new generation: what was prepared for the old end is not wanted
    tail.finish(step)
    assert [int(name) for name in disk.list("data")] == segments.starts == [0]
