"""What ``format("trivet_trace")`` reads: files, directories, globs, in parts, whole or cut; and its documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.trace import TraceHeader, TraceWriter
from spark_analysis import schema
from spark_analysis.source import TraceReader, TraceSplit, read_rows, trace_files

_RECORD, _FILE, _POSITION, _OP = range(4)


def test_files_directories_and_globs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/n1.trace", "a/n0.trace", "a/notes.txt", "b/n0.trace"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    monkeypatch.chdir(tmp_path)

    def found(path: str) -> list[str]:
        return [str(Path(file).relative_to(tmp_path.resolve())) for file in trace_files(path)]

    assert found("a") == ["a/n0.trace", "a/n1.trace"]
    assert found("a/notes.txt") == ["a/notes.txt"]
    assert found("*/n0.trace") == ["a/n0.trace", "b/n0.trace"]
    assert found("[ab]") == ["a/n0.trace", "a/n1.trace", "b/n0.trace"]
    for path in ("c", "*.trace"):
        with pytest.raises(FileNotFoundError, match="no trace file"):
            trace_files(path)


def rows_of(path: Path, split_bytes: int) -> list[list[tuple[object, ...]]]:
    """The rows of each part of the trace."""
    parts = TraceReader({"path": str(path), "splitBytes": str(split_bytes)}).partitions()
    assert all(isinstance(part, TraceSplit) for part in parts)
    return [list(read_rows(part)) for part in parts if isinstance(part, TraceSplit)]


def whole_and_halves(rows: list[tuple[object, ...]]) -> tuple[int, set[object], set[object]]:
    """How many operations are whole, and the identities of the two kinds of halves."""
    by_record = {
        kind: [row[_OP] for row in rows if row[_RECORD] == kind]
        for kind in ("operation", "invocation", "completion")
    }
    return len(by_record["operation"]), set(by_record["invocation"]), set(by_record["completion"])


def test_parts_have_every_record_once(tmp_path: Path) -> None:
    """Split anywhere, the parts together hold what the whole holds; operations across a border come as halves."""
    # One file with headers between its records, as a writer makes of a long history.
    path = tmp_path / "long.trace"
    with path.open("wb") as stream:
        header = TraceHeader("client", "c", "clock", 0)
        writer = TraceWriter(stream.write, header, buffered_events=7, sync_bytes=500)
        for number in range(300):
            first = writer.invoke_append(10 * number, "p", "t/0", [f"a{number}"])
            second = writer.invoke_append(10 * number + 1, "q", "t/1", [f"b{number}"])
            writer.ok_append(10 * number + 5, first, number)
            if number % 50:
                writer.ok_append(10 * number + 6, second, number)
        writer.flush()
    (alone,) = rows_of(path, 1 << 30)
    assert whole_and_halves(alone) == (594, {(50 * n) * 2 + 1 for n in range(6)}, set())
    parts = rows_of(path, 700)
    assert len(parts) > 10
    together = [row for part in parts for row in part]
    whole, begun, ended = whole_and_halves(together)
    assert ended < begun
    assert whole + len(ended) == 594
    assert len(begun) - len(ended) == 6
    assert not [row for row in together if row[_RECORD] == "damage"]


def test_a_cut_and_a_bad_record_are_located(tmp_path: Path) -> None:
    path = tmp_path / "cut.trace"
    with path.open("wb") as stream:
        writer = TraceWriter(stream.write, TraceHeader("client", "c", "clock", 0))
        operation = writer.invoke_append(1, "p", "t/0", ["a"])
        writer.flush()
        bad_at = stream.tell()
        stream.write(b"\x83\x02\x20\x00")  # a completion before time began
        writer.ok_append(5, operation, 0)
        writer.flush()
        end = stream.tell()
    path.write_bytes(path.read_bytes()[: end - 1])
    (rows,) = rows_of(path, 1 << 30)
    damages = [row for row in rows if row[_RECORD] == "damage"]
    kinds = [row[len(row) - len(schema.EVENT_COLUMNS) + 1] for row in damages]
    assert kinds == ["bad", "cut"]
    assert damages[0][_POSITION] == bad_at
    assert damages[1][_POSITION] == bad_at + 4
    assert whole_and_halves(rows) == (0, {0}, set())


def test_the_documentation_has_the_schema() -> None:
    page = (Path(__file__).parents[2] / "docs" / "trace-schema.md").read_text(encoding="utf-8")
    for name, kind, meaning in schema.RECORD_COLUMNS:
        assert f"| `{name}` | `{kind.lower()}` | {meaning} |" in page
