"""A node's trace: one file for all its lives, readable after a life was cut short."""

import errno
import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog.testing
import trio

from broker.settings.tables import Settings
from broker.shell import trace_file
from broker.shell.trace_file import TraceFile
from broker.statistics.events import EventKind
from broker.tools.cli.failures import describe
from broker.trace import Damage, NodeStarted, TraceHeader, read_trace
from log.errors import DiskFullError
from tests.broker.shell.servers import running


def _events(path: Path) -> tuple[list[object], list[Damage]]:
    damage: list[Damage] = []
    with path.open("rb") as file:
        events = list(read_trace(file, str(path), on_damage=damage.append))
    return [event for event in events if not isinstance(event, TraceHeader)], damage


def test_lives_share_a_file_even_after_a_crash_in_the_middle_of_a_record(tmp_path: Path) -> None:
    path = tmp_path / "traces" / "n0.trace"
    first = TraceFile(path, "n0", "g")
    first.writer.start(1, 0, -1, -1)
    first.close()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 2)
    second = TraceFile(path, "n0", "g")
    second.writer.start(2, 1, 5, 4)
    second.close()
    assert [entry.name for entry in path.parent.iterdir()] == ["n0.trace"]
    events, damage = _events(path)
    assert events == [NodeStarted(2, 1, 5, 4)]
    assert len(damage) == 1, "the cut record is reported, not passed over"


def test_a_file_that_is_none_of_ours_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "n0.trace"
    path.write_text("somebody's notes")
    trace = TraceFile(path, "n0", "g")
    trace.writer.start(1, 0, -1, -1)
    trace.close()
    assert path.read_text() == "somebody's notes"
    events, damage = _events(tmp_path / "n0.1.trace")
    assert events == [NodeStarted(1, 0, -1, -1)]
    assert not damage


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(trace_file, "open_file", Full)
    path = tmp_path / "n0.trace"
    with pytest.raises(DiskFullError) as caught:
        TraceFile(path, "n0", "g")
    failure = describe(caught.value)
    assert failure is not None
    assert failure.text == (
        f"writing of '{path}' failed: No space left on device (free some space on its disk, and try again)"
    )


class _FullLater(io.FileIO):
    """Takes the header, and then a part of the next record."""

    has_room = True

    def write(self, data: Any) -> int:
        if not self.has_room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.has_room = self.tell() == 0
        return super().write(data if self.has_room else data[:2])


def test_a_disk_that_is_full_later_ends_the_trace_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had asked for the event met the error, and the node ended."""
    monkeypatch.setattr(trace_file, "open_file", _FullLater)
    path = tmp_path / "n0.trace"
    trace = TraceFile(path, "n0", "g")
    for life in range(600):  # more than the writer keeps
        trace.writer.start(life, 0, -1, -1)
    trace.flush_if_due(1 << 62)
    trace.close()
    assert isinstance(trace.failure, DiskFullError)
    events, damage = _events(path)
    assert (events, len(damage)) == ([], 1), "the cut record is reported: the file is not whole"


async def test_a_broker_goes_on_without_its_trace_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "open_file", _FullLater)

    def traced(settings: Settings) -> Settings:
        observe = msgspec.structs.replace(settings.observe, trace=str(tmp_path / "n0.trace"))
        return msgspec.structs.replace(settings, observe=observe)

    with structlog.testing.capture_logs() as logs:
        async with running(tmp_path, change=traced) as servers:
            broker = await servers.wait_leader()
            events = broker.node.events
            while True:
                if events.count(EventKind.TRACE_STOPPED):
                    break
                await trio.sleep(0.01)
            await servers.wait_registered()
            assert events.counts[EventKind.TRACE_STOPPED, "disk full"] == 1
    (told,) = [entry for entry in logs if entry["event"] == "trace stopped"]
    assert str(tmp_path / "n0.trace") in told["detail"]
    assert [entry["reason"] for entry in logs if entry["event"] == "stop"].count("asked to") == 2


def test_what_the_system_takes_in_pieces_is_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Piecemeal(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(data[:7])

    opened = Path.open

    def open_path(path: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
        return Piecemeal(path, mode) if mode == "ab" else opened(path, mode, *rest, **options)

    monkeypatch.setattr(Path, "open", open_path)
    trace = TraceFile(tmp_path / "n0.trace", "n0", "g")
    trace.writer.start(1, 0, -1, -1)
    trace.close()
    monkeypatch.undo()
    assert _events(tmp_path / "n0.trace") == ([NodeStarted(1, 0, -1, -1)], [])
