"""Messages as users meet them: what they send, where it went, and what they receive.

A received message is a view of the bytes that the broker sent. Nothing of it is decoded before it is asked for: a
consumer that only counts or forwards pays for a slice, and the fixed fields, body and properties each cost their own
decoding once.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import lz4.frame  # type: ignore[import-untyped]
import msgspec
import zstandard

from broker.client.errors import DamagedMessage
from log.errors import RecordError
from log.message_id import offset_message_id
from log.properties import get_property, parse_properties
from log.record import SYS_FLAG_COMPRESSED, Host, RecordHead, peek, unpack_host

COMPRESSION_TYPE_MASK = 0x700
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
"""sysFlag bits of a compressed body (`MessageSysFlag`); 0x300, and no bit at all, mean zlib."""
DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
"""A body that unpacks to more is refused: 4 MiB of compressed bytes may claim gigabytes."""
RETRY_TOPIC_PREFIX = "%RETRY%"


class MessageQueue(NamedTuple):
    """One queue of a topic. Sorts as all members of a consumer group must sort queues."""

    topic: str
    broker_name: str
    queue_id: int


def trace_key(queue: MessageQueue) -> str:
    """How traces name a queue: ``topic/broker:number``, since several broker groups may serve one topic."""
    return f"{queue.topic}/{queue.broker_name}:{queue.queue_id}"


class Message(msgspec.Struct, frozen=True, kw_only=False):
    """A message to send.

    ``keys``, which hold no spaces, make it findable by query; ``delay_level`` 1 to 18 delays its delivery,
    ``delay_ms`` by so many milliseconds from when the broker stores it, ``deliver_at_ms`` until that time (since
    1970, by the broker's clock), of which one may be given; ``flag`` is the application's own number. ``properties``
    must not name what has a field of its own here.
    """

    topic: str
    body: bytes | bytearray | memoryview
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = {}
    delay_level: int = 0
    flag: int = 0
    delay_ms: int | None = None
    deliver_at_ms: int | None = None

    @property
    def is_delivered_later(self) -> bool:
        """Whether it is to wait at the broker."""
        return bool(self.delay_level) or self.delay_ms is not None or self.deliver_at_ms is not None


class SendStatus(enum.IntEnum):
    """How far the message had got when the broker answered. All of them mean that it was accepted."""

    OK = 0
    FLUSH_DISK_TIMEOUT = 10
    """In the log, not yet known to be on disk."""
    SLAVE_NOT_AVAILABLE = 11
    """In the leader's log, no replica had it."""
    FLUSH_SLAVE_TIMEOUT = 12
    """In the leader's log, not yet known to be replicated."""


class SendResult(msgspec.Struct, frozen=True):
    """Where a message was stored.

    ``message_id`` is the client's unique key, the same through all retries; ``offset_message_id`` the broker's, which
    names the place in its log.
    """

    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    status: SendStatus = SendStatus.OK
    transaction_id: str | None = None


class MessageView:
    """A received message; its parts are decoded when first read.

    ``queue`` is where it was read from. `topic` is the name that it was first sent to, also for a message that comes
    back through the group's retry topic.
    """

    __slots__ = ("_body", "_buffer", "_head", "_properties", "_start", "queue")

    def __init__(self, queue: MessageQueue, buffer: bytes | memoryview, start: int = 0) -> None:
        self.queue = queue
        self._buffer = buffer
        self._start = start
        self._head: RecordHead | None = None
        self._body: bytes | None = None
        self._properties: dict[str, str] | None = None

    @property
    def head(self) -> RecordHead:
        """The fixed fields of the record (`MessageDecoder`)."""
        head = self._head
        if head is None:
            head = self._head = peek(self._buffer, self._start)
        return head

    @property
    def topic(self) -> str:
        """The topic that the message was sent to."""
        topic = self.queue.topic
        if topic.startswith(RETRY_TOPIC_PREFIX):
            return self.properties.get("RETRY_TOPIC", topic)
        return topic

    @property
    def queue_offset(self) -> int:
        """The message's place in its queue."""
        return self.head.queue_offset

    @property
    def body(self) -> bytes:
        """The body as it was sent, unpacked if it was compressed. Raises DamagedMessage."""
        body = self._body
        if body is None:
            head = self.head
            stored = bytes(self._buffer[head.body_begin : head.body_end])
            if head.body_crc and zlib.crc32(stored) & 0x7FFFFFFF != head.body_crc:
                raise DamagedMessage(
                    f"{self.queue} offset {head.queue_offset}: body does not match its checksum"
                )
            if head.sys_flag & SYS_FLAG_COMPRESSED:
                stored = _decompress(stored, head.sys_flag, self)
            body = self._body = stored
        return body

    @property
    def properties(self) -> dict[str, str]:
        """All properties, those of the system included."""
        properties = self._properties
        if properties is None:
            properties = self._properties = parse_properties(self._raw_properties())
        return properties

    @property
    def tags(self) -> str | None:
        """The tag, None without one."""
        return self._property(b"TAGS")

    @property
    def keys(self) -> list[str]:
        """The keys it can be found by."""
        return (self._property(b"KEYS") or "").split()

    @property
    def message_id(self) -> str:
        """The sender's unique key; the place in the log for a message that has none."""
        return self._property(b"UNIQ_KEY") or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The broker's id: its address and the record's place in the log."""
        head = self.head
        return offset_message_id(head.store_host, head.physical_offset)

    @property
    def born_timestamp_ms(self) -> int:
        """When it was sent, by the sender's clock."""
        return self.head.born_timestamp

    @property
    def store_timestamp_ms(self) -> int:
        """When it was stored, by the broker's clock."""
        return self.head.store_timestamp

    @property
    def born_host(self) -> Host:
        """Where it was sent from."""
        return unpack_host(self.head.born_host)

    @property
    def store_host(self) -> Host:
        """The broker that stored it."""
        return unpack_host(self.head.store_host)

    @property
    def reconsume_times(self) -> int:
        """How often its group has sent it back so far."""
        return self.head.reconsume_times

    @property
    def flag(self) -> int:
        """The application's own number."""
        return self.head.flag

    def record_bytes(self) -> bytes:
        """The record as stored."""
        return bytes(self._buffer[self._start : self._start + self.head.total_size])

    def _raw_properties(self) -> bytes:
        head = self.head
        return bytes(self._buffer[head.properties_begin : head.properties_end])

    def _property(self, name: bytes) -> str | None:
        value = get_property(self._raw_properties(), name)
        return None if value is None else value.decode("utf-8", "replace")

    def __repr__(self) -> str:
        return f"<MessageView {self.queue.topic}/{self.queue.broker_name}/{self.queue.queue_id} at {self.queue_offset}>"


def split_records(data: bytes | memoryview) -> list[int]:
    """Where the records begin that stand back to back in an answer's body. Raises RecordError for a cut one."""
    starts = []
    at = 0
    end = len(data)
    from_bytes = int.from_bytes
    while at < end:
        size = from_bytes(data[at : at + 4], "big")
        if size < 91 or at + size > end:
            raise RecordError(f"a record of {size} bytes at {at} of {end}")
        starts.append(at)
        at += size
    return starts


def _decompress_zstd(stored: bytes, limit: int) -> tuple[bytes, bool]:
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    parts = []
    size = 0
    # In small steps, as the library has no bound for one: 4 KiB unpack to 128 MiB at most.
    for at in range(0, len(stored), 4096):
        parts.append(unpacker.decompress(stored[at : at + 4096]))
        size += len(parts[-1])
        if size > limit or unpacker.eof:
            break
    return b"".join(parts), unpacker.eof and size <= limit


def _decompress(stored: bytes, sys_flag: int, message: MessageView) -> bytes:
    kind = sys_flag & COMPRESSION_TYPE_MASK
    limit = DECOMPRESSED_BYTES_MAX
    unpacker: Any
    try:
        if kind == COMPRESSION_LZ4:
            unpacker = lz4.frame.LZ4FrameDecompressor()
            body = unpacker.decompress(stored, limit)
            whole = unpacker.eof
        elif kind == COMPRESSION_ZSTD:
            body, whole = _decompress_zstd(stored, limit)
        else:
            unpacker = zlib.decompressobj()
            body = unpacker.decompress(stored, limit)
            whole = unpacker.eof
    except (RuntimeError, zstandard.ZstdError, zlib.error) as error:
        raise DamagedMessage(f"{message!r}: body cannot be unpacked: {error}") from error
    if not whole:
        raise DamagedMessage(f"{message!r}: body is cut off or unpacks to more than {limit} bytes")
    return bytes(body)
