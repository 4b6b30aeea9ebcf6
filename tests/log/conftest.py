"""The disk that most tests of the log write to."""

from __future__ import annotations

import pytest

from tests.log.memory_disk import MemoryDisk


@pytest.fixture
def disk() -> MemoryDisk:
    """An empty one."""
    return MemoryDisk()
