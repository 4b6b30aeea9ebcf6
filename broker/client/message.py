"""Messages as users meet them: to be sent, stored at a place, and received.

A received message is a view of the bytes that the broker sent. Each part of it, fixed fields, body and properties, is
decoded when it is first read; so a consumer that only counts messages pays for no decoding.
"""

import enum
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import lz4.frame  # type: ignore[import-untyped]
import msgspec
import zstandard

from broker.client.errors import DamagedMessage
from broker.remoting import property_names
from broker.state.topic_rules import RETRY_PREFIX
from log.errors import RecordError
from log.formats.message_id import offset_message_id
from log.formats.properties import KEYS, TAGS, UNIQ_KEY, get_property, parse_properties
from log.formats.record import SMALLEST_RECORD_BYTES, SYS_FLAG_COMPRESSED, Host, RecordHead, peek, unpack_host

COMPRESSION_TYPE_MASK = 0x700
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
"""The kind of compression in the sysFlag (`MessageSysFlag`); 0x300, and no bit at all, mean zlib."""
DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
"""A body that unpacks to more bytes is refused: 4 MiB of compressed bytes may unpack to gigabytes."""


_SIZE = struct.Struct(">I")


class MessageQueue(NamedTuple):
    """A queue of a topic. Queues sort in the order that all members of a consumer group must use."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic} {self.broker_name}/{self.queue_id}"


def trace_key(queue: MessageQueue) -> str:
    """Return the name of a queue in traces, ``topic/broker:number``, as several broker groups may serve one topic."""
    return f"{queue.topic}/{queue.broker_name}:{queue.queue_id}"


class Message(msgspec.Struct, frozen=True, kw_only=False):
    """A message to send.

    - ``topic``: 1 to 127 letters, digits and ``%|_-``.
    - ``body``: at least one byte, 4 MiB at most by the brokers' default.
    - ``tags``: one tag, by which consumers choose messages.
    - ``keys``: texts without spaces, by which the message can be found. One text may hold several, with spaces between.
    - ``properties``: further names and values. Names that have a field of their own here are not allowed.
    - ``delay_level``: 1 to 18, RocketMQ's delays of 1 s to 2 h.
    - ``delay_ms``: delivers the message so many milliseconds after the broker has stored it.
    - ``deliver_at_ms``: delivers it at that time, in milliseconds since 1970 by the broker's clock.
    - ``flag``: a number of the application's own, of 32 bits with a sign.

    One of the three delays at most may be given. A send raises MessageRejected for an illegal message.
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
        """Tell whether the message is to wait at the broker."""
        return bool(self.delay_level) or self.delay_ms is not None or self.deliver_at_ms is not None


class SendStatus(enum.IntEnum):
    """The state of a message when the broker answered. All of them mean that the broker has it in its log.

    A Trivet broker answers `OK` only, once a majority of its group has the message.
    """

    OK = 0
    FLUSH_DISK_TIMEOUT = 10
    """The message is in the log, and not yet known to be on the disk."""
    SLAVE_NOT_AVAILABLE = 11
    """The message is in the leader's log, and no replica was there to have it."""
    FLUSH_SLAVE_TIMEOUT = 12
    """The message is in the leader's log, and not yet known to be replicated."""


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """The place at which a message was stored: ``queue``, and the message's offset in it, ``queue_offset``.

    ``message_id`` is the unique key that the client gave, the same through all attempts. ``offset_message_id`` is the
    broker's id, which names the place in its log. ``transaction_id`` is that of a half message.
    """

    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    status: SendStatus = SendStatus.OK
    transaction_id: str | None = None


class MessageView(msgspec.Struct, eq=False, gc=False):
    """A received message; its parts are decoded when first read.

    ``queue`` is the queue that it was read from. `topic` is the one that it was first sent to, also for a message that
    comes back through the retry topic of its consumer group. A struct of msgspec, as one is made for every message.
    """

    queue: MessageQueue
    _buffer: bytes | memoryview
    _start: int = 0
    _head: RecordHead | None = None
    _body: bytes | None = None
    _properties: dict[str, str] | None = None

    @property
    def head(self) -> RecordHead:
        """The fixed fields of the record (`MessageDecoder`). All that is read of a message comes from here.

        Raises DamagedMessage.
        """
        head = self._head
        if head is None:
            try:
                head = self._head = peek(self._buffer, self._start)
            except RecordError as error:
                raise DamagedMessage(f"{self.queue}: a message cannot be read: {error}") from error
        return head

    @property
    def topic(self) -> str:
        """The topic that the message was first sent to."""
        topic = self.queue.topic
        if topic.startswith(RETRY_PREFIX):
            return self.properties.get(property_names.RETRY_TOPIC, topic)
        return topic

    @property
    def queue_offset(self) -> int:
        """The message's offset in its queue."""
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
        """All properties by name, those that clients and brokers add included."""
        properties = self._properties
        if properties is None:
            properties = self._properties = parse_properties(self._raw_properties())
        return properties

    @property
    def tags(self) -> str | None:
        """The tag, None if there is none."""
        return self._property(TAGS)

    @property
    def keys(self) -> list[str]:
        """The keys by which the message can be found."""
        return (self._property(KEYS) or "").split()

    @property
    def message_id(self) -> str:
        """The unique key that the sender gave; `offset_message_id` for a message without one."""
        return self._property(UNIQ_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The broker's id of the message: its address and the record's physical offset."""
        head = self.head
        return offset_message_id(head.store_host, head.physical_offset)

    @property
    def born_timestamp_ms(self) -> int:
        """The time of sending by the sender's clock, in milliseconds since 1970."""
        return self.head.born_timestamp

    @property
    def store_timestamp_ms(self) -> int:
        """The time of storing by the broker's clock, in milliseconds since 1970."""
        return self.head.store_timestamp

    @property
    def born_host(self) -> Host:
        """The address that the message was sent from."""
        return unpack_host(self.head.born_host)

    @property
    def store_host(self) -> Host:
        """The address of the broker that stored it."""
        return unpack_host(self.head.store_host)

    @property
    def reconsume_times(self) -> int:
        """The number of times that its consumer group has sent it back so far."""
        return self.head.reconsume_times

    @property
    def flag(self) -> int:
        """The number that the sending application chose."""
        return self.head.flag

    def record_bytes(self) -> bytes:
        """Return the bytes of the record as they are stored."""
        return bytes(self._buffer[self._start : self._start + self.head.total_size])

    def _raw_properties(self) -> bytes:
        head = self.head
        return bytes(self._buffer[head.properties_begin : head.properties_end])

    def _property(self, name: bytes) -> str | None:
        value = get_property(self._raw_properties(), name)
        return None if value is None else value.decode("utf-8", "replace")

    def __repr__(self) -> str:
        place = f"{self.queue.topic}/{self.queue.broker_name}/{self.queue.queue_id}"
        try:
            return f"<MessageView {place} at {self.queue_offset}>"
        except DamagedMessage:
            return f"<MessageView {place}, damaged>"


def views(queue: MessageQueue, data: bytes | memoryview) -> list[MessageView]:
    """Return the messages of a response's body. Raises RecordError for a record that is cut."""
    found: list[MessageView] = []
    at = 0
    end = len(data)
    size_at, view, take = _SIZE.unpack_from, MessageView, found.append
    while at + SMALLEST_RECORD_BYTES <= end:
        (size,) = size_at(data, at)
        if size < SMALLEST_RECORD_BYTES:
            break
        take(view(queue, data, at))
        at += size
    if at != end:
        raise RecordError(f"the records of {end} bytes end at {at}")
    return found


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
