"""FrameDecoder: any cut of the stream gives the same commands or the same error."""

from __future__ import annotations

import contextlib
import gc
import itertools
import struct
import sys
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.remoting import command as remoting
from broker.remoting.admin_headers import TopicHeader
from broker.remoting.command import JSON, ROCKETMQ, RemotingCommand, encode, request
from broker.remoting.errors import FrameError, FrameErrorReason, HeaderFieldError, RemotingError
from broker.remoting.frame import (
    BODY_COPY_MAX,
    CLIENT_FIELDS_MAX,
    CLIENT_HEADER_BYTES_MAX,
    NO_OPAQUE,
    BrokenStreamError,
    FrameDecoder,
)
from log.formats.record import MAX_PROPERTIES_BYTES

Outcome = tuple[list[bytes], tuple[FrameErrorReason, str] | None]


def decode(chunks: list[bytes], max_frame_size: int = 1 << 20) -> Outcome:
    """Returns the commands of a connection's bytes, encoded again, and the error that ends it."""
    decoder = FrameDecoder(max_frame_size)
    encoded: list[bytes] = []
    for chunk in chunks:
        try:
            commands = decoder.feed(chunk)
        except BrokenStreamError as error:
            encoded += [remoting.encode(command) for command in error.commands]
            return encoded, (error.reason, error.detail)
        encoded += [remoting.encode(command) for command in commands]
    return encoded, None


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    points = sorted({0, len(data), *(point % (len(data) + 1) for point in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(points)]


def frame(header: bytes, body: bytes = b"", serialization: int = 0) -> bytes:
    return (
        (4 + len(header) + len(body)).to_bytes(4, "big")
        + (serialization << 24 | len(header)).to_bytes(4, "big")
        + header
        + body
    )


good_frames = st.builds(
    lambda serialization, opaque, fields, body: remoting.encode(
        remoting.request(10, fields, body, opaque=opaque, serialization=serialization)
    ),
    st.sampled_from([0, 1]),
    st.integers(0, 1000),
    st.dictionaries(st.sampled_from(["a", "b", "topic"]), st.sampled_from(["1", "x", "véà"])),
    st.binary(max_size=40) | st.integers(BODY_COPY_MAX - 2, BODY_COPY_MAX + 2).map(bytes),
)
broken_frames = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.builds(frame, st.binary(max_size=30), st.binary(max_size=10), st.sampled_from([0, 1, 2, 255])),
    st.sampled_from(
        [
            frame(b'{"code":1,"x":' + b"[" * 5000 + b"]" * 5000 + b"}"),
            frame(b'{"code":99999999999}'),
            frame(b'{"code":1,"remark":"\xff\xff"}'),
            b"GET / HTTP/1.1\r\n\r\n",
        ]
    ),
)


@given(st.lists(good_frames, max_size=4), st.none() | broken_frames, st.lists(st.integers(0, 20000)))
def test_same_outcome_however_the_stream_is_cut(
    frames: list[bytes], broken: bytes | None, cuts: list[int]
) -> None:
    stream = b"".join(frames) + (broken or b"")
    whole = decode([stream])
    assert decode(cut(stream, cuts)) == whole
    if broken is None:
        assert whole == (frames, None)
    else:
        assert whole[0][: len(frames)] == frames


@given(st.lists(good_frames, min_size=1, max_size=2))
def test_byte_by_byte(frames: list[bytes]) -> None:
    stream = b"".join(frames)[:600]
    assert decode([stream[i : i + 1] for i in range(len(stream))]) == decode([stream])


@given(st.lists(st.binary(max_size=50)))
def test_arbitrary_bytes_raise_only_frame_errors(chunks: list[bytes]) -> None:
    decode(chunks)


@pytest.mark.parametrize(
    ("data", "reason", "detail"),
    [
        (b"\x00\x10\x00\x01", FrameErrorReason.OVERSIZED, "at most 1048576"),
        (b"\xff\xff\xff\xff", FrameErrorReason.OVERSIZED, "4294967299 bytes"),
        (b"\x16\x03\x01\x02", FrameErrorReason.OVERSIZED, "TLS"),
        (b"GET /", FrameErrorReason.OVERSIZED, "HTTP"),
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n", FrameErrorReason.OVERSIZED, "1347571548 bytes"),
        (b"\r\n\r\n\0\r\nQUIT\n", FrameErrorReason.OVERSIZED, "218762510 bytes"),
        (b"\x00\x00\x00\x03\x00\x00\x00\x00", FrameErrorReason.TOO_SHORT, "length 3"),
        (
            b"\x00\x00\x00\x08\x00\x00\x00\x05",
            FrameErrorReason.HEADER_LONGER_THAN_FRAME,
            "a header of 5 bytes in a frame of length 8",
        ),
        (frame(b"{}", serialization=7), FrameErrorReason.UNKNOWN_SERIALIZE_TYPE, "7"),
        (frame(b"{}"), FrameErrorReason.BAD_JSON_HEADER, "code"),
        (frame(b""), FrameErrorReason.BAD_JSON_HEADER, ""),
        (frame(b"[1]"), FrameErrorReason.BAD_JSON_HEADER, "array"),
        (frame(bytes(20), serialization=ROCKETMQ), FrameErrorReason.BAD_BINARY_HEADER, "20 bytes"),
        (
            frame(bytes(13) + b"\x00\x00\x00\x09" + bytes(4), serialization=ROCKETMQ),
            FrameErrorReason.BAD_BINARY_HEADER,
            "a remark of 9 bytes",
        ),
        (
            frame(bytes(17) + b"\xff\xff\xff\xff", serialization=ROCKETMQ),
            FrameErrorReason.BAD_BINARY_HEADER,
            "extFields of -1 bytes",
        ),
    ],
)
def test_reasons(data: bytes, reason: FrameErrorReason, detail: str) -> None:
    good = frame(b'{"code":1}')
    decoder = FrameDecoder(1 << 20)
    with pytest.raises(BrokenStreamError) as caught:
        decoder.feed(good + data)
    assert caught.value.reason is reason
    assert detail in caught.value.detail
    assert [command.code for command in caught.value.commands] == [1]
    with pytest.raises(BrokenStreamError) as again:
        decoder.feed(good)  # a broken stream stays broken
    assert (again.value.reason, again.value.commands) == (reason, [])


@pytest.mark.parametrize("length", range(4))
def test_a_length_without_room_for_a_header_is_refused_from_its_four_bytes(length: int) -> None:
    """Nothing more may come: the rest would be waited for until the connection is idle for too long."""
    with pytest.raises(FrameError, match=f"length {length}"):
        FrameDecoder(1024).feed(length.to_bytes(4, "big") + bytes(length))


def test_oversized_is_refused_from_its_first_four_bytes() -> None:
    decoder = FrameDecoder(100)
    assert decoder.feed(b"\x00\x00") == []
    with pytest.raises(FrameError):
        decoder.feed(b"\x00\x61")
    assert FrameDecoder(100).feed(b"\x00\x00\x00\x60") == []


def test_body_stays_valid_after_later_reads_and_large_ones_are_views() -> None:
    small, large = bytes([1]) * BODY_COPY_MAX, bytes([2]) * (BODY_COPY_MAX + 1)
    decoder = FrameDecoder()
    first, second = decoder.feed(frame(b'{"code":1}', small) + frame(b'{"code":2}', large))
    decoder.feed(frame(b'{"code":3}', bytes(10000)))
    assert isinstance(first.body, bytes)
    assert isinstance(second.body, memoryview)
    assert bytes(first.body) == small
    assert bytes(second.body) == large


def test_large_body_in_small_pieces() -> None:
    body = bytes(range(256)) * 4096 * 4
    data = frame(b'{"code":1}', body)
    decoder = FrameDecoder()
    commands = []
    for start in range(0, len(data), 1000):
        commands += decoder.feed(data[start : start + 1000])
    assert [command.body for command in commands] == [body]
    assert decoder.pending_size == 0


@pytest.mark.parametrize("piece", [2, 60, 500, 4000])
def test_what_is_held_of_a_frame_takes_little_more_memory_than_it_has_bytes(piece: int) -> None:
    """Bounds on memory count bytes, and who sends them chooses the pieces."""
    total, decoder = 200_000, FrameDecoder()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        decoder.feed(struct.pack(">II", 1 << 20, 100))
        for number in range(total // piece):
            assert decoder.feed(bytes([number & 0xFF]) * piece) == []
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoder.pending_size >= total - piece
    assert held - before < 1.2 * decoder.pending_size
    assert most - before < 2.5 * decoder.pending_size, "pieces are joined once in a while"


def test_nothing_is_kept_of_whole_frames_that_came_with_the_beginning_of_one() -> None:
    data = encode(request(105, {"topic": "T"})) * 500
    data += data[:9]
    before = sys.getrefcount(data)
    decoder = FrameDecoder()
    assert len(decoder.feed(data)) == 500
    assert decoder.pending_size == 9
    assert sys.getrefcount(data) == before


def test_pending_size_tells_a_cut_off_stream() -> None:
    decoder = FrameDecoder()
    decoder.feed(frame(b'{"code":1}')[:-1])
    assert decoder.pending_size == 17


def client_decoder() -> FrameDecoder:
    return FrameDecoder(header_bytes_max=CLIENT_HEADER_BYTES_MAX, fields_max=CLIENT_FIELDS_MAX)


def with_fields(serialization: int, count: int) -> bytes:
    return encode(request(10, {f"f{k}": "a:b" for k in range(count)}, opaque=7, serialization=serialization))


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_client_may_send_so_many_fields_and_is_told_of_the_bound(serialization: int) -> None:
    """900,000 fields took a second before anybody asked who had sent them."""
    (command,) = client_decoder().feed(with_fields(serialization, CLIENT_FIELDS_MAX))
    assert len(command.fields) == CLIENT_FIELDS_MAX
    with pytest.raises(BrokenStreamError, match="more than 128 fields") as caught:
        client_decoder().feed(with_fields(serialization, CLIENT_FIELDS_MAX + 1))
    assert caught.value.reason is FrameErrorReason.TOO_MANY_FIELDS
    assert caught.value.request is not None
    assert (caught.value.request.opaque, caught.value.request.serialization) == (7, serialization)


def with_json(fields: bytes) -> bytes:
    header = b'{"code":11,"opaque":7,"extFields":{%b}}' % fields
    return struct.pack(">II", 4 + len(header), len(header)) + header


def test_a_clients_fields_are_no_deep_lists() -> None:
    """A pull was read where it came in, and ended its node where it had waited for a leader, deeper in the stack."""
    for deep in (
        b"[" * 900 + b"]" * 900,
        b'{"":' * 300 + b"1" + b"}" * 300,
        b'["",' * 300 + b"1" + b"]" * 300,
    ):
        with pytest.raises(BrokenStreamError, match="more than 128 fields"):
            client_decoder().feed(with_json(b'"topic":"T","unread":%b' % deep))
    text = b'[[{:\\"[' * 1000
    (command,) = client_decoder().feed(with_json(b'"topic":"%b","unread":[%b]' % (text, b"1," * 300 + b"1")))
    assert command.decode_fields(TopicHeader).topic == text.replace(b"\\", b"").decode()


def test_fields_that_are_too_deep_are_refused_wherever_they_are_read() -> None:
    """As they came in they could be read, with fewer calls on the stack."""

    def read(command: RemotingCommand, calls: int) -> TopicHeader:
        return read(command, calls - 1) if calls else command.decode_fields(TopicHeader)

    read_at_once = refused = 0
    for depth in range(700, 1000, 10):
        try:
            (command,) = FrameDecoder().feed(
                with_json(b'"topic":"T","unread":' + b"[" * depth + b"]" * depth)
            )
        except BrokenStreamError:
            break
        read_at_once += command.decode_fields(TopicHeader).topic == "T"
        try:
            read(command, 100)
        except HeaderFieldError:
            refused += 1
    assert read_at_once > refused > 0


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_clients_header_may_be_so_long(serialization: int) -> None:
    """It is refused from its first bytes, before the client's own opaque is known."""
    length = CLIENT_HEADER_BYTES_MAX + 1
    start = struct.pack(">II", 4 + length, serialization << 24 | length)
    with pytest.raises(BrokenStreamError, match=f"at most {CLIENT_HEADER_BYTES_MAX}") as caught:
        client_decoder().feed(start)
    assert caught.value.reason is FrameErrorReason.HEADER_TOO_LONG
    assert caught.value.request is not None
    assert (caught.value.request.opaque, caught.value.request.serialization) == (NO_OPAQUE, serialization)


def test_all_properties_that_a_record_can_hold_fit_into_a_clients_header() -> None:
    """As JSON a control character takes six bytes, and the properties' separators are such characters."""
    properties = "\x01" * MAX_PROPERTIES_BYTES
    command = request(10, {"properties": properties, "topic": "T" * 255, "producerGroup": "G" * 255})
    (received,) = client_decoder().feed(encode(command))
    assert received.fields["properties"] == properties


@pytest.mark.parametrize(
    "fields",
    [
        b'"' + b'\\"' * 100_000,  # no string ends, each escaped quote might begin one
        b'{"a":"' + b'\\":' * 60_000 + b'"}',
        b'{"a":"' + b'":' * 60_000 + b'"}',
        b'{"a":[' + b"[]," * 60_000 + b"[]]}",
        b'{"a":[' + b'"",' * 60_000 + b'""]}',
        b'{"a":' + b"[" * 200_000 + b"}",
        b"{" + b",".join([b'"":1'] * 40_000) + b"}",
        b"{" + b",".join(b'"%d":%b' % (k, b"9" * 4000) for k in range(50)) + b"}",
        b'{"a":1.' + b"9" * 200_000 + b"}",
    ],
    ids=lambda fields: fields[:12].decode(),
)
def test_no_header_costs_more_than_its_bytes(fields: bytes) -> None:
    """Beside a header of one long value, which is as legal as can be, in the same process."""
    plain = frame(b'{"code":10,"extFields":{"a":"' + b"x:\\u0001" * 25_000 + b'"}}')
    hostile = frame(b'{"code":10,"extFields":' + fields + b"}")
    assert cpu_ns(hostile) / len(hostile) < 30 * cpu_ns(plain) / len(plain)


def cpu_ns(data: bytes) -> int:
    """The least of some measurements of what it takes to read a frame and its fields."""

    def once() -> int:
        began = time.process_time_ns()
        with contextlib.suppress(RemotingError):
            for command in client_decoder().feed(data):
                assert command.fields is not None
        return time.process_time_ns() - began

    return min(once() for _ in range(5))


BROKEN_AT_THEIR_END = {
    "header": frame(b'{"code":310,"language":"JAVA"', bytes(1 << 20)),
    "binary header": frame(b"\x01", bytes(1 << 20), ROCKETMQ),
    "serialization": frame(b"{}", bytes(1 << 20), 9),
    "fields": encode(request(10, {f"f{k}": "" for k in range(CLIENT_FIELDS_MAX + 1)}, body=bytes(1 << 20))),
    "lengths": frame(b"{}", bytes(1 << 20)) + bytes(8),
}


@pytest.mark.parametrize("name", BROKEN_AT_THEIR_END)
def test_nothing_of_a_broken_stream_stays_until_the_collector_comes(name: str) -> None:
    """Errors that were kept held their tracebacks, and so what was read: strangers filled the memory with them."""
    data = bytearray(BROKEN_AT_THEIR_END[name])  # not the constant itself, which more refer to
    read = bytes(data)
    decoder = client_decoder()
    before = sys.getrefcount(read)
    gc.disable()
    try:
        for _ in range(2):
            with contextlib.suppress(BrokenStreamError):
                decoder.feed(read)
                pytest.fail("it is no frame")
        assert sys.getrefcount(read) == before
    finally:
        gc.enable()
