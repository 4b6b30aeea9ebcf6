"""Records, batches, properties, hashes and ids against golden bytes, as RocketMQ writes them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from log.errors import RecordError
from log.formats.batch import BatchItem, batch_items, encode_batch
from log.formats.java_hash import java_hash, java_hash_utf8, java_hash_utf8_many
from log.formats.message_id import offset_message_id, parse_offset_message_id, unique_key, unique_key_prefix
from log.formats.properties import (
    encode_properties,
    get_property,
    parse_properties,
    properties_by_name,
    with_property,
    without_properties,
)
from log.formats.record import Record, check_record, decode_record, pack_host, peek, unpack_host
from log.index.index_file import key_hash
from log.index.index_files import file_name
from tests.examples import examples
from tests.log.plain_reader import plain_hash, read_record

GOLDEN = bytes.fromhex(
    "00000066daa320a758932aac0000000300000000000000000000000500000000000003e8000000000000018bcfe568000a000001"
    "000004d20000018bcfe568017f00000100002a9f000000000000000000000000000000026869025431000754414753016102"
)
GOLDEN_RECORD = Record(
    topic="T1",
    queue_id=3,
    flag=0,
    queue_offset=5,
    physical_offset=1000,
    sys_flag=0,
    born_timestamp=1700000000000,
    born_host=pack_host("10.0.0.1", 1234),
    store_timestamp=1700000000001,
    store_host=pack_host("127.0.0.1", 10911),
    reconsume_times=0,
    prepared_transaction_offset=0,
    body=b"hi",
    properties=b"TAGS\x01a\x02",
)

names = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
hosts = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
records = st.builds(
    Record,
    topic=st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    queue_id=int32,
    flag=int32,
    queue_offset=int64,
    physical_offset=int64,
    sys_flag=st.sampled_from([0, 1, 4, 8, 12, 0x700]),
    born_timestamp=int64,
    born_host=hosts,
    store_timestamp=int64,
    store_host=hosts,
    reconsume_times=int32,
    prepared_transaction_offset=int64,
    body=st.binary(max_size=300),
    properties=st.binary(max_size=300),
)


def test_golden_record() -> None:
    assert GOLDEN_RECORD.encode() == GOLDEN
    assert decode_record(GOLDEN) == GOLDEN_RECORD
    assert unpack_host(GOLDEN_RECORD.born_host) == ("10.0.0.1", 1234)


@given(records)
def test_records_round_trip(record: Record) -> None:
    raw = record.encode()
    decoded = decode_record(raw)
    v6 = (0x10 if len(record.born_host) == 20 else 0) | (0x20 if len(record.store_host) == 20 else 0)
    assert decoded.sys_flag == record.sys_flag | v6
    assert decoded.encode() == raw
    assert (decoded.topic, decoded.body, decoded.properties) == (record.topic, record.body, record.properties)
    assert decoded.born_host == record.born_host
    assert decoded.store_host == record.store_host


@pytest.mark.parametrize("topic_bytes", [127, 128, 255])
def test_long_topics_make_version_2_records(topic_bytes: int) -> None:
    topic = "t" * topic_bytes
    raw = Record(**{**_fields(GOLDEN_RECORD), "topic": topic}).encode()  # type: ignore[arg-type]
    assert raw[7] == (0xA7 if topic_bytes <= 127 else 0xAB)
    assert decode_record(raw).topic == topic
    assert read_record(raw).topic == topic


def test_too_long_parts_are_refused() -> None:
    with pytest.raises(RecordError):
        Record(**{**_fields(GOLDEN_RECORD), "topic": "t" * 256}).encode()  # type: ignore[arg-type]
    with pytest.raises(RecordError):
        Record(**{**_fields(GOLDEN_RECORD), "properties": bytes(32768)}).encode()  # type: ignore[arg-type]


@given(st.integers(0, len(GOLDEN) - 1), st.integers(1, 255))
def test_a_changed_byte_is_found_or_harmless_to_the_layout(at: int, change: int) -> None:
    raw = bytearray(GOLDEN)
    raw[at] ^= change
    try:
        record = decode_record(raw)
    except RecordError:
        return
    # What is not covered by a length or the body's checksum is covered by the entry's checksum.
    assert record.body == b"hi" or raw[8:12] == bytes(4)


@given(st.binary(max_size=200))
def test_garbage_is_a_record_error(raw: bytes) -> None:
    with pytest.raises(RecordError):
        check_record(raw)


@given(st.integers(0, len(GOLDEN) - 1))
def test_cut_records_are_record_errors(size: int) -> None:
    with pytest.raises(RecordError):
        peek(GOLDEN[:size])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("TAGS", 2567193),
        ("T1#key1", -1320661992),
        ("你好", 652829),
        ("%RETRY%g", 1875847589),
    ],
)
def test_golden_hashes(text: str, value: int) -> None:
    assert java_hash(text) == value
    assert java_hash_utf8(text.encode()) == value


@given(st.lists(st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.just("k" * 300))))
def test_hashes_agree_with_the_definition(texts: list[str]) -> None:
    many = java_hash_utf8_many([text.encode() for text in texts])
    assert many.tolist() == [plain_hash(text) for text in texts]
    assert [java_hash(text) for text in texts] == many.tolist()


def test_the_hash_without_an_absolute_value_is_0() -> None:
    assert java_hash("polygenelubricants") == -(2**31)
    assert key_hash(b"polygenelubricants") == 0


def test_message_ids() -> None:
    host = pack_host("127.0.0.1", 10911)
    assert offset_message_id(host, 1000) == "7F00000100002A9F00000000000003E8"
    assert parse_offset_message_id("7F00000100002A9F00000000000003E8") == (host, 1000)
    v6 = pack_host("::1", 10911)
    assert len(offset_message_id(v6, 5)) == 56
    assert parse_offset_message_id(offset_message_id(v6, 5)) == (v6, 5)
    for bad in ("", "xyz", "7F00", "7F00000100002A9F00000000000003E800"):
        with pytest.raises(RecordError):
            parse_offset_message_id(bad)


def test_unique_keys() -> None:
    prefix = unique_key_prefix(b"\x0a\x00\x00\x01", 0x1234, 0x0A0B0C0D)
    assert unique_key(prefix, 5, 7) == "0A00000112340A0B0C0D000000050007"
    assert len({unique_key(prefix, 5, counter) for counter in range(0x10000)}) == 0x10000


def test_index_file_names_are_utc_times() -> None:
    assert file_name(0) == "19700101000000000"
    assert file_name(1_709_210_096_789) == "20240229123456789"
    assert file_name(4_107_542_399_999) == "21000228235959999"


@given(
    st.dictionaries(names, st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"])))
)
def test_properties_round_trip(properties: dict[str, str]) -> None:
    raw = encode_properties(properties)
    kept = {name: value for name, value in properties.items() if value}
    assert parse_properties(raw) == kept
    assert parse_properties(raw[:-1]) == kept
    for name, value in kept.items():
        assert get_property(raw, name.encode()) == value.encode()
        assert get_property(raw[:-1], name.encode()) == value.encode()
        changed = with_property(raw[:-1], name.encode(), b"new")
        assert parse_properties(changed) == {**kept, name: "new"}
        assert get_property(changed, name.encode()) == b"new"
        assert name not in parse_properties(without_properties(changed, name.encode()))


@given(st.lists(st.sampled_from(["KEYS", "TAGS", "XTAGS", "\x01", "\x02", "a", "b c"]), max_size=12))
def test_single_properties_agree_with_the_whole_parse(parts: list[str]) -> None:
    text = "".join(parts)
    for name in ("KEYS", "TAGS"):
        value = get_property(text.encode(), name.encode())
        assert value == properties_by_name(text.encode()).get(name.encode())
        assert (None if value is None else value.decode()) == parse_properties(text.encode()).get(name)


def test_several_properties_are_taken_out_at_once() -> None:
    raw = b"a\x01bc\x01d\x02b\x01b\x02c\x01e"
    assert without_properties(raw, b"c", b"b") == b"a\x01bc\x01d\x02", "what only looks like a name is left"
    assert without_properties(raw, b"x", b"y") == raw


def test_separators_in_properties_are_refused() -> None:
    for name, value in (("a\x01", "b"), ("a", "b\x02"), ("", "b")):
        with pytest.raises(RecordError):
            encode_properties({name: value})


@given(st.lists(st.builds(BatchItem, int32, st.binary(max_size=50), st.binary(max_size=50)), min_size=1))
def test_batches_round_trip(items: list[BatchItem]) -> None:
    assert list(batch_items(encode_batch(items))) == items


@settings(max_examples=examples(200))
@given(st.binary(max_size=60))
def test_damaged_batches_are_record_errors(raw: bytes) -> None:
    good = encode_batch([BatchItem(1, b"body", b"A\x01b\x02")])
    for bad in (b"", good[:-1], good[1:], good + b"\0"):
        with pytest.raises(RecordError):
            list(batch_items(bad))
    for perhaps_bad in (raw, good + raw[:21]):
        try:
            parsed = list(batch_items(perhaps_bad))
        except RecordError:
            continue
        assert len(encode_batch(parsed)) == len(perhaps_bad)


def _fields(record: Record) -> dict[str, object]:
    return {name: getattr(record, name) for name in Record.__slots__}
