"""RegisterBrokerBody: a broker's topics as REGISTER_BROKER 103 carries them, plain JSON or compressed.

Filter servers and 5.x's static topic mappings are read past and dropped: nothing here offers either.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Generator, Iterator

import msgspec

from broker.remoting.bodies import DataVersion, TopicConfig, TopicConfigTable
from broker.remoting.codes import Version
from broker.remoting.errors import BodyError
from broker.remoting.json_body import decode_request, encode_body
from broker.remoting.steps import finished

DECOMPRESSED_SIZE_MAX = 16 * 1024 * 1024
"""The largest body a compressed registration may unfold to: as much as a frame holds uncompressed."""

TOPICS_MAX = 100_000
"""Topics that it may list: each takes a name server 1 us."""

TOPICS_AT_ONCE = 4_000
"""Topics that are read in one step of `RegisterBrokerBody.decode_in_steps`: some 3 ms."""

_PART_BYTES = 256 * 1024
"""The bytes of a JSON body that are looked through at once: some 1 ms."""
_table_begin = re.compile(rb'"topicConfigTable":\{').search
_next_topic = re.compile(rb'\},(?="[^"\\]{1,300}":\{)').search
_REST_KEY, _REST = "the rest of the table", b'"the rest of the table":{},'

_TOPIC_WORDS = ("topicName", "readQueueNums", "writeQueueNums", "perm", "topicFilterType")
_decode_topic = msgspec.json.Decoder(TopicConfig, strict=False).decode
_decode_raw_topics = msgspec.json.Decoder(dict[str, msgspec.Raw], strict=False).decode
_decode_attributes = msgspec.json.Decoder(dict[str, str], strict=False).decode
_INT32 = struct.Struct(">i")


class RegisterBrokerBody(msgspec.Struct, rename="camel", kw_only=True):
    """The topics of a broker and their version."""

    filter_server_list: list[str] = []
    topics: TopicConfigTable = msgspec.field(
        name="topicConfigSerializeWrapper", default_factory=TopicConfigTable
    )

    def encode(self) -> bytes:
        """Encodes it as plain JSON, which every version reads."""
        return encode_body(self)

    def encode_compressed(self, version: int) -> bytes:
        """The zlib form; from version 5.0 on with the (empty) tail of queue mappings."""
        out = bytearray()
        _put(out, encode_body(self.topics.data_version))
        topics = self.topics.topic_config_table
        out += _INT32.pack(len(topics))
        for topic in topics.values():
            _put(out, _topic_text(topic).encode())
        _put(out, encode_body(self.filter_server_list))
        if version >= Version.V5_0_0:
            out += _INT32.pack(0)
        return zlib.compress(bytes(out))

    @classmethod
    def decode(cls, body: bytes | memoryview, *, compressed: bool, version: int) -> RegisterBrokerBody:
        """Read a registration's body; ``version`` is the sender's. Raises BodyError.

        Senders older than V3_0_11 send the topic table alone.
        """
        return finished(cls.decode_in_steps(body, compressed=compressed, version=version))

    @classmethod
    def decode_in_steps(
        cls, body: bytes | memoryview, *, compressed: bool, version: int
    ) -> Generator[None, None, RegisterBrokerBody]:
        """`decode` for whoever has others to answer between two steps."""
        if not len(body):
            return cls()
        if compressed and version >= Version.V3_0_11:
            return (yield from _decode_compressed(body))
        has_topics_alone = version < Version.V3_0_11
        try:
            topics = yield from _decode_raw(body, _RawTable if has_topics_alone else _RawBody)
            return cls(topics=topics)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass  # perhaps the dialect, or what is forgiven; if not, that reading's error is the one to tell
        if has_topics_alone:
            read = cls(topics=decode_request(body, TopicConfigTable, DECOMPRESSED_SIZE_MAX))
        else:
            read = decode_request(body, cls, DECOMPRESSED_SIZE_MAX)
        _check_count(len(read.topics.topic_config_table))
        return read


class _RawTable(msgspec.Struct, rename="camel"):
    """`TopicConfigTable` whose topics are not read yet."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, msgspec.Raw] = {}


class _RawBody(msgspec.Struct, rename="camel"):
    filter_server_list: list[str] = []
    topics: _RawTable = msgspec.field(name="topicConfigSerializeWrapper", default_factory=_RawTable)


def _decode_raw(
    body: bytes | memoryview, kind: type[_RawBody | _RawTable]
) -> Generator[None, None, TopicConfigTable]:
    """Raises BodyError, and MsgspecError, ValueError or RecursionError for what is not standard JSON of that kind."""
    if len(body) > DECOMPRESSED_SIZE_MAX:
        raise BodyError(f"the body has {len(body)} bytes, at most {DECOMPRESSED_SIZE_MAX} are allowed")
    raw_topics: dict[str, msgspec.Raw] = {}
    table_begin = _table_begin(body, 0, _PART_BYTES)
    begin = at = 0 if table_begin is None else table_begin.end()
    # Most topics of a long body are taken out of it, so many bytes at once. It is cut where a topic seems to end
    # and another to begin. That need not be so, within a text, say; but then what is before is no JSON: read from
    # the table's beginning on, an object is whole behind one of its members only.
    while at and len(body) - at > 2 * _PART_BYTES and (cut := _next_topic(body, at + _PART_BYTES)):
        raw_topics |= _decode_raw_topics(b"".join((b"{", body[at : cut.end() - 1], b"}")))
        _check_count(len(raw_topics))
        at = cut.end()
        yield
    # `_REST`, no topic's name, stands where they were: it shows whether they were of the table that counts.
    rest = body if at == begin else b"".join((body[:begin], _REST, body[at:]))
    read = msgspec.json.decode(rest, type=kind, strict=False)
    table = read.topics if isinstance(read, _RawBody) else read
    if at != begin and table.topic_config_table.pop(_REST_KEY, None) is None:
        raise msgspec.ValidationError("what was taken apart was another table")
    raw_topics |= table.topic_config_table
    _check_count(len(raw_topics))
    topics: dict[str, TopicConfig] = {}
    for number, (name, raw) in enumerate(raw_topics.items(), 1):
        if number % TOPICS_AT_ONCE == 0:
            yield
        topics[name] = _decode_topic(raw)
    return TopicConfigTable(table.data_version, topics)


def body_crc(body: bytes | memoryview) -> int:
    """bodyCrc32 of a registration: CRC-32 without its sign bit; 0 means not checked."""
    return zlib.crc32(body) & 0x7FFFFFFF


def _check_count(count: int) -> None:
    if count > TOPICS_MAX:
        raise BodyError(f"the registration has {count} topics, at most {TOPICS_MAX} are read")


def _topic_text(topic: TopicConfig) -> str:
    text = (
        f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} {topic.perm} "
        f"{topic.topic_filter_type}"
    )
    if topic.attributes:
        text += " " + encode_body(topic.attributes).decode()
    return text


def _parse_topic(text: str) -> TopicConfig:
    parts = text.split(" ", 5)
    if len(parts) < 5:
        raise BodyError(f"topic text {text[:200]!r} has {len(parts)} of its 5 words")
    fields: dict[str, object] = dict(zip(_TOPIC_WORDS, parts, strict=False))
    if len(parts) > 5 and parts[5].strip():
        try:  # standard JSON, of every writer: hundreds of thousands of these are too many for the slow reading
            fields["attributes"] = _decode_attributes(parts[5])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise BodyError(f"attributes in topic text {text[:200]!r}: {error}") from error
    try:
        return msgspec.convert(fields, TopicConfig, strict=False)
    except msgspec.ValidationError as error:
        raise BodyError(f"topic text {text[:200]!r}: {error}") from error


def _decode_compressed(body: bytes | memoryview) -> Generator[None, None, RegisterBrokerBody]:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, DECOMPRESSED_SIZE_MAX)
    except zlib.error as error:
        raise BodyError(f"the compressed registration cannot be read: {error}") from error
    # A few bytes unfold to gigabytes: unfolding has stopped at the limit, and what is left of them shows here.
    if not inflater.eof:
        raise BodyError(f"the compressed registration is cut off, or over {DECOMPRESSED_SIZE_MAX} bytes")
    reader = _Reader(data)
    data_version = decode_request(reader.item(), DataVersion)
    count = reader.count()
    _check_count(count)
    topics: dict[str, TopicConfig] = {}
    read: dict[str, TopicConfig] = {}
    """By all words but the name, which few topics do not share with another: looked up in a third of the time."""
    for number, item in enumerate(reader.items(count), 1):
        if number % TOPICS_AT_ONCE == 0:
            yield
        try:
            text = item.decode()
        except UnicodeDecodeError as error:
            raise BodyError(f"a topic's text is not UTF-8: {error}") from error
        name, _, words = text.partition(" ")
        like = read.get(words)
        if like is None:
            like = read[words] = _parse_topic(text)
        topics[name] = msgspec.structs.replace(like, topic_name=name)
    filter_servers = decode_request(reader.item(), list[str])
    return RegisterBrokerBody(
        filter_server_list=filter_servers,
        topics=TopicConfigTable(data_version, topics),
    )


class _Reader:
    """Length-prefixed items, checked; what is behind the last one read is ignored."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def count(self) -> int:
        if self._at + 4 > len(self._data):
            raise BodyError(f"the registration ends at byte {len(self._data)} where a length belongs")
        (value,) = _INT32.unpack_from(self._data, self._at)
        self._at += 4
        if not 0 <= value <= len(self._data) - self._at:
            raise BodyError(
                f"a length of {value} at byte {self._at - 4} of a registration of {len(self._data)}"
            )
        return int(value)

    def item(self) -> bytes:
        size = self.count()
        self._at += size
        return self._data[self._at - size : self._at]

    def items(self, count: int) -> Iterator[bytes]:
        """Reads that many items: `item` without its calls, as long as nothing is wrong."""
        data, end, length_at = self._data, len(self._data), _INT32.unpack_from
        for _ in range(count):
            at = self._at + 4
            size = length_at(data, self._at)[0] if at <= end else -1
            if not 0 <= size <= end - at:
                self.count()  # which says what is wrong
            self._at = at + size
            yield data[at : self._at]


def _put(out: bytearray, item: bytes) -> None:
    out += _INT32.pack(len(item)) + item
