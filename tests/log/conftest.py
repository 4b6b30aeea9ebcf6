"""The disk and the store that most tests of the log write to."""

from __future__ import annotations

import pytest

from log.store import Store
from tests.log.memory_disk import MemoryDisk
from tests.log.stores import open_store


@pytest.fixture
def disk() -> MemoryDisk:
    """An empty one."""
    return MemoryDisk()


@pytest.fixture
def store(disk: MemoryDisk) -> Store:
    """A new one."""
    return open_store(disk)[0]
