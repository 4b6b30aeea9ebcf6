"""The message record of RocketMQ: bytes to fields and back (`MessageExtEncoder`, `MessageDecoder`).

A record is written once and then passed on as bytes: replication, pulls and queries never decode it. So
encoding is one `struct` call and one join; dispatch and pulls use `peek`, which reads the fixed part and
finds the variable ones; only tools, the delay and transaction services and tests pay for `decode_record`.

Hosts are packed bytes here (`pack_host`): 4 or 16 address bytes and the port, as they stand in the record,
in message ids and in nobody's way.
"""

import socket
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from log.errors import RecordError
from log.properties import parse_properties

Buffer = bytes | bytearray | memoryview

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB

SYS_FLAG_COMPRESSED = 0x1
SYS_FLAG_TRANSACTION_MASK = 0xC
SYS_FLAG_PREPARED = 0x4
SYS_FLAG_COMMIT = 0x8
SYS_FLAG_ROLLBACK = 0xC
SYS_FLAG_BORN_HOST_V6 = 0x10
SYS_FLAG_STORE_HOST_V6 = 0x20
SYS_FLAG_INNER_BATCH = 0x80
"""The body is messages, which consumers of 5.x take apart; only queues of a kind that is not kept here hold such."""
_BOTH_HOSTS_V6 = SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6

MAX_PROPERTIES_BYTES = 32767
SHORT_TOPIC_BYTES_MAX = 127
"""Longer topics make a record of version 2, whose length of the topic has two bytes instead of one."""
MAX_TOPIC_BYTES = 255
"""Retry and dead letter topics have up to 255 bytes."""

SMALLEST_RECORD_BYTES = 91

# TOTALSIZE MAGIC BODYCRC QUEUEID FLAG QUEUEOFFSET PHYSICALOFFSET SYSFLAG BORNTIMESTAMP
_FRONT = struct.Struct(">iIIiiqqiq")
# STORETIMESTAMP, and then behind STOREHOST: RECONSUMETIMES PREPAREDTRANSACTIONOFFSET BODYLEN
_TIMESTAMP = struct.Struct(">q")
_BACK = struct.Struct(">iqi")
# The whole fixed part when both hosts are IPv4, in one call.
_FIXED_V4 = struct.Struct(">iIIiiqqiq8sq8siqi")
_SHORT = struct.Struct(">h")
_LENGTH_BYTES = [bytes([length]) for length in range(256)]


class Host(NamedTuple):
    address: str
    port: int


class RecordHead(NamedTuple):
    """The fixed part of a record, and where in the buffer its variable parts are (absolute positions)."""

    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body_begin: int
    body_end: int
    topic_begin: int
    topic_end: int
    properties_begin: int
    properties_end: int


@dataclass(frozen=True, slots=True)
class Record:
    """A decoded record. Times in milliseconds; `body` and `properties` as stored."""

    topic: str
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    properties: bytes

    def properties_by_name(self) -> dict[str, str]:
        return parse_properties(self.properties)

    def encode(self) -> bytes:
        return encode_record(
            self.topic.encode(),
            self.queue_id,
            self.flag,
            self.queue_offset,
            self.physical_offset,
            self.sys_flag,
            self.born_timestamp,
            self.born_host,
            self.store_timestamp,
            self.store_host,
            self.reconsume_times,
            self.prepared_transaction_offset,
            self.body,
            self.properties,
        )


@lru_cache(maxsize=4096)
def pack_host(address: str, port: int) -> bytes:
    """8 bytes for IPv4, 20 for IPv6. Raises RecordError for anything but a numeric address and a port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.inet_pton(family, address) + port.to_bytes(4, "big")
    except (OSError, OverflowError) as error:
        raise RecordError(f"{address!r} port {port} is no numeric host: {error}") from error


def unpack_host(packed: bytes) -> Host:
    """The inverse of `pack_host`."""
    family = socket.AF_INET if len(packed) == 8 else socket.AF_INET6
    return Host(socket.inet_ntop(family, packed[:-4]), int.from_bytes(packed[-4:], "big", signed=True))


def encode_record(
    topic: bytes,
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
    body: Buffer,
    properties: bytes,
) -> bytes:
    """One record. The IPv6 bits of `sys_flag` are set from the hosts; topics over 127 bytes give a V2 record.

    Raises RecordError if topic or properties are too long for the format.
    """
    topic_length = len(topic)
    properties_length = len(properties)
    body_length = len(body)
    if topic_length > MAX_TOPIC_BYTES or properties_length > MAX_PROPERTIES_BYTES:
        raise RecordError(
            f"topic of {topic_length} bytes or properties of {properties_length} bytes exceed "
            f"{MAX_TOPIC_BYTES} and {MAX_PROPERTIES_BYTES}"
        )
    if topic_length <= SHORT_TOPIC_BYTES_MAX:
        magic = MAGIC_V1
        topic_prefix = _LENGTH_BYTES[topic_length]
        size = 75 + len(born_host) + len(store_host) + body_length + topic_length + properties_length
    else:
        magic = MAGIC_V2
        topic_prefix = _SHORT.pack(topic_length)
        size = 76 + len(born_host) + len(store_host) + body_length + topic_length + properties_length
    body_crc = crc32(body) & 0x7FFFFFFF
    if len(born_host) == 8 and len(store_host) == 8:
        fixed = _FIXED_V4.pack(
            size,
            magic,
            body_crc,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag & ~_BOTH_HOSTS_V6,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            body_length,
        )
    else:
        assert len(born_host) in (8, 20), "born_host is made by pack_host"
        assert len(store_host) in (8, 20), "store_host is made by pack_host"
        sys_flag &= ~_BOTH_HOSTS_V6
        sys_flag |= SYS_FLAG_BORN_HOST_V6 if len(born_host) == 20 else 0
        sys_flag |= SYS_FLAG_STORE_HOST_V6 if len(store_host) == 20 else 0
        fixed = b"".join(
            (
                _FRONT.pack(
                    size,
                    magic,
                    body_crc,
                    queue_id,
                    flag,
                    queue_offset,
                    physical_offset,
                    sys_flag,
                    born_timestamp,
                ),
                born_host,
                _TIMESTAMP.pack(store_timestamp),
                store_host,
                _BACK.pack(reconsume_times, prepared_transaction_offset, body_length),
            )
        )
    return b"".join((fixed, body, topic_prefix, topic, _SHORT.pack(properties_length), properties))


def peek(buffer: Buffer, offset: int = 0) -> RecordHead:
    """The fixed part of the record at `offset` and the places of its body, topic and properties.

    Checks that the lengths agree with each other and with the buffer, nothing else. Raises RecordError.
    """
    available = len(buffer) - offset
    if available < SMALLEST_RECORD_BYTES:
        raise RecordError(f"a record has at least {SMALLEST_RECORD_BYTES} bytes, only {available} are there")
    (size, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp) = (
        _FRONT.unpack_from(buffer, offset)
    )
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise RecordError(f"magic number {magic:#010x} is not one of a record")
    born_end = offset + (68 if sys_flag & SYS_FLAG_BORN_HOST_V6 else 56)
    store_end = born_end + (28 if sys_flag & SYS_FLAG_STORE_HOST_V6 else 16)
    body_begin = store_end + 16
    topic_prefix = 1 if magic == MAGIC_V1 else 2
    if size > available or offset + size < body_begin + topic_prefix + 2:
        raise RecordError(f"size {size} is impossible where {available} bytes are there")
    end = offset + size
    (store_timestamp,) = _TIMESTAMP.unpack_from(buffer, born_end)
    reconsume_times, prepared_transaction_offset, body_length = _BACK.unpack_from(buffer, store_end)
    body_end = body_begin + body_length
    if body_length < 0 or body_end + topic_prefix + 2 > end:
        raise RecordError(f"body length {body_length} does not fit into a record of {size} bytes")
    topic_begin = body_end + topic_prefix
    topic_length = buffer[body_end] if topic_prefix == 1 else _SHORT.unpack_from(buffer, body_end)[0]
    topic_end = topic_begin + topic_length
    if topic_length < 0 or topic_end + 2 > end:
        raise RecordError(f"topic length {topic_length} does not fit into a record of {size} bytes")
    (properties_length,) = _SHORT.unpack_from(buffer, topic_end)
    if properties_length < 0 or topic_end + 2 + properties_length != end:
        raise RecordError(f"properties length {properties_length} does not end at the record's {size} bytes")
    return RecordHead(
        size,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        bytes(buffer[offset + 48 : born_end]),
        store_timestamp,
        bytes(buffer[born_end + 8 : store_end]),
        reconsume_times,
        prepared_transaction_offset,
        body_begin,
        body_end,
        topic_begin,
        topic_end,
        topic_end + 2,
        end,
    )


def check_record(buffer: Buffer, offset: int = 0) -> RecordHead:
    """`peek`, and the body's checksum (0 means unchecked). Raises RecordError."""
    head = peek(buffer, offset)
    if head.body_crc:
        found = crc32(memoryview(buffer)[head.body_begin : head.body_end]) & 0x7FFFFFFF
        if found != head.body_crc:
            raise RecordError(f"body checksum is {found:#010x}, the record says {head.body_crc:#010x}")
    return head


def decode_record(buffer: Buffer, offset: int = 0) -> Record:
    """The record at `offset`, checked in full. Raises RecordError."""
    head = check_record(buffer, offset)
    try:
        topic = str(bytes(buffer[head.topic_begin : head.topic_end]), "utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(f"the topic is not UTF-8: {error}") from error
    return Record(
        topic=topic,
        queue_id=head.queue_id,
        flag=head.flag,
        queue_offset=head.queue_offset,
        physical_offset=head.physical_offset,
        sys_flag=head.sys_flag,
        born_timestamp=head.born_timestamp,
        born_host=head.born_host,
        store_timestamp=head.store_timestamp,
        store_host=head.store_host,
        reconsume_times=head.reconsume_times,
        prepared_transaction_offset=head.prepared_transaction_offset,
        body=bytes(buffer[head.body_begin : head.body_end]),
        properties=bytes(buffer[head.properties_begin : head.properties_end]),
    )
