"""Messages made ready for the wire: checked, with their unique keys, as the parts of a send request.

Every broker refuses what is refused here; checked here, the sender hears of it at once and in the words of its own
call. All attempts of a send share the result, so they carry the same unique keys.
"""

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from broker.client.errors import MessageRejected, UsageError
from broker.client.message import Message
from broker.client.transport.identity import UniqueKeys
from broker.client.transport.runtime import Buffer, Runtime
from broker.remoting import property_names
from broker.remoting.codes import RequestCode
from broker.remoting.property_room import SENT_BYTES_MAX
from broker.state.topic_rules import RETRY_PREFIX
from log.errors import RecordError
from log.formats.batch import BatchColumns, encode_columns
from log.formats.record import SYS_FLAG_COMPRESSED

BODY_BYTES_MAX = 4 * 1024 * 1024
"""Size of the largest body, after compression; brokers have the same limit by default."""
PROPERTIES_BYTES_MAX = SENT_BYTES_MAX
_DESCRIBED_BYTES_MAX = PROPERTIES_BYTES_MAX - len("UNIQ_KEY\x01\x02") - 32
"""The rest of that beside the unique key, which has 32 characters."""
_BODY_TYPES = (bytes, bytearray, memoryview)
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
_OWN_PROPERTIES = (
    *(property_names.TAGS, property_names.KEYS, property_names.UNIQ_KEY),
    *(property_names.DELAY, property_names.TIMER_DELAY_MS, property_names.TIMER_DELIVER_MS),
)
_TIMER_SECONDS = property_names.TIMER_DELAY_SEC
"""This property has no field in `Message`, but may be given among the properties."""
SINGLE_CODE = int(RequestCode.SEND_MESSAGE_V2)
BATCH_CODE = int(RequestCode.SEND_BATCH_MESSAGE)


class Outgoing(msgspec.Struct, gc=False):
    """A send that is ready for the wire, whichever queue it goes to."""

    topic: str
    code: int
    body: Buffer
    properties: str
    sys_flag: int
    flag: int
    unique_keys: list[str]
    born_ms: int
    """The time at which it was made ready, by this client's clock, in milliseconds since 1970."""
    waits: bool = False
    """Tells that the message first waits in a topic of the broker's own; the offset in the response is one of that
    topic."""


class Preparer:
    """Makes messages ready; ``compress_above`` is the body size in bytes from which on they are compressed."""

    def __init__(self, runtime: Runtime, compress_above: int | None) -> None:
        self._wall_ms = runtime.wall_ms
        self._unique_keys = UniqueKeys(runtime)
        self._compress_above = compress_above
        self._checked_topics: dict[str, None] = {}

    def message(self, message: Message, unique_key: str | None = None) -> Outgoing:
        """Return one message, ready to be sent, with a new unique key or the one given. Raises MessageRejected."""
        topic = message.topic
        if topic not in self._checked_topics:
            self._check_topic(topic)
        body = message.body
        if type(body) is not bytes or not body:
            body = checked_body(body)
        born_ms = self._wall_ms()
        if unique_key is None:
            unique_key = self._unique_keys.next(born_ms)
        properties = f"UNIQ_KEY\x01{unique_key}\x02"
        waits = False
        is_delivered_later = message.is_delivered_later
        if is_delivered_later or message.tags is not None or message.keys or message.properties:
            properties += _described(message)
            waits = is_delivered_later or _TIMER_SECONDS in message.properties
        sys_flag = 0
        # As Java's producers do it (level 5); what does not become shorter goes as it is.
        if self._compress_above is not None and len(body) > self._compress_above:
            packed = zlib.compress(body, 5)
            if len(packed) < len(body):
                body, sys_flag = packed, SYS_FLAG_COMPRESSED
        if len(body) > BODY_BYTES_MAX:
            raise MessageRejected(f"a body of {len(body)} bytes, at most {BODY_BYTES_MAX} can be stored")
        return Outgoing(
            topic, SINGLE_CODE, body, properties, sys_flag, _flag(message), [unique_key], born_ms, waits
        )

    def batch(self, messages: Sequence[Message]) -> Outgoing:
        """Return messages of one topic, ready to be sent as one append.

        Raises MessageRejected, UsageError without messages.
        """
        if not messages:
            raise UsageError("a batch needs at least one message")
        topic = messages[0].topic
        if topic not in self._checked_topics:
            self._check_topic(topic)
        if topic.startswith(RETRY_PREFIX):
            raise MessageRejected("retry topics take no batches")
        born_ms = self._wall_ms()
        unique_keys = self._unique_keys.take(len(messages), born_ms)
        columns = BatchColumns([], [], [])
        # Messages of a batch mostly have the same properties, which are checked and written once then.
        alike = messages[0]
        described = _described(alike)
        for message, unique_key in zip(messages, unique_keys, strict=True):
            if message.topic != topic:
                raise MessageRejected(f"a batch goes to one topic: {topic!r} and {message.topic!r}")
            if message.is_delivered_later:
                raise MessageRejected("a batch cannot be delayed")
            if (
                message.tags != alike.tags
                or message.keys != alike.keys
                or message.properties != alike.properties
            ):
                alike, described = message, _described(message)
            body = message.body
            if type(body) is not bytes or not body:
                body = checked_body(body)
            columns.flags.append(_flag(message))
            columns.bodies.append(body)  # type: ignore[arg-type]
            columns.properties.append(f"UNIQ_KEY\x01{unique_key}\x02{described}".encode())
        try:
            packed = encode_columns(columns)
        except RecordError as error:
            raise MessageRejected(str(error)) from error
        if len(packed) > BODY_BYTES_MAX:
            raise MessageRejected(
                f"a batch of {len(packed)} bytes, at most {BODY_BYTES_MAX} can be stored at once"
            )
        # The envelope's own key: brokers that add missing keys must not add one to a batch as a whole.
        properties = f"UNIQ_KEY\x01{unique_keys[0]}\x02"
        return Outgoing(topic, BATCH_CODE, packed, properties, 0, 0, unique_keys, born_ms)

    def _check_topic(self, topic: str) -> None:
        check_name("topic", topic)
        self._checked_topics[topic] = None


def checked_body(body: object) -> Buffer:
    """Return a body as bytes. Raises MessageRejected for anything else, and for no bytes.

    Other types must not reach a connection: an error in its writer would take down the calls of others.
    """
    if type(body) is not bytes:
        if not isinstance(body, _BODY_TYPES):
            raise MessageRejected(f"a body is bytes, not {type(body).__name__}; text has encode()")
        if not isinstance(body, memoryview):
            body = bytes(body)  # whose length nobody changes until it is written
        elif body.nbytes != len(body) or not body.c_contiguous:
            body = body.tobytes()  # whose length counts bytes, and which sockets take
    if not body:
        raise MessageRejected("an empty body cannot be stored")
    return body


def _flag(message: Message) -> int:
    """Return the application's flag. Raises MessageRejected."""
    flag = message.flag
    if not isinstance(flag, int) or not -(1 << 31) <= flag < 1 << 31:
        raise MessageRejected(f"a flag is a whole number of 32 bits with a sign, not {flag!r}")
    return flag


def check_name(kind: str, name: str) -> None:
    """Check the name of a topic or group. Raises MessageRejected for one that no broker takes."""
    if not isinstance(name, str) or not _TOPIC.fullmatch(name):
        raise MessageRejected(
            f"{kind} {name!r}: 1 to 127 characters out of letters, digits and %|_- are allowed"
        )


def _keys(keys: str | Sequence[str]) -> str:
    """Return the keys as one text with spaces between them, which is how a text is taken. Raises MessageRejected."""
    if isinstance(keys, str):
        return keys
    if not isinstance(keys, Iterable):
        raise MessageRejected(f"keys are texts, and not of class {type(keys).__name__}")
    for key in keys:
        if not isinstance(key, str) or not key or " " in key:
            raise MessageRejected(f"key {key!r}: keys are texts without spaces, since a space ends a key")
    return " ".join(keys)


def check_properties(properties: object) -> None:
    """Check that names and values are text. Raises MessageRejected.

    Another type would be written in Python's own words, and a 0 be left out like an empty text.
    """
    if not isinstance(properties, dict | Mapping):
        raise MessageRejected(f"properties are a mapping, and not of class {type(properties).__name__}")
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise MessageRejected(f"property {name!r}: names and values are text, {value!r} is not")


def _described(message: Message) -> str:
    """Return the properties beside the unique key as a record has them: name, character 1, value, character 2.

    Raises MessageRejected.
    """
    text = ""
    count = 0
    if message.tags is not None:
        if not isinstance(message.tags, str):
            raise MessageRejected(f"tags {message.tags!r}: a tag is text")
        text = f"{text}TAGS\x01{message.tags}\x02"
        count += 1
    if message.keys:
        text = f"{text}KEYS\x01{_keys(message.keys)}\x02"
        count += 1
    if message.is_delivered_later:
        text += _delay(message)
        count += 1
    if message.properties:
        check_properties(message.properties)
        for name, value in message.properties.items():
            if not name or name in _OWN_PROPERTIES:
                raise MessageRejected(
                    f"property {name!r}: no name, or one with a field of its own in Message"
                )
            if value:
                text = f"{text}{name}\x01{value}\x02"
                count += 1
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise MessageRejected(
                f"tags, keys and properties must be text that UTF-8 has: {error}"
            ) from error
    # A separator inside a name or value would begin another property. Counting all of them finds that fastest.
    if text.count("\x01") + text.count("\x02") != 2 * count:
        raise MessageRejected("tags, keys and properties must not contain the characters 1 and 2")
    if len(text) > _DESCRIBED_BYTES_MAX // 3 and len(text.encode()) > _DESCRIBED_BYTES_MAX:
        raise MessageRejected(f"tags, keys and properties take more than {PROPERTIES_BYTES_MAX} bytes")
    return text


def _delay(message: Message) -> str:
    """Return the property of a message that is delivered later. Raises MessageRejected."""
    given = [
        (name, value)
        for name, value, is_given in (
            (property_names.DELAY, message.delay_level, bool(message.delay_level)),
            (property_names.TIMER_DELAY_MS, message.delay_ms, message.delay_ms is not None),
            (property_names.TIMER_DELIVER_MS, message.deliver_at_ms, message.deliver_at_ms is not None),
        )
        if is_given
    ]
    if len(given) > 1:
        raise MessageRejected("one of delay_level, delay_ms and deliver_at_ms at most can be given")
    ((name, value),) = given
    if type(value) is not int:
        raise MessageRejected(f"a delay, or a time of delivery, is a whole number, not {value!r}")
    if min(message.delay_level, message.delay_ms or 0) < 0:
        raise MessageRejected("a delay cannot be negative")
    return f"{name}\x01{value}\x02"
