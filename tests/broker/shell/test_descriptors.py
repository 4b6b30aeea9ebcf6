"""Connections and files share what the system lets a process open; files keep their part."""

import os
import resource
from contextlib import ExitStack
from pathlib import Path

import pytest
import structlog.testing

from broker.shell.descriptors import connections_allowed, open_files

INFINITY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "raised_to", "allowed"),
    [
        (20_000, 20_000, 20_000, 10_000),  # enough as it is
        (1_024, 500_000, 10_768, 10_000),  # raised as far as is needed
        (1_024, 4_096, 4_096, 3_328),  # raised as far as it goes
        (1_024, 1_024, 1_024, 256),
        (256, 256, 256, 64),  # less than files may take: a quarter all the same
        (1_024, INFINITY, 10_768, 10_000),
        (INFINITY, INFINITY, INFINITY, 10_000),
    ],
)
def test_files_keep_their_part(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised_to: int, allowed: int
) -> None:
    limits = [soft, hard]
    monkeypatch.setattr(resource, "getrlimit", lambda which: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda which, new: limits.__setitem__(slice(2), new))
    with structlog.testing.capture_logs() as logs:
        assert connections_allowed(10_000, 768) == allowed
    assert limits == [raised_to, hard]
    assert bool(logs) == (allowed < 10_000)


def test_a_limit_that_is_not_granted_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(which: int, new: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (1_024, INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert connections_allowed(10_000, 768) == 256


def test_open_files_are_counted_without_a_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with 24,000 files of queues took 30 ms for each question after its status."""
    descriptors = Path("/proc/self/fd")
    before, _ = open_files()
    assert before == sum(1 for _ in descriptors.iterdir()) - 1
    with ExitStack() as opened:
        for _ in range(20):
            opened.enter_context(Path(os.devnull).open("rb"))
        if descriptors.stat().st_size:  # Linux 6.2 and later
            monkeypatch.setattr(Path, "iterdir", None)
        assert open_files()[0] == before + 20
