"""The properties of a send: looked through once, checked, and completed for the record.

Nearly every message is plain: neither delayed nor timed nor half. Searches in the text of its properties show that, at
a tenth of the cost of a table of them; and CPython searches a `str` five times as fast as `bytes`. So the properties
stay the text that the request brought until they are complete, and only those of other messages are taken apart.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec

from broker.remoting.codes import ResponseCode
from broker.remoting.property_room import SENT_BYTES_MAX
from broker.requests.errors import RequestError
from broker.state.topic_rules import CONSUMER_GROUP_PREFIXES
from log.formats.properties import (
    DELAY,
    HALF_MESSAGE,
    KEYS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    properties_by_name,
)
from log.formats.record import MAX_PROPERTIES_BYTES

KEYS_MAX: Final = 1_000
"""Keys of one message. Each is an entry of every node's index: a message of nothing else took them 50 ms."""

SHORT_CHARACTERS: Final = 2 * KEYS_MAX
"""Shorter properties need no `check_properties`: a key takes two characters, a character four bytes at most."""
assert 4 * SHORT_CHARACTERS <= SENT_BYTES_MAX

_SENT_ON: Final = CONSUMER_GROUP_PREFIXES
"""To these topics consumers send messages that they could not send back, with what brokers and they have added."""

_MARKS: Final = ("DEL", "TRAN_MSG")
"""Each property that makes a message another than a plain one has one of these in its name."""
assert all(
    any(mark in name.decode() for mark in _MARKS)
    for name in (DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, HALF_MESSAGE)
)

_WAIT: Final = "WAIT\x01true\x02"
_POP_RECEIPT: Final = "POP_CK\x01"
_UNIQUE_KEY: Final = "UNIQ_KEY\x01"

_REMEMBERED_CHARACTERS: Final = 256
"""No more is remembered of what stands around a UNIQ_KEY: nobody's long properties take memory for good."""


class SentProperties(msgspec.Struct, gc=False):
    """The properties of a message, as far as the send path asks for them."""

    text: str
    """All as they were sent, each with its separator; those for the broker alone are left out."""
    unique_key: str | None
    """The UNIQ_KEY, None without one. Of several the last counts, and an empty one does not, as for readers of the
    record."""
    is_plain: bool
    """The message is neither delayed nor timed nor half. False says only that it may be."""
    _by_name: Mapping[bytes, bytes] | None = None

    def by_name(self) -> Mapping[bytes, bytes]:
        """Returns all properties, by their names; they are taken apart by the first who asks."""
        if self._by_name is None:
            self._by_name = properties_by_name(self.text.encode("utf-8", "surrogateescape"))
        return self._by_name


_NONE: Final = SentProperties("", None, True)


def read_properties(text: str | None) -> SentProperties:
    """Looks through the property string of a request, or of an item of a batch.

    Of one producer's messages mostly nothing differs but the UNIQ_KEY: what stands around it is looked through once.
    """
    if not text:
        return _NONE
    if text[-1] != "\x02":
        text += "\x02"  # which older clients leave out
    before, found, rest = text.rpartition(_UNIQUE_KEY)
    # Only at the beginning of an entry: another property's name may end in the same letters.
    if found and (not before or before[-1] == "\x02"):
        unique_key, _, after = rest.partition("\x02")
        if unique_key:
            look_through = _around if len(before) + len(after) <= _REMEMBERED_CHARACTERS else _look_through
            before, after, is_plain = look_through(before, after)
            return SentProperties(f"{before}{_UNIQUE_KEY}{unique_key}\x02{after}", unique_key, is_plain)
    text, _, is_plain = _look_through(text, "")
    if found:
        # The last one is empty, or a part of something else: an earlier one may count.
        key = properties_by_name(text.encode("utf-8", "surrogateescape")).get(UNIQ_KEY)
        return SentProperties(text, None if key is None else key.decode("utf-8", "surrogateescape"), is_plain)
    return SentProperties(text, None, is_plain)


def _look_through(before: str, after: str) -> tuple[str, str, bool]:
    """Returns the entries before and behind the UNIQ_KEY as they are stored, and whether a plain message has them."""
    before, after = _stored(before), _stored(after)
    return before, after, not any(mark in before or mark in after for mark in _MARKS)


_around = lru_cache(maxsize=1024)(_look_through)


def _stored(text: str) -> str:
    """Leaves out what is for the broker alone: POP_CK is never a producer's, WAIT=true says when to answer."""
    if _POP_RECEIPT in text:
        entries = text.split("\x02")
        text = "".join([entry + "\x02" for entry in entries if entry and not entry.startswith(_POP_RECEIPT)])
    if _WAIT in text:
        if text.startswith(_WAIT):
            text = text[len(_WAIT) :]
        # With the separator before it: another property's name may end in WAIT.
        text = text.replace("\x02" + _WAIT, "\x02")
    return text


def check_properties(text: str, topic: str) -> None:
    """Raises `RequestError` for more bytes of properties than may be sent to the topic, and for more keys."""
    raw = text.encode("utf-8", "surrogateescape")
    bytes_max = MAX_PROPERTIES_BYTES if topic.startswith(_SENT_ON) else SENT_BYTES_MAX
    if len(raw) > bytes_max:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message properties have {len(raw)} bytes, at most {bytes_max} are allowed",
        )
    keys = count_keys(raw)
    if keys > KEYS_MAX:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL, f"the message has {keys} keys, at most {KEYS_MAX} are allowed"
        )


def count_keys(raw: bytes) -> int:
    """The number of keys that the index would get of a message with these properties."""
    return sum(map(bool, properties_by_name(raw).get(KEYS, b"").split(b" ")))


class AddedProperties:
    """The properties that the broker adds to each message: region, trace switch, cluster, and a key if it has none."""

    __slots__ = ("_key_prefix", "_keys_made", "_text", "bytes")

    def __init__(self, cluster: str, store_host: bytes) -> None:
        """`store_host` is this node's address, packed as in a record."""
        self._text = f"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01{cluster}\x02"
        self.bytes = len(self._text.encode())
        """The length of what every message gets."""
        self._key_prefix = store_host[:-4].hex().upper() + store_host[-2:].hex().upper()
        self._keys_made = 0

    def add_to(self, text: str, unique_key: str | None, group_ms: int) -> tuple[str, str]:
        """The properties as they are stored, and the message's UNIQ_KEY."""
        if unique_key is None:
            unique_key = self._next_unique_key(group_ms)
            text = f"{text}{_UNIQUE_KEY}{unique_key}\x02"
        return text + self._text, unique_key

    def _next_unique_key(self, group_ms: int) -> str:
        """A key for a message whose client made none: unique by this node's address, its clock and a counter."""
        self._keys_made = (self._keys_made + 1) & 0xFFFF_FFFF
        return f"{self._key_prefix}{group_ms & 0xFFFF_FFFF_FFFF:012X}{self._keys_made:08X}"
