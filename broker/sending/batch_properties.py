"""The properties of a batch's messages: checked, and completed for their records.

Nearly always the messages of a batch have properties of the same names and lengths: one of them is looked through then,
and what is stored of it, and added, is taken for all of them at once.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from broker.delayed.delays import delay_level
from broker.delayed.timers import due_ms_of
from broker.remoting.codes import ResponseCode
from broker.remoting.headers import SendHeader
from broker.requests.errors import RequestError
from broker.sending.properties import (
    SHORT_CHARACTERS,
    AddedProperties,
    SentProperties,
    check_properties,
    read_properties,
)
from broker.settings.live import LiveSettings
from broker.transactions.incoming_halves import check_no_half
from log.formats.columns import RUN_FROM, pieces
from log.formats.properties import UNIQ_KEY, WAIT, without_properties
from log.formats.property_columns import property_columns
from log.formats.record import MAX_PROPERTIES_BYTES

_POP_RECEIPT: Final = b"POP_CK"
_NOT_ASCII: Final = 0x80


class BatchProperties:
    """Completes the properties of one batch's messages."""

    def __init__(
        self,
        settings: LiveSettings,
        added: AddedProperties,
        group_ms: int,
        header: SendHeader,
        envelope: SentProperties,
    ) -> None:
        """`envelope` are the properties in the request's header, which each message gets."""
        self._settings = settings
        self._added = added
        self._group_ms = group_ms
        self._topic = header.topic
        self._shared = header.properties or ""
        self._envelope = envelope
        # The envelope's key belongs to the batch as a whole: on the items it would outdo their own.
        self._keyless = without_properties(envelope.text.encode(), UNIQ_KEY).decode()

    def complete(self, properties: Sequence[bytes]) -> tuple[list[bytes], str]:
        """Returns the properties of messages as they are stored, and their unique keys, joined by commas.

        Raises `RequestError` for properties that are too long, and for a message that is to be delivered later.
        """
        made = self._make_alike(properties) if len(properties) >= RUN_FROM else None
        return made if made is not None else self._make_each(properties)

    def _make_alike(self, properties: Sequence[bytes]) -> tuple[list[bytes], str] | None:
        """Does as `complete` for plain properties that differ in values only; None for others."""
        columns = property_columns(properties)
        # What may have to wait is judged one by one, and messages without a key are each given one of their own.
        if columns is None or not self._envelope.is_plain or UNIQ_KEY not in columns.values:
            return None
        first, rows, values = columns.first, columns.rows, columns.values
        keys = rows[:, values[UNIQ_KEY]]
        # Long ones are to be measured and their keys counted; a key that is not ASCII is told otherwise than it is
        # stored.
        if len(first) + len(self._shared) >= SHORT_CHARACTERS or (keys >= _NOT_ASCII).any():
            return None
        own = read_properties(str(first, "utf-8", "surrogateescape"))
        # WAIT=true is left out and any other value is stored: where messages differ in it, so does what is stored of
        # them.
        if not own.is_plain or columns.differ_in(WAIT) or columns.differ_in(_POP_RECEIPT):
            return None
        # Those for the broker alone are not stored, as `read_properties` says.
        stays = np.ones(len(first), np.bool_)
        for name, value in values.items():
            if name == _POP_RECEIPT or (name == WAIT and first[value] == b"true"):
                stays[value.start - len(name) - 1 : value.stop + 1] = False
        # What is added behind a message's own properties is the same for all, and is learnt from the first.
        (stored,), unique_key = self._make_each(properties[:1])
        kept = rows[:, stays]
        width = kept.shape[1]
        assert stored[:width] == kept[0].tobytes(), "the first is stored like the others"
        added = np.frombuffer(stored[width:], np.uint8)
        whole = np.concatenate((kept, np.broadcast_to(added, (len(kept), len(added)))), axis=1)
        named = np.full((len(keys), keys.shape[1] + 1), ord(","), np.uint8)
        named[:, :-1] = keys
        assert named[0, :-1].tobytes().decode() == unique_key, "the first is named like the others"
        begins = np.arange(0, whole.size, whole.shape[1])
        return pieces(whole.tobytes(), begins, begins + whole.shape[1]), named.tobytes()[:-1].decode()

    def _make_each(self, properties_of_all: Sequence[bytes]) -> tuple[list[bytes], str]:
        """Does as `complete`, one by one."""
        made: list[bytes] = []
        unique_keys: list[str] = []
        envelope, keyless = self._envelope, self._keyless
        group_ms, add_to = self._group_ms, self._added.add_to
        shared = self._shared
        for properties in properties_of_all:
            # What is no UTF-8 is stored as it is.
            item_text = str(properties, "utf-8", "surrogateescape")
            own = read_properties(item_text)
            if len(item_text) + len(shared) >= SHORT_CHARACTERS:
                # Own and shared ones are stored together, so it is together that they must not be too long.
                separator = "" if item_text[-1:] in ("", "\x02") else "\x02"
                check_properties(item_text + separator + shared, self._topic)
            if own.unique_key is None:
                text, unique_key = add_to(own.text + envelope.text, envelope.unique_key, group_ms)
            else:
                text, unique_key = add_to(own.text + keyless, own.unique_key, group_ms)
            if not (own.is_plain and envelope.is_plain):
                # RocketMQ's client refuses delayed messages in a batch itself (MessageBatch).
                self._check_plain(SentProperties(text, unique_key, False))
            stored = text.encode("utf-8", "surrogateescape")
            if len(stored) > MAX_PROPERTIES_BYTES:
                raise RequestError(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the properties of a message of the batch have {len(stored)} bytes as they are stored, at most "
                    f"{MAX_PROPERTIES_BYTES} are allowed",
                )
            made.append(stored)
            unique_keys.append(unique_key if unique_key.isascii() else _readable(unique_key))
        return made, ",".join(unique_keys)

    def _check_plain(self, properties: SentProperties) -> None:
        """Raises `RequestError` for a half message, and for one that is to be delivered later: a batch has neither."""
        broker = self._settings.current.broker
        values = properties.by_name()
        check_no_half(values)
        if delay_level(values, len(broker.delay_level_ms)) or due_ms_of(
            values, self._group_ms, broker.timer_max_delay_s * 1000
        ):
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "the messages of a batch cannot be delayed")


def _readable(unique_key: str) -> str:
    """A key with U+FFFD for what is no UTF-8, as a Java client would read it."""
    return unique_key.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
