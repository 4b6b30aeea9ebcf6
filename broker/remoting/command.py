"""RemotingCommand: one request or response, and its encoding in either header serialization.

Cost decides the shape. A send's header is decoded by msgspec straight into the command, its extFields left
as the raw JSON text; a processor then decodes that text once, into the typed header struct it needs
(`decode_fields`), so no dict of strings is ever built for it. The dict (`fields`) is made only for those
who ask. The binary serialization has the same two doors.

An encoded frame is a head (length, header) followed by the body; the head is encoded alone so that a body
made of slices of a mapping goes to the socket as it is.

The response to a command uses the command's own serialization, as clients other than Java's may know only one.
"""

import copy
import re
import struct
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from broker.remoting.binary_header import (
    BinaryHeader,
    decode_binary_fields,
    decode_binary_header,
    encode_binary_fields,
    encode_binary_header,
    has_more_binary_fields,
)
from broker.remoting.codes import FLAG_ONE_WAY, FLAG_RESPONSE, LanguageCode, Version
from broker.remoting.errors import FrameError, FrameErrorReason, HeaderFieldError

JSON = 0
"""serializeType of the JSON header."""
ROCKETMQ = 1
"""serializeType of the binary header."""

OWN_VERSION = int(Version.V4_9_8)
"""The version Trivet claims: the behaviour it follows, and at least 233 or clients refuse SQL filters."""
OWN_LANGUAGE = "JAVA"
"""The language in what Trivet's servers send: what every client has always read in a broker's responses."""

FRAME_SIZE_MAX = 16 * 1024 * 1024
"""The largest frame, its length field included."""

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

if TYPE_CHECKING:
    Body = bytes | memoryview
    Header = msgspec.Raw | bytes | Mapping[str, str] | msgspec.Struct | None
else:  # what msgspec may decode into the command's fields
    Body = Any
    Header = msgspec.Raw

HeaderType = TypeVar("HeaderType", bound=msgspec.Struct)


class RemotingCommand(msgspec.Struct, rename={"header": "extFields"}, gc=False):
    """One request or response.

    Read extFields through `fields` or `decode_fields`. ``header`` is where they come from: raw JSON or the
    binary map's bytes of a received command, or the dict or header struct that an outgoing one was made
    with. ``body`` is bytes or a memoryview of bytes (large bodies are not copied out of what was read).
    """

    code: Int32
    flag: Int32 = 0
    language: str | Int32 = OWN_LANGUAGE
    opaque: Int32 = 0
    version: Int32 = OWN_VERSION
    remark: str | None = None
    header: Header = None
    body: Body = b""
    serialization: int = JSON

    @property
    def is_response(self) -> bool:
        """Tells whether flag bit 0 is set; nothing else tells a response from a request."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_one_way(self) -> bool:
        """Tells whether the sender wants no response."""
        return bool(self.flag & FLAG_ONE_WAY)

    @property
    def language_code(self) -> LanguageCode:
        """The sender's language; OTHER when this version does not know it."""
        try:
            if isinstance(self.language, str):
                return LanguageCode[self.language]
            return LanguageCode(self.language)
        except (KeyError, ValueError):
            return LanguageCode.OTHER

    @property
    def fields(self) -> Mapping[str, str]:
        """extFields as strings; raises HeaderFieldError when the received ones are no map of scalars."""
        header = self.header
        if isinstance(header, dict):
            return header
        fields = _fields_of(header)
        self.header = fields
        return fields

    def decode_fields(self, header_type: type[HeaderType]) -> HeaderType:
        """extFields as a typed header: strings become ints and booleans, unknown fields are ignored.

        Raises HeaderFieldError: ``the custom field <x> is null`` for a mandatory field that is absent, and
        a text naming the field, the value and what is allowed for one that does not fit.
        """
        header = self.header
        if type(header) is msgspec.Raw:
            decoder = _decoders.get(header_type)
            if decoder is None:
                decoder = _decoders[header_type] = msgspec.json.Decoder(header_type, strict=False)
            try:
                return decoder.decode(header)  # type: ignore[no-any-return]
            except (msgspec.MsgspecError, ValueError, RecursionError):
                pass  # explained, or forgiven (a number where a string belongs), field by field below
        elif type(header) is header_type:
            return copy.copy(header)  # the reader may change it, and the command may yet be sent
        return _convert_fields(self.fields, header_type)


_decoders: dict[type[msgspec.Struct], Any] = {}
_decode_json_header = msgspec.json.Decoder(RemotingCommand).decode
# Not `Any`: lists, objects and long numbers, which no field may be, are refused where they begin instead of being made.
_decode_json_fields = msgspec.json.Decoder(dict[str, str | bool | Int64 | None]).decode
_encode_json = msgspec.json.Encoder().encode
_language_names = {code.value: code.name for code in LanguageCode}


def request(
    code: int,
    fields: Mapping[str, str] | msgspec.Struct | None = None,
    body: bytes | memoryview = b"",
    *,
    opaque: int = 0,
    one_way: bool = False,
    serialization: int = JSON,
    language: str = OWN_LANGUAGE,
    version: int = OWN_VERSION,
) -> RemotingCommand:
    """A request to send; the opaque is the sender's to choose, unique among its requests in flight."""
    return RemotingCommand(
        int(code),
        FLAG_ONE_WAY if one_way else 0,
        language,
        opaque,
        version,
        None,
        fields,
        body,
        serialization,
    )


def response(
    to: RemotingCommand,
    code: int,
    remark: str | None = None,
    fields: Mapping[str, str] | msgspec.Struct | None = None,
    body: bytes | memoryview = b"",
) -> RemotingCommand:
    """Makes the response to ``to``, with its opaque and its serialization."""
    return RemotingCommand(
        int(code),
        FLAG_RESPONSE,
        OWN_LANGUAGE,
        to.opaque,
        OWN_VERSION,
        remark,
        fields,
        body,
        to.serialization,
    )


def decode_command(serialization: int, header: bytes, body: bytes | memoryview) -> RemotingCommand:
    """A command from the parts of its frame; raises FrameError when the header cannot be read."""
    if serialization == JSON:
        try:
            command = _decode_json_header(header)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise FrameError(FrameErrorReason.BAD_JSON_HEADER, str(error)) from error
        # Set always: a hostile header may name these two, which are no keys of the wire's.
        command.body = body
        command.serialization = JSON
        return command
    if serialization == ROCKETMQ:
        code, language, version, opaque, flag, remark, field_bytes = decode_binary_header(header)
        return RemotingCommand(
            code,
            flag,
            _language_names.get(language, language),
            opaque,
            version,
            remark,
            field_bytes,
            body,
            ROCKETMQ,
        )
    raise FrameError(
        FrameErrorReason.UNKNOWN_SERIALIZE_TYPE, f"{serialization}, known are 0 JSON and 1 ROCKETMQ"
    )


def has_more_fields(command: RemotingCommand, count: int) -> bool:
    """Tells whether the extFields of a received command are more than so many, without making them.

    Lists, and the names within objects, count as well: no field may be such. Else they could be so deep that they are
    read where the command comes in, and not where it is handled or has waited, with more calls on Python's stack.
    """
    header = command.header
    if isinstance(header, msgspec.Raw):
        text = bytes(header)
        if len(text) <= _JSON_FIELD_BYTES_MIN * count or text.count(b":") + text.count(b"[") <= count:
            return False
        at = 0
        for _ in range(count + 1):
            found = _NEXT_NAME_OR_LIST.match(text, at)
            if found is None:
                return False
            at = found.end()
        return True
    return isinstance(header, bytes) and has_more_binary_fields(header, count)


_JSON_FIELD_BYTES_MIN = 5
"""The bytes of a field with neither name nor value to speak of: ``"":1,``."""
# Never gives back what it has taken, so that a hostile text takes no longer than any other: a string, closed or not.
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+\s*+'
_NEXT_NAME_OR_LIST = re.compile(
    rb'[^"\[]*+(?:' + _STRING + rb'(?!:)[^"\[]*+)*+(?:' + _STRING + rb":|\[)", re.DOTALL
)
"""Everything up to the colon behind the next name, or to the bracket that begins a list, in a JSON text."""


class _WireHeader(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """The JSON header in the order of the wire: alphabetical, nulls left out."""

    code: int
    extFields: Any = None  # noqa: N815 - the wire's name
    flag: int
    language: str
    opaque: int
    remark: str | None = None
    serializeTypeCurrentRPC: str = msgspec.field()  # noqa: N815 - the wire's name
    version: int


_RESPONSE_HEADER = (
    b'{"code":%%d,%%b"flag":%d,"language":"%b","opaque":%%d,%%b"serializeTypeCurrentRPC":"JSON","version":%d}'
    % (FLAG_RESPONSE, OWN_LANGUAGE.encode(), OWN_VERSION)
)
"""`_WireHeader` of a response with everything filled in that never differs: a third faster, once a message."""


def encode_head(command: RemotingCommand, body_length: int) -> bytes:
    """The frame up to its body, which the caller sends after it: ``body_length`` bytes in as many pieces
    as it likes.

    Raises ValueError for what cannot be carried: a frame over 16 MiB, in the binary header a code over 32767.
    """
    header, language = command.header, command.language
    if command.serialization == JSON:
        # Raw JSON (a received command sent on) is copied into the new header as it is.
        fields = header if type(header) is msgspec.Raw or header is None else _fields_of(header)
        encoded = _encode_json(
            _WireHeader(
                code=command.code,
                extFields=fields,
                flag=command.flag,
                language=language if isinstance(language, str) else _language_names.get(language, "OTHER"),
                opaque=command.opaque,
                remark=command.remark,
                serializeTypeCurrentRPC="JSON",
                version=command.version,
            )
        )
        return frame_head(JSON, encoded, body_length)
    assert command.serialization == ROCKETMQ, command.serialization
    if isinstance(language, str):
        language = LanguageCode[language] if language in LanguageCode.__members__ else LanguageCode.OTHER
    field_bytes = header if isinstance(header, bytes) else encode_binary_fields(_fields_of(header))
    encoded = encode_binary_header(
        BinaryHeader(
            command.code, language, command.version, command.opaque, command.flag, command.remark, field_bytes
        )
    )
    return frame_head(ROCKETMQ, encoded, body_length)


def encode_response_head(
    to: RemotingCommand,
    code: int,
    remark: str | None = None,
    fields: dict[str, str] | msgspec.Struct | None = None,
    body_length: int = 0,
) -> bytes:
    """`encode_head` of `response`, in JSON without the command between: the way of the send and pull processors.

    A dict of strings is encoded as it is, about twice as fast as a header struct.
    """
    if to.serialization == JSON:
        if fields is not None and type(fields) is not dict:
            fields = header_fields(fields)  # type: ignore[arg-type]
        header = _RESPONSE_HEADER % (
            code,
            b"" if fields is None else b'"extFields":%b,' % _encode_json(fields),
            to.opaque,
            b"" if remark is None else b'"remark":%b,' % _encode_json(remark),
        )
        return frame_head(JSON, header, body_length)
    return encode_head(response(to, code, remark, fields), body_length)


def encode(command: RemotingCommand) -> bytes:
    """The whole frame; raises ValueError as `encode_head` does."""
    body = command.body
    return b"".join((encode_head(command, len(body)), body))


def header_fields(header: msgspec.Struct) -> dict[str, str]:
    """A typed header as extFields: wire names, strings, nulls left out."""
    fields: dict[str, str] = {}
    for attribute, wire_name in zip(header.__struct_fields__, header.__struct_encode_fields__, strict=True):
        value = getattr(header, attribute)
        if value is None:
            continue
        if isinstance(value, str):
            fields[wire_name] = value
        elif isinstance(value, bool):
            fields[wire_name] = "true" if value else "false"
        else:
            assert isinstance(value, int), f"{wire_name}={value!r} is no header value"
            fields[wire_name] = str(int(value))
    return fields


_FRAME_START = struct.Struct(">II")


def frame_head(serialization: int, header: bytes, body_length: int) -> bytes:
    """The head of a frame with an encoded header. Raises ValueError for a frame over 16 MiB."""
    header_length = len(header)
    total_length = 4 + header_length + body_length
    if total_length + 4 > FRAME_SIZE_MAX:
        raise ValueError(f"a frame of {total_length + 4} bytes, at most {FRAME_SIZE_MAX} are allowed")
    return _FRAME_START.pack(total_length, serialization << 24 | header_length) + header


def _fields_of(header: Header) -> dict[str, str]:
    """Returns extFields, in whatever form they are, as a dict of strings. Raises HeaderFieldError if malformed."""
    if header is None:
        return {}
    if isinstance(header, msgspec.Raw):
        if bytes(header) == b"null":
            return {}
        try:
            values = _decode_json_fields(header)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise HeaderFieldError("extFields", f"extFields is not a map of strings: {error}") from error
        return {name: _field_text(value) for name, value in values.items() if value is not None}
    if isinstance(header, bytes):
        return decode_binary_fields(header)
    if isinstance(header, msgspec.Struct):
        return header_fields(header)
    return dict(header)


def _field_text(value: str | bool | int) -> str:
    """A value as the string that it should have been: some clients write numbers and booleans bare."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


@cache
def _described(header_type: type[HeaderType]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """The fields of a header, found out once: that takes a tenth of a millisecond and more."""
    return msgspec.structs.fields(header_type)


def _convert_fields(fields: Mapping[str, str], header_type: type[HeaderType]) -> HeaderType:
    """The typed header from strings, with the error that names the field if there is one."""
    try:
        return msgspec.convert(fields, header_type, strict=False)
    except msgspec.ValidationError as error:
        for field in _described(header_type):
            value = fields.get(field.encode_name)
            if value is None:
                if field.required:
                    raise HeaderFieldError.missing(field.encode_name) from error
                continue
            try:
                msgspec.convert(value, field.type, strict=False)
            except msgspec.ValidationError as field_error:
                shown = value if len(value) <= 100 else value[:100] + "..."
                raise HeaderFieldError(
                    field.encode_name, f"the custom field <{field.encode_name}> is {shown!r}: {field_error}"
                ) from error
        raise
