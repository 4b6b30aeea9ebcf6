"""Received messages: lazily decoded, unpacked, checked."""

from __future__ import annotations

import zlib

import lz4.frame  # type: ignore[import-untyped]
import pytest
import zstandard

from broker.client.errors import DamagedMessage
from broker.client.message import MessageQueue, MessageView, views
from broker.client.transport.identity import UniqueKeys
from broker.client.transport.trio_runtime import TrioRuntime
from log.errors import RecordError
from log.formats.record import Host, encode_record, pack_host

QUEUE = MessageQueue("t", "b", 3)


def record(
    body: bytes, properties: bytes = b"", sys_flag: int = 0, topic: bytes = b"t", born: str = "10.0.0.1"
) -> bytes:
    return encode_record(
        topic,
        3,
        9,
        5,
        1000,
        sys_flag,
        1_700_000_000_000,
        pack_host(born, 1234),
        1_700_000_000_001,
        pack_host("127.0.0.1", 10911),
        2,
        0,
        body,
        properties,
    )


def test_the_golden_record() -> None:
    # as `MessageDecoder` reads it
    golden = bytes.fromhex(
        "00000066daa320a758932aac0000000300000000000000000000000500000000000003e8000000000000018bcfe568000a000001"
        "000004d20000018bcfe568017f00000100002a9f000000000000000000000000000000026869025431000754414753016102"
    )
    view = MessageView(MessageQueue("T1", "b", 3), golden)
    assert (view.topic, view.queue_offset, view.body, view.tags, view.keys) == ("T1", 5, b"hi", "a", [])
    assert (view.born_timestamp_ms, view.store_timestamp_ms) == (1_700_000_000_000, 1_700_000_000_001)
    assert (view.born_host, view.store_host) == (Host("10.0.0.1", 1234), Host("127.0.0.1", 10911))
    assert view.message_id == view.offset_message_id == "7F00000100002A9F00000000000003E8"
    assert (view.reconsume_times, view.flag, view.properties) == (0, 0, {"TAGS": "a"})
    assert view.record_bytes() == golden


def test_views_of_records_back_to_back() -> None:
    records = [record(b"%d" % number, b"UNIQ_KEY\x01K%d\x02KEYS\x01a b" % number) for number in range(3)]
    joined = memoryview(b"".join(records))
    found = views(QUEUE, joined)
    assert [view.body for view in found] == [b"0", b"1", b"2"]
    assert [view.message_id for view in found] == ["K0", "K1", "K2"]
    assert found[1].keys == ["a", "b"]
    assert found[1].record_bytes() == records[1]
    assert len({*found, *views(QUEUE, joined)}) == 6, "each is itself"
    assert MessageView(QUEUE, record(b"x", born="::1")).born_host == Host("::1", 1234)


@pytest.mark.parametrize("cut", [1, 50, 90, 91])
def test_a_cut_answer_is_refused(cut: int) -> None:
    data = record(b"a") + record(b"b")
    with pytest.raises(RecordError):
        views(QUEUE, bytes(4) + data)
    with pytest.raises(RecordError):
        views(QUEUE, data[:-cut])


PACKED = [
    (0x001, zlib.compress),
    (0x301, zlib.compress),
    (0x101, lz4.frame.compress),
    (0x201, zstandard.ZstdCompressor().compress),
    (0x201, lambda data: zstandard.ZstdCompressor(write_content_size=False).compress(data)),
]


@pytest.mark.parametrize(("sys_flag", "pack"), PACKED)
def test_compressed_bodies_are_unpacked(sys_flag: int, pack: object) -> None:
    packed = pack(b"body " * 1000)  # type: ignore[operator]
    assert MessageView(QUEUE, record(packed, sys_flag=sys_flag)).body == b"body " * 1000


@pytest.mark.parametrize(("sys_flag", "pack"), PACKED[:4])
@pytest.mark.parametrize("damage", ["garbage", "cut"])
def test_damaged_compression_is_reported(sys_flag: int, pack: object, damage: str) -> None:
    packed = b"garbage" * 10 if damage == "garbage" else pack(bytes(range(256)) * 50)[:-40]  # type: ignore[operator]
    with pytest.raises(DamagedMessage):
        _ = MessageView(QUEUE, record(packed, sys_flag=sys_flag)).body


def test_a_flipped_bit_in_the_body_is_reported() -> None:
    data = bytearray(record(b"body"))
    data[90] ^= 1
    with pytest.raises(DamagedMessage, match="checksum"):
        _ = MessageView(QUEUE, bytes(data)).body


def test_a_returned_message_shows_its_first_topic() -> None:
    view = MessageView(
        MessageQueue("%RETRY%g", "b", 0), record(b"x", b"RETRY_TOPIC\x01orders\x02", topic=b"%RETRY%g")
    )
    assert view.topic == "orders"


def test_unique_keys_differ_within_and_between_makers() -> None:
    runtime = TrioRuntime()
    makers = [UniqueKeys(runtime) for _ in range(3)]
    keys = [maker.next(runtime.wall_ms()) for maker in makers for _ in range(500)]
    keys += [key for maker in makers for key in maker.take(500, runtime.wall_ms())]
    assert len(set(keys)) == 3000
    assert {len(key) for key in keys} == {32}


def test_keys_taken_together_are_those_taken_one_by_one() -> None:
    one, many = UniqueKeys(TrioRuntime()), UniqueKeys(TrioRuntime())
    many._prefix = one._prefix
    now_ms = 1_700_000_000_000
    ours = [one.next(now_ms + n // 40_000) for n in range(80_000)]
    assert many.take(40_000, now_ms) + many.take(40_000, now_ms + 1) == ours
    assert one.next(now_ms) == many.next(now_ms)


def test_no_key_comes_twice_however_many_are_taken_in_one_millisecond() -> None:
    maker, now_ms = UniqueKeys(TrioRuntime()), 1_700_000_000_000
    keys = [maker.next(now_ms) for _ in range(10)]
    keys += maker.take(200_000, now_ms)
    keys += [maker.next(now_ms + n // 50_000) for n in range(250_000)]
    keys += maker.take(70_000, now_ms - 1)
    assert len(set(keys)) == len(keys)
