"""JSON bodies: writing what RocketMQ's parsers read, reading what its writers write.

The reference's JSON library writes map keys as they are, so a map with integer keys is ``{0:"a"}`` and one
keyed by message queues is ``{{"brokerName":"b","queueId":0,"topic":"T"}:{...}}``; other clients write nulls
where there is nothing, numbers as strings, and enums as ordinals. Reading tries msgspec first and pays for
tolerance only when that fails.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, TypeVar

import msgspec

from broker.remoting.errors import BodyError
from broker.remoting.pieces import Pieces

BodyType = TypeVar("BodyType")
KeyType = TypeVar("KeyType")

DEPTH_MAX = 64
"""Bodies may nest so deep; real ones reach 6."""

REQUEST_BYTES_MAX = 1024 * 1024
"""Bodies of requests may have so many: decoded at a stroke, they keep a server from everybody else for milliseconds.
The longest of real clients (heartbeats of a thousand consumer groups, order locks for ten thousand queues) are
shorter."""

DIALECT_BYTES_MAX = 16 * 1024
"""Longer bodies of requests must be standard JSON: the dialect is read a character at a time, 0.7 ms for each KiB."""

FORGIVEN_COMMAS_MAX = 10_000
"""Bodies of so many values must have neither nulls nor ordinals where their types have none: to look at each takes a
microsecond. A heartbeat of 200 KiB has 10,000."""

# Enum fields that the C++ client writes as ordinals, which RocketMQ's parser accepts.
_ENUM_ORDINALS: dict[str, tuple[str, ...]] = {
    "consumeType": ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP"),
    "messageModel": ("BROADCASTING", "CLUSTERING"),
    "consumeFromWhere": (
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ),
}

_decoders: dict[Any, Any] = {}
_encode = msgspec.json.Encoder().encode


def encode_body(body: Any) -> bytes:
    """Standard JSON of a body struct, list or dict."""
    return _encode(body)


def make_decoder(body_type: type[BodyType]) -> Any:
    """Makes the decoder that `decode_body` uses from now on, and returns it.

    Bodies that several threads read are prepared by this: msgspec looks up a struct's fields when its first decoder is
    made, and a second thread that needs them meanwhile ends the process.
    """
    decoder = _decoders[body_type] = msgspec.json.Decoder(body_type, strict=False)
    return decoder


def decode_body(body: bytes | memoryview, body_type: type[BodyType]) -> BodyType:
    """A body struct from JSON, standard or RocketMQ's dialect; raises BodyError saying what is
    wrong where.

    Unknown fields are ignored; nulls count as absent.
    """
    decoder = _decoders.get(body_type)
    if decoder is None:
        decoder = make_decoder(body_type)
    try:
        return decoder.decode(body)  # type: ignore[no-any-return]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass  # perhaps the dialect, read below; if not, that reading's error is the one to tell
    try:
        return msgspec.convert(_normalised(None, parse_loose_json(body)), body_type, strict=False)
    except msgspec.ValidationError as error:
        name = getattr(body_type, "__name__", str(body_type))
        raise BodyError(f"the body is no {name}: {error}") from error


def decode_request(
    body: bytes | memoryview, body_type: type[BodyType], bytes_max: int = REQUEST_BYTES_MAX
) -> BodyType:
    """`decode_body` for what anybody may send: the longer it is, the less is forgiven. Raises BodyError."""
    if len(body) > bytes_max:
        raise BodyError(f"the body has {len(body)} bytes, at most {bytes_max} are allowed")
    if len(body) <= DIALECT_BYTES_MAX:
        return decode_body(body, body_type)
    try:
        return msgspec.json.decode(body, type=body_type, strict=False)
    except msgspec.ValidationError as error:  # JSON, as far as it was read
        refusal: Exception = error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _no_body(body, body_type, error) from error
    if bytes(body).count(b",") > FORGIVEN_COMMAS_MAX:
        raise _no_body(body, body_type, refusal)
    try:
        return msgspec.convert(_normalised(None, msgspec.json.decode(body)), body_type, strict=False)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _no_body(body, body_type, error) from error


def _no_body(body: bytes | memoryview, body_type: type[BodyType], error: Exception) -> BodyError:
    return BodyError(f"the body of {len(body)} bytes is no {body_type.__name__}: {error}")


def parse_loose_json(text: bytes | memoryview) -> Any:
    """Parse JSON or RocketMQ's dialect of it; raises BodyError.

    Integer and bare-word keys become strings, and a key that is an object becomes the compact JSON text of
    that object, with its keys sorted.
    """
    try:
        reader = _LooseReader(str(text, "utf-8"))
        value = reader.value(0)
        reader.end()
    except (UnicodeDecodeError, ValueError) as error:
        raise BodyError(f"the body is no JSON: {error}") from error
    return value


def encode_integer_keyed(mapping: Mapping[int, Any]) -> msgspec.Raw:
    """A map with bare integer keys, ``{0:"a",1:"b"}``, in key order, to be put into a struct's field."""
    items = [b"%d:%s" % (key, _encode(mapping[key])) for key in sorted(mapping)]
    return msgspec.Raw(b"{" + b",".join(items) + b"}")


def encode_object_keyed(mapping: Mapping[KeyType, Any]) -> msgspec.Raw:
    """A map keyed by structs, ``{{"queueId":0,...}:{...}}``, in the mapping's order, to be put into a
    struct's field.
    """
    table = ObjectKeyed()
    table.add(mapping)
    return table.encoded()


class ObjectKeyed:
    """`encode_object_keyed` of a map that is too long to be encoded at a stroke."""

    __slots__ = ("_pieces", "_separator")

    def __init__(self) -> None:
        self._pieces = Pieces(b"{")
        self._separator = b""

    def add(self, mapping: Mapping[Any, Any]) -> None:
        """Encodes some of it."""
        if mapping:
            text = b",".join([_encode(key) + b":" + _encode(value) for key, value in mapping.items()])
            self._pieces.write(self._separator, text)
            self._separator = b","

    def encoded(self) -> msgspec.Raw:
        """Ends the object, and returns it as one value; to be called once."""
        return msgspec.Raw(b"".join(self.ended().all()))

    def ended(self) -> Pieces:
        """Ends the object, and returns its pieces; to be called once."""
        self._pieces.write(b"}")
        return self._pieces


def decode_object_keyed(
    mapping: Mapping[str, BodyType], decode_key: Callable[[str], KeyType]
) -> dict[KeyType, BodyType]:
    """A map read by `decode_body` as ``dict[str, ...]`` with its keys made objects again; raises BodyError."""
    try:
        return {decode_key(key): value for key, value in mapping.items()}
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BodyError(f"a map key is not the object it should be: {error}") from error


def ascii_only(text: bytes) -> bytes:
    r"""JSON with every character outside ASCII as ``\uXXXX``, as the standard form of a route has it."""
    if text.isascii():
        return text
    # Outside ASCII there are only string contents, so replacing without parsing is safe.
    return re.sub(r"[^\x00-\x7f]", lambda match: json.dumps(match[0])[1:-1], text.decode()).encode()


def _normalised(key: str | None, value: Any) -> Any:
    """``value`` without nulls and with enum ordinals as names."""
    if isinstance(value, dict):
        return {name: _normalised(name, item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_normalised(None, item) for item in value]
    if type(value) is int and key in _ENUM_ORDINALS and 0 <= value < len(_ENUM_ORDINALS[key]):
        return _ENUM_ORDINALS[key][value]
    return value


_SPACE = re.compile(r"[ \t\r\n]*")
_SCALAR = re.compile(r"(-?[0-9]+)(\.[0-9]+)?([eE][-+]?[0-9]+)?|true|false|null")
_BARE_KEY = re.compile(r"-?[0-9A-Za-z_$]+")
_CONSTANTS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
_DIGITS_MAX = 40


class _LooseReader:
    """Recursive descent over the dialect; raises ValueError with the position."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise self._error(f"nested deeper than {DEPTH_MAX}")
        match self._peek():
            case "{":
                return self._object(depth)
            case "[":
                return self._array(depth)
            case '"':
                return self._string()
        return self._scalar()

    def end(self) -> None:
        if self._peek():
            raise self._error("something after the end")

    def _peek(self) -> str:
        """The next character that is not space, empty at the end."""
        space = _SPACE.match(self._text, self._at)
        assert space is not None
        self._at = space.end()
        return self._text[self._at : self._at + 1]

    def _object(self, depth: int) -> dict[str, Any]:
        self._at += 1
        result: dict[str, Any] = {}
        if self._peek() == "}":
            self._at += 1
            return result
        while True:
            key = self._key(depth)
            if self._peek() != ":":
                raise self._error("':' expected")
            self._at += 1
            result[key] = self.value(depth + 1)
            if self._more("}"):
                return result

    def _array(self, depth: int) -> list[Any]:
        self._at += 1
        result: list[Any] = []
        if self._peek() == "]":
            self._at += 1
            return result
        while True:
            result.append(self.value(depth + 1))
            if self._more("]"):
                return result

    def _more(self, closing: str) -> bool:
        """Step over a comma (False) or the closing bracket (True)."""
        found = self._peek()
        if found != "," and found != closing:
            raise self._error(f"',' or {closing!r} expected")
        self._at += 1
        return found == closing

    def _key(self, depth: int) -> str:
        match self._peek():
            case '"':
                return self._string()
            case "{":
                return json.dumps(
                    self.value(depth + 1), sort_keys=True, separators=(",", ":"), ensure_ascii=False
                )
        bare = _BARE_KEY.match(self._text, self._at)
        if bare is None:
            raise self._error("a key expected")
        self._at = bare.end()
        return bare[0]

    def _string(self) -> str:
        # Control characters are let through: some writers do not escape the separators of message properties.
        result: str
        result, self._at = scanstring(self._text, self._at + 1, False)
        if not result.isascii():
            result.encode()  # an escaped lone surrogate is no character and could never be sent on
        return result

    def _scalar(self) -> int | float | bool | None:
        found = _SCALAR.match(self._text, self._at)
        if found is None:
            raise self._error("a value expected")
        self._at = found.end()
        if found[0] in _CONSTANTS:
            return _CONSTANTS[found[0]]
        if len(found[0]) > _DIGITS_MAX:
            raise self._error("a number too long")
        number = float(found[0]) if found[2] or found[3] else int(found[0])
        if math.isinf(number):  # there is no JSON for it: it would be told as null
            raise self._error("a number too large")
        return number

    def _error(self, what: str) -> ValueError:
        return ValueError(f"{what} at character {self._at}")
