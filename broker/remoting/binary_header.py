"""The ROCKETMQ header serialization (`RocketMQSerializable`): the fixed fields, the remark and the map of extFields.

Reading the map is put off: `decode_binary_header` only checks that its length fits and hands back its
bytes, since a forwarded or unsupported request never looks inside.
"""

import struct
from typing import NamedTuple

from broker.remoting.errors import FrameError, FrameErrorReason, HeaderFieldError

# code int16, language int8, version int16, opaque int32, flag int32, remark length int32.
_FIXED = struct.Struct(">hBhiii")
_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_ENTRY_BYTES_MIN = _INT16.size + _INT32.size
"""The bytes of an entry with neither name nor value."""

CODE_MAX = 32767
"""The largest code the binary header can carry; larger ones (POP, ACK) need JSON."""


class BinaryHeader(NamedTuple):
    """A decoded header; ``field_bytes`` is the still encoded map of extFields."""

    code: int
    language: int
    version: int
    opaque: int
    flag: int
    remark: str | None
    field_bytes: bytes


def decode_binary_header(data: bytes) -> BinaryHeader:
    """Decode a header; raises FrameError when a length points outside it or the remark is not UTF-8."""
    size = len(data)
    if size < _FIXED.size + 4:
        raise _bad(f"{size} bytes, the fixed fields take {_FIXED.size + 4}")
    code, language, version, opaque, flag, remark_length = _FIXED.unpack_from(data)
    fields_length_at = _FIXED.size + remark_length
    if remark_length < 0 or fields_length_at + 4 > size:
        raise _bad(f"a remark of {remark_length} bytes in a header of {size}")
    remark: str | None = None
    if remark_length:
        try:
            remark = data[_FIXED.size : fields_length_at].decode()
        except UnicodeDecodeError as error:
            raise _bad(f"remark is not UTF-8: {error}") from error
    (fields_length,) = _INT32.unpack_from(data, fields_length_at)
    fields_at = fields_length_at + 4
    if fields_length < 0 or fields_at + fields_length != size:
        raise _bad(f"extFields of {fields_length} bytes in the last {size - fields_at} of the header")
    return BinaryHeader(code, language, version, opaque, flag, remark, data[fields_at:])


def decode_binary_fields(data: bytes) -> dict[str, str]:
    """Decode the map of extFields; empty values are null in RocketMQ and left out here.

    Raises HeaderFieldError when a length points outside the map or a string is not UTF-8.
    """
    fields: dict[str, str] = {}
    at = 0
    size = len(data)
    try:
        while at < size:
            (key_length,) = _INT16.unpack_from(data, at)
            value_length_at = at + 2 + key_length
            (value_length,) = _INT32.unpack_from(data, value_length_at)
            end = value_length_at + 4 + value_length
            if key_length < 0 or value_length < 0 or end > size:
                raise HeaderFieldError("extFields", f"extFields entry at byte {at} of {size} has bad lengths")
            if value_length:
                fields[data[at + 2 : value_length_at].decode()] = data[value_length_at + 4 : end].decode()
            at = end
    except (struct.error, UnicodeDecodeError) as error:
        raise HeaderFieldError("extFields", f"extFields entry at byte {at} of {size}: {error}") from error
    return fields


def has_more_binary_fields(data: bytes, count: int) -> bool:
    """Tells whether a map of extFields has more than so many entries; what cannot be read counts as the last one."""
    at, size = 0, len(data)
    if size <= _ENTRY_BYTES_MIN * count:
        return False
    for _ in range(count + 1):
        if at >= size:
            return False
        try:
            (key_length,) = _INT16.unpack_from(data, at)
            (value_length,) = _INT32.unpack_from(data, at + 2 + key_length)
        except struct.error:
            return False
        if key_length < 0 or value_length < 0:
            return False
        at += _ENTRY_BYTES_MIN + key_length + value_length
    return True


def encode_binary_fields(fields: dict[str, str]) -> bytes:
    """Encode the map of extFields; raises ValueError for a key too long for its int16 length."""
    parts: list[bytes] = []
    for key, value in fields.items():
        key_bytes = key.encode()
        if len(key_bytes) > 32767:
            raise ValueError(f"extFields key of {len(key_bytes)} bytes, at most 32767 fit")
        value_bytes = value.encode()
        parts += (_INT16.pack(len(key_bytes)), key_bytes, _INT32.pack(len(value_bytes)), value_bytes)
    return b"".join(parts)


def encode_binary_header(header: BinaryHeader) -> bytes:
    """Encode a header; raises ValueError for a code that needs more than 16 bits."""
    if not -CODE_MAX - 1 <= header.code <= CODE_MAX:
        raise ValueError(f"code {header.code} does not fit the binary header (at most {CODE_MAX}): use JSON")
    remark = b"" if header.remark is None else header.remark.encode()
    fixed = _FIXED.pack(header.code, header.language, header.version, header.opaque, header.flag, len(remark))
    return fixed + remark + _INT32.pack(len(header.field_bytes)) + header.field_bytes


def _bad(detail: str) -> FrameError:
    return FrameError(FrameErrorReason.BAD_BINARY_HEADER, detail)
