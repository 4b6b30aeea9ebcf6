"""The ConsumeQueues of a source: where each ends, and which record each of its units leads to.

They say nothing that the log does not say, but for queues whose messages are all deleted: then they alone know which
offset comes next. Where the log has the messages, its units are compared with them.
"""

from collections import OrderedDict
from pathlib import Path
from typing import Final

from broker.migration.errors import DamagedSourceError
from log.queues.consume_queue import NO_RECORD_BYTES, UNIT, UNIT_BYTES

_BLOCK_UNITS: Final = 4096
_BLOCKS_MAX: Final = 256
_NAME_LENGTH: Final = 20

Unit = tuple[int, int, int]
"""Physical offset, size, tags code."""


class SourceQueues:
    """All queues below a directory `consumequeue/`, which may be missing."""

    def __init__(self, directory: Path) -> None:
        """Lists them. Raises DamagedSourceError, OSError."""
        self.directory = directory
        self.exists = directory.is_dir()
        self._files: dict[tuple[str, int], list[tuple[int, int, Path]]] = {}
        """By queue, (first offset, units, file), ascending."""
        self._blocks: OrderedDict[tuple[Path, int], bytes] = OrderedDict()
        for topic in sorted(directory.iterdir()) if self.exists else ():
            for queue in sorted(topic.iterdir()) if topic.is_dir() else ():
                if queue.is_dir() and queue.name.isdigit() and len(queue.name) <= 9:
                    self._files[topic.name, int(queue.name)] = _files_of(queue)

    def topics(self) -> set[str]:
        """The topics that have queues."""
        return {topic for topic, _ in self._files}

    def ends(self) -> dict[tuple[str, int], int]:
        """Returns by (topic, queue id) the offset behind the last unit. Raises DamagedSourceError, OSError."""
        return {key: self._end_of(files) for key, files in self._files.items() if files}

    def unit(self, topic: str, queue_id: int, offset: int) -> Unit | None:
        """Returns one unit; None where there is none, or none that leads to a record. Raises OSError."""
        for first, units, path in self._files.get((topic, queue_id), ()):
            if first <= offset < first + units:
                return self._read(path, offset - first)
        return None

    def _read(self, path: Path, number: int) -> Unit | None:
        block, at = divmod(number, _BLOCK_UNITS)
        key = (path, block)
        raw = self._blocks.get(key)
        if raw is None:
            with path.open("rb") as file:
                file.seek(block * _BLOCK_UNITS * UNIT_BYTES)
                raw = self._blocks[key] = file.read(_BLOCK_UNITS * UNIT_BYTES)
            if len(self._blocks) > _BLOCKS_MAX:
                self._blocks.popitem(last=False)
        if len(raw) < (at + 1) * UNIT_BYTES:
            return None
        unit: Unit = UNIT.unpack_from(raw, at * UNIT_BYTES)
        return unit if unit[0] >= 0 and unit[1] > 0 and unit[1] != NO_RECORD_BYTES else None

    def _end_of(self, files: list[tuple[int, int, Path]]) -> int:
        """Returns the offset behind the last unit. Units, fillers among them, fill a file from its beginning, so that
        the first place without one is found by bisection.
        """
        first, units, path = files[-1]
        with path.open("rb") as file:
            low, high = 0, units
            while low < high:
                middle = (low + high) // 2
                file.seek(middle * UNIT_BYTES)
                position, size, _ = UNIT.unpack(file.read(UNIT_BYTES).ljust(UNIT_BYTES, b"\0"))
                if position >= 0 and size > 0:
                    low = middle + 1
                else:
                    high = middle
        return first + low


def _files_of(queue: Path) -> list[tuple[int, int, Path]]:
    listed = [path.name for path in queue.iterdir()]
    names = sorted(name for name in listed if len(name) == _NAME_LENGTH and name.isdigit())
    files = []
    for name in names:
        path = queue / name
        if int(name) % UNIT_BYTES:
            raise DamagedSourceError(path, 0, f"its name is no multiple of {UNIT_BYTES}")
        files.append((int(name) // UNIT_BYTES, path.stat().st_size // UNIT_BYTES, path))
    return files
