"""Fixtures of the shell's tests."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest


@pytest.fixture
def remotes() -> Iterator[list[socket.socket]]:
    opened: list[socket.socket] = []
    yield opened
    for remote in opened:
        remote.close()
