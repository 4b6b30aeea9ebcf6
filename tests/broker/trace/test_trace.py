"""The trace codec: what is written comes back, damage is located, ranges cover a file exactly once."""

import io
from itertools import pairwise

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.trace import (
    Damage,
    EntriesAppended,
    Fail,
    Fault,
    Info,
    Invoke,
    Ok,
    ReadResult,
    RoleChanged,
    TraceEvent,
    TraceFormatError,
    TraceHeader,
    TraceWriter,
    extend_digest,
    parse_event,
    read_items,
    read_trace,
)

HEADER = TraceHeader("client", "producer-1", "boot-7", 1_700_000_000_000_000_000, 500, (("flush", "sync"),))


def written(count: int, *, buffered_events: int = 7, sync_bytes: int = 1000) -> bytes:
    """A trace of ``count`` tail queries, their operation ids counting up."""
    stream = io.BytesIO()
    writer = TraceWriter(stream.write, HEADER, buffered_events=buffered_events, sync_bytes=sync_bytes)
    for number in range(count):
        writer.invoke_tail(number, "p", "topic/0")
    writer.flush()
    return stream.getvalue()


def operations(items: object) -> list[int]:
    # A damaged byte may leave a shorter list, which only `parse_event` refuses.
    return [item[2] for _, item in items if isinstance(item, list) and len(item) > 2]  # type: ignore[attr-defined]


def test_every_event_comes_back() -> None:
    stream = io.BytesIO()
    writer = TraceWriter(stream.write, HEADER)
    a = writer.invoke_append(1, "p", "t/", ["u1", "u2"])
    r = writer.invoke_read(2, "p", "t/0", 5, filtered=True)
    c = writer.invoke_commit_offset(3, "p", "t/0", "g", 9)
    f = writer.invoke_fetch_offset(4, "p", "t/0", "g")
    h = writer.invoke_head(5, "p", "t/0")
    writer.ok_append(6, a, 5, "t/0")
    writer.ok_read(7, r, 8, 5, ["u1", "u2"])
    writer.info(8, c, "timeout")
    writer.ok_fetch_offset(9, f, None)
    writer.fail(10, h)
    writer.role(11, "leader", 3, "n0", 17, 2)
    writer.append(12, 18, 20, 3, 0xDEADBEEF)
    writer.fault(13, "partition", ["n0", "n1"], "symmetric")
    writer.flush()
    stream.seek(0)
    header, *events = list(read_trace(stream))
    assert header == HEADER
    assert events == [
        Invoke(1, a, "p", "append", "t/", ("u1", "u2"), None),
        Invoke(2, r, "p", "read", "t/0", (5, True), None),
        Invoke(3, c, "p", "commit_offset", "t/0", 9, "g"),
        Invoke(4, f, "p", "fetch_offset", "t/0", None, "g"),
        Invoke(5, h, "p", "head", "t/0", None, None),
        Ok(6, a, 5, "t/0"),
        Ok(7, r, ReadResult(8, (5, 6), ("u1", "u2"), None), None),
        Info(8, c, "timeout"),
        Ok(9, f, None, None),
        Fail(10, h, None),
        RoleChanged(11, "leader", 3, "n0", 17, 2),
        EntriesAppended(12, 18, 20, 3, 0xDEADBEEF),
        Fault(13, "partition", ("n0", "n1"), "symmetric"),
    ]


def test_a_trace_is_a_plain_cbor_sequence() -> None:
    stream = io.BytesIO(written(300, buffered_events=256, sync_bytes=1 << 20))
    first = cbor2.load(stream)
    assert (first.value if isinstance(first, cbor2.CBORTag) else first)["format"] == "trivet-trace"
    assert [cbor2.load(stream)[2] for _ in range(300)] == list(range(300))
    assert stream.read() == b""


@pytest.mark.parametrize("buffered_events", [1, 23, 24, 25, 255, 256, 257, 65_535])
def test_every_batch_size_drops_exactly_the_array_head(buffered_events: int) -> None:
    data = written(70_000 if buffered_events == 65_535 else 600, buffered_events=buffered_events)
    assert operations(read_items(io.BytesIO(data))) == list(
        range(70_000 if buffered_events == 65_535 else 600)
    )


@given(st.data())
def test_a_cut_tail_loses_only_what_was_cut(data: st.DataObject) -> None:
    whole = written(40, sync_bytes=300)
    places = [offset for offset, _ in read_items(io.BytesIO(whole))] + [len(whole)]
    cut = data.draw(st.integers(places[1], len(whole)))
    damages: list[Damage] = []
    chunk = data.draw(st.integers(200, 2000))
    items = list(read_items(io.BytesIO(whole[:cut]), "f", chunk_bytes=chunk))
    kept = sum(1 for place in places[1:] if place <= cut)
    assert len([item for _, item in items if not isinstance(item, Damage)]) == kept
    list(read_trace(io.BytesIO(whole[:cut]), "f", on_damage=damages.append))
    if cut in places:
        assert damages == []
    else:
        assert [damage.cut for damage in damages] == [True]
        assert damages[0].offset == places[kept]


@given(st.integers(0, 6000), st.integers(1, 2000), st.integers(200, 3000))
def test_ranges_cover_every_record_once(first_split: int, step: int, chunk_bytes: int) -> None:
    whole = written(300)
    splits = [0, *range(first_split, len(whole), step), len(whole)]
    seen: list[int] = []
    for start, stop in pairwise(splits):
        if start < stop:
            seen += operations(read_items(io.BytesIO(whole), start=start, stop=stop, chunk_bytes=chunk_bytes))
    assert seen == list(range(300))


@given(st.integers(0), st.integers(0, 255))
def test_a_damaged_byte_never_hides_what_follows_the_next_header(position: int, value: int) -> None:
    whole = bytearray(written(300))
    marks = [offset for offset, item in read_items(io.BytesIO(bytes(whole))) if isinstance(item, TraceHeader)]
    assert len(marks) > 5
    position = marks[1] + position % (marks[2] - marks[1])
    whole[position] = value
    intact_before = operations(read_items(io.BytesIO(written(300)), stop=marks[1] - 1))
    intact_after = operations(read_items(io.BytesIO(written(300)), start=marks[2]))
    got = operations(read_items(io.BytesIO(bytes(whole))))
    assert got[: len(intact_before)] == intact_before
    assert got[-len(intact_after) :] == intact_after


def test_damage_names_file_and_byte() -> None:
    good = written(3, sync_bytes=1 << 20)
    bad = cbor2.dumps([1, 5, 6])
    with pytest.raises(
        TraceFormatError, match=rf"^some\.trace: byte {len(good)}: record kind 1 has 3 elements"
    ):
        list(read_trace(io.BytesIO(good + bad), "some.trace"))


def test_damage_without_a_header_behind_it_says_that_nothing_more_was_read() -> None:
    content = written(3, sync_bytes=1 << 20) + b"\xff" + written(1)[-20:]
    told = [item for _, item in read_items(io.BytesIO(content), "a.trace") if isinstance(item, Damage)]
    assert len(told) == 1
    assert told[0].reason.endswith("; nothing behind it was read")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "the file is empty"),
        (b"hello, world", "no trace header"),
        (cbor2.dumps({"format": "something"}), "no trace header"),
        (cbor2.dumps({"format": "trivet-trace", "version": 2}), "version 2"),
        (cbor2.dumps({"format": "trivet-trace", "version": 1}), "missing or wrong fields"),
    ],
)
def test_other_files_are_refused(content: bytes, complaint: str) -> None:
    with pytest.raises(TraceFormatError, match=complaint):
        list(read_trace(io.BytesIO(content), "x"))


@pytest.mark.parametrize(
    "record",
    [
        [15, 0],
        [1, 0, 0, "p", 1, "t/0", [], None],
        [1, 0, 0, "p", 1, "t/0", [7], None],
        [1, 0, 0, "p", 2, "t/0", 4, None],
        [1, 0, 0, "p", 2, "t/0", [True, False], None],
        [1, 0, 0, "p", 3, "t/0", 4, None],
        [1, 0, 0, "p", 5, "t/0", 4, None],
        [1, 0, 0, "p", 9, "t/0", None, None],
        [2, 0, 0, -1, None],
        [2, 0, 0, [1, 2, 3], None],
        [2, 0, 0, [1, [1, 2], ["a"], None], None],
        [2, True, 0, 1, None],
    ],
)
def test_wrong_records_are_refused(record: list[object]) -> None:
    with pytest.raises(TraceFormatError):
        parse_event(record)


def test_records_of_others_are_skipped() -> None:
    assert parse_event([64, "anything"]) is None


def test_arbitrary_bytes_after_a_header_never_crash() -> None:
    @given(st.binary(max_size=60))
    def check(garbage: bytes) -> None:
        events: list[TraceHeader | TraceEvent] = []
        events += read_trace(io.BytesIO(HEADER.encode() + garbage), on_damage=lambda _: None)
        assert events[0] == HEADER

    check()


def test_the_rolling_digest_is_the_digest_of_the_whole() -> None:
    assert extend_digest(extend_digest(0, b"abc"), b"def") == extend_digest(0, b"abcdef")
