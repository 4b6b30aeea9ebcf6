"""The message record of RocketMQ: bytes to fields and back (`MessageExtEncoder`, `MessageDecoder`).

A record is written once and then passed on as bytes: replication, pulls and queries never decode it. So
encoding is one `struct` call and one join; dispatch and pulls use `peek`, which reads the fixed part and
finds the variable ones; only tools, the delay and transaction services and tests pay for `decode_record`.

Hosts are packed bytes here (`pack_host`): 4 or 16 address bytes and the port, as they stand in the record,
in message ids and in nobody's way.
"""

import socket
import struct
from dataclasses import astuple, dataclass, fields
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from log.errors import RecordError
from log.formats.properties import parse_properties

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
_NO_HOST_V6 = ~(SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6)

MAX_PROPERTIES_BYTES = 32767
SHORT_TOPIC_BYTES_MAX = 127
"""Longer topics make a record of version 2, whose length of the topic has two bytes instead of one."""
MAX_TOPIC_BYTES = 255
"""Retry and dead letter topics have up to 255 bytes."""

HOST_V4_BYTES = 8
HOST_V6_BYTES = 20
"""An address and its port (`pack_host`)."""

RECORD_BYTES_WITHOUT_VARIABLE_PARTS = 75
"""The size of a V1 record without its hosts, body, topic and properties; one more in V2."""
SMALLEST_RECORD_BYTES = RECORD_BYTES_WITHOUT_VARIABLE_PARTS + 2 * HOST_V4_BYTES

# TOTALSIZE MAGIC BODYCRC QUEUEID FLAG QUEUEOFFSET PHYSICALOFFSET SYSFLAG BORNTIMESTAMP
_FRONT = struct.Struct(">iIIiiqqiq")
# STORETIMESTAMP, and then behind STOREHOST: RECONSUMETIMES PREPAREDTRANSACTIONOFFSET BODYLEN
_TIMESTAMP = struct.Struct(">q")
_BACK = struct.Struct(">iqi")
_FIXED = {
    (born_bytes, store_bytes): (
        struct.Struct(f">iIIiiqqiq{born_bytes}sq{store_bytes}siqi"),
        born_flag | store_flag,
    )
    for born_bytes, born_flag in ((HOST_V4_BYTES, 0), (HOST_V6_BYTES, SYS_FLAG_BORN_HOST_V6))
    for store_bytes, store_flag in ((HOST_V4_BYTES, 0), (HOST_V6_BYTES, SYS_FLAG_STORE_HOST_V6))
}
"""By the lengths of the two hosts: the whole fixed part in one call, and the flags that say which of them is IPv6."""
_FIXED_OF_V4 = _FIXED[HOST_V4_BYTES, HOST_V4_BYTES]
FIXED_V4, _ = _FIXED_OF_V4
"""The fixed part of a record whose hosts are both IPv4, as nearly all are."""
_SHORT = struct.Struct(">h")
SYS_FLAG_AT = struct.calcsize(">iIIiiqq")
QUEUE_OFFSET_AT = struct.calcsize(">iIIii")
PHYSICAL_OFFSET_AT = struct.calcsize(">iIIiiq")
"""Places in a record."""
_FRONT_BYTES, _TIMESTAMP_BYTES, _BACK_BYTES, _SHORT_BYTES = (
    _FRONT.size,
    _TIMESTAMP.size,
    _BACK.size,
    _SHORT.size,
)
_LENGTH_BYTES = [bytes([length]) for length in range(256)]
POSITIVE_INT = 0x7FFFFFFF
"""The bits that Java keeps of a checksum."""

assert FIXED_V4.size + _SHORT.size + len(_LENGTH_BYTES[0]) == SMALLEST_RECORD_BYTES


class Host(NamedTuple):
    address: str
    port: int


class RecordHead(NamedTuple):
    """The fixed part of a record, and the places of its variable parts, counted from the buffer's beginning."""

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
    """A decoded record. Times are in milliseconds; `body` and `properties` are as stored."""

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
        """Returns all properties, as `parse_properties` reads them."""
        return parse_properties(self.properties)

    def encode(self) -> bytes:
        """Returns the bytes of the record. Raises RecordError as `encode_record`, whose arguments are these fields."""
        topic, *others = astuple(self)
        return encode_record(topic.encode(), *others)


# From `queue_id` to `prepared_transaction_offset` a head and a record have the same fields (`decode_record`).
assert RecordHead._fields[3:14] == tuple(field.name for field in fields(Record))[1:12]


@lru_cache(maxsize=4096)
def pack_host(address: str, port: int) -> bytes:
    """Returns address and port in 8 bytes for IPv4, in 20 for IPv6.

    Raises RecordError for anything but a numeric address and a port.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.inet_pton(family, address) + port.to_bytes(4, "big")
    except (OSError, OverflowError) as error:
        raise RecordError(f"{address!r} port {port} is no numeric host: {error}") from error


def unpack_host(packed: bytes) -> Host:
    """Returns the host that `pack_host` has packed."""
    family = socket.AF_INET if len(packed) == HOST_V4_BYTES else socket.AF_INET6
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
    """Returns the bytes of one record. The hosts are as `pack_host` returns them.

    The IPv6 bits of `sys_flag` are set from the hosts. A topic over SHORT_TOPIC_BYTES_MAX gives a V2 record.

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
    hosts_length = len(born_host) + len(store_host)
    size = RECORD_BYTES_WITHOUT_VARIABLE_PARTS + hosts_length + body_length + topic_length + properties_length
    if topic_length <= SHORT_TOPIC_BYTES_MAX:
        magic = MAGIC_V1
        topic_prefix = _LENGTH_BYTES[topic_length]
    else:
        magic = MAGIC_V2
        topic_prefix = _SHORT.pack(topic_length)
        size += 1
    # Java keeps checksums as they fit into a positive int (`UtilAll.crc32`).
    body_crc = crc32(body) & POSITIVE_INT
    is_v4 = len(born_host) == len(store_host) == HOST_V4_BYTES
    fixed, hosts_v6 = _FIXED_OF_V4 if is_v4 else _FIXED[len(born_host), len(store_host)]
    head = fixed.pack(
        size,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag & _NO_HOST_V6 | hosts_v6,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body_length,
    )
    return b"".join((head, body, topic_prefix, topic, _SHORT.pack(properties_length), properties))


def peek(buffer: Buffer, offset: int = 0) -> RecordHead:
    """Returns the fixed part of the record at `offset` and the places of its body, topic and properties.

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
    # The flags say how long the hosts are; the rest of the fixed part stands behind each of them.
    born_begin = offset + _FRONT_BYTES
    born_end = born_begin + (HOST_V6_BYTES if sys_flag & SYS_FLAG_BORN_HOST_V6 else HOST_V4_BYTES)
    store_begin = born_end + _TIMESTAMP_BYTES
    store_end = store_begin + (HOST_V6_BYTES if sys_flag & SYS_FLAG_STORE_HOST_V6 else HOST_V4_BYTES)
    body_begin = store_end + _BACK_BYTES
    topic_prefix = 1 if magic == MAGIC_V1 else _SHORT_BYTES
    if size > available or offset + size < body_begin + topic_prefix + _SHORT_BYTES:
        raise RecordError(f"size {size} is impossible where {available} bytes are there")
    end = offset + size
    (store_timestamp,) = _TIMESTAMP.unpack_from(buffer, born_end)
    reconsume_times, prepared_transaction_offset, body_length = _BACK.unpack_from(buffer, store_end)
    body_end = body_begin + body_length
    # Body, topic and properties follow each other, each behind its length, and end where the record ends.
    if body_length < 0 or body_end + topic_prefix + _SHORT_BYTES > end:
        raise RecordError(f"body length {body_length} does not fit into a record of {size} bytes")
    topic_begin = body_end + topic_prefix
    topic_length = buffer[body_end] if topic_prefix == 1 else _SHORT.unpack_from(buffer, body_end)[0]
    topic_end = topic_begin + topic_length
    properties_begin = topic_end + _SHORT_BYTES
    if topic_length < 0 or properties_begin > end:
        raise RecordError(f"topic length {topic_length} does not fit into a record of {size} bytes")
    (properties_length,) = _SHORT.unpack_from(buffer, topic_end)
    if properties_length < 0 or properties_begin + properties_length != end:
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
        bytes(buffer[born_begin:born_end]),
        store_timestamp,
        bytes(buffer[store_begin:store_end]),
        reconsume_times,
        prepared_transaction_offset,
        body_begin,
        body_end,
        topic_begin,
        topic_end,
        properties_begin,
        end,
    )


def is_message_at(buffer: Buffer, topic: str, queue_id: int, queue_offset: int) -> bool:
    """Tells whether a record is that of an offset of a queue. Raises RecordError."""
    head = peek(buffer)
    name = buffer[head.topic_begin : head.topic_end]
    return (head.queue_id, head.queue_offset) == (queue_id, queue_offset) and name == topic.encode()


def check_record(buffer: Buffer, offset: int = 0) -> RecordHead:
    """Does `peek`, and checks the body's checksum too (0 means that there is none). Raises RecordError."""
    head = peek(buffer, offset)
    if head.body_crc:
        found = crc32(memoryview(buffer)[head.body_begin : head.body_end]) & POSITIVE_INT
        if found != head.body_crc:
            raise RecordError(f"body checksum is {found:#010x}, the record says {head.body_crc:#010x}")
    return head


def decode_record(buffer: Buffer, offset: int = 0) -> Record:
    """Returns the record at `offset`, checked in full. Raises RecordError."""
    head = check_record(buffer, offset)
    try:
        topic = str(bytes(buffer[head.topic_begin : head.topic_end]), "utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(f"the topic is not UTF-8: {error}") from error
    body = bytes(buffer[head.body_begin : head.body_end])
    properties = bytes(buffer[head.properties_begin : head.properties_end])
    return Record(topic, *head[3:14], body, properties)
