"""Batches: each item becomes a record of its own, with consecutive queue offsets; all of them are stored, or none.

`parse_batch` (log/batch.py) cuts a batch into items, this module checks them and adds the broker's properties, and
`Replica.append_batch` makes the records.

A batch may have tens of thousands of messages, and everybody else waits meanwhile. So what is the same for all of them
is found once, and what most of them do not have is not looked for in each.
"""

from collections.abc import Sequence
from typing import Final

from broker.delayed.delays import delay_level
from broker.delayed.timers import due_ms_of
from broker.node.ports import Appends
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import SendHeader
from broker.requests.connection import Connection
from broker.requests.deadline import Time
from broker.requests.errors import RequestError
from broker.sending.properties import (
    SHORT_CHARACTERS,
    AddedProperties,
    SentProperties,
    check_properties,
    count_keys,
    read_properties,
)
from broker.sending.responses import PendingSend
from broker.sending.shared import sent_message, too_long
from broker.settings.live import LiveSettings
from broker.statistics.stats import Stats
from broker.transactions.sending import check_no_half
from log.batch import ITEM_OVERHEAD, BatchItem, parse_batch
from log.errors import EntryTooLargeError, RecordError
from log.properties import UNIQ_KEY, terminated, without_properties
from log.record import SMALLEST_RECORD_BYTES

GROWTH_MAX: Final = 4
"""The records of a batch may have so many times the bytes of the longest message: tiny messages of RocketMQ's clients
grow threefold.
"""
KEYS_MAX: Final = 50_000
"""Keys of all messages of a batch."""


class Batches:
    """Stores batches; the send processor has checked their topic and queue."""

    def __init__(
        self,
        appends: Appends,
        settings: LiveSettings,
        added: AddedProperties,
        stats: Stats,
        time: Time,
        host: str,
    ) -> None:
        """`host` is this node's address in hexadecimal digits, as message ids begin with it."""
        self._appends = appends
        self._settings = settings
        self._added = added
        self._stats = stats
        self._time = time
        self._host = host
        self._delay_levels = len(settings.current.broker.delay_level_ms)

    def append(
        self,
        connection: Connection,
        command: RemotingCommand,
        header: SendHeader,
        envelope: SentProperties,
        queue_id: int,
    ) -> None:
        """Appends all messages of a batch; the response comes with the commit of the last.

        `envelope` are the properties in the request's header, which each message gets. Raises `RequestError`,
        `OverloadedError`, `NotServingError` and `DiskFullError`, with nothing appended.
        """
        body, body_bytes_max = bytes(command.body), self._settings.current.storage.max_message_bytes
        if len(body) > body_bytes_max:
            raise too_long(len(body), body_bytes_max)
        items = items_of(body)
        self._check_size(body, items, header)
        # Asked before the messages are made, which is the work: a busy leader refuses at once.
        self._appends.check_may_append(len(items))
        messages, unique_keys = self._messages(items, header, envelope)
        pending = PendingSend(self._stats, connection, command, queue_id, ",".join(unique_keys))
        common = sent_message(header, connection, queue_id, b"", b"")
        try:
            offsets, pending.queue_offset = self._appends.append_batch(common, messages, pending)
        except (RecordError, EntryTooLargeError) as error:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        host = self._host
        pending.message_ids = ",".join(["%s%016X" % (host, offset) for offset in offsets])  # noqa: UP031
        self._stats.put += len(items)

    def _check_size(self, body: bytes, items: Sequence[BatchItem], header: SendHeader) -> None:
        """Raises `RequestError` for a batch whose records together would be too long, or have too many keys.

        Every message is stored with the envelope's properties, so that a short request could ask for gigabytes.
        """
        shared = terminated((header.properties or "").encode())
        beside = SMALLEST_RECORD_BYTES + len(header.topic) + len(shared) + self._added.bytes
        size = len(body) + len(items) * (beside - ITEM_OVERHEAD)
        size_max = GROWTH_MAX * self._settings.current.storage.max_message_bytes
        if size > size_max:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the {len(items)} messages of the batch have {size} bytes as they are stored, each with the "
                f"properties that all share, at most {size_max} are allowed",
            )
        # Keys are separated by spaces. To count those of whole bodies is quicker than to look at each item.
        spaces = len(items) * shared.count(b" ")
        if spaces + body.count(b" ") <= KEYS_MAX:
            return
        if spaces + sum([item.properties.count(b" ") for item in items]) <= KEYS_MAX:
            return
        keys = sum([count_keys(terminated(item.properties) + shared) for item in items])
        if keys > KEYS_MAX:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the messages of the batch have {keys} keys together, at most {KEYS_MAX} are allowed",
            )

    def _messages(
        self, items: Sequence[BatchItem], header: SendHeader, envelope: SentProperties
    ) -> tuple[list[tuple[int, bytes, bytes]], list[str]]:
        """Flag, body and properties of each message as it is stored, and the unique keys of all.

        Raises `RequestError` for properties that are too long, and for a message that is to be delivered later.
        """
        wall_ms, add_to = self._time.wall_ms, self._added.add_to
        shared = header.properties or ""
        # The envelope's key belongs to the batch as a whole: on the items it would outdo their own.
        keyless = without_properties(envelope.text.encode(), UNIQ_KEY).decode()
        messages: list[tuple[int, bytes, bytes]] = []
        unique_keys: list[str] = []
        for flag, body, properties in items:
            # What is no UTF-8 is stored as it is.
            item_text = str(properties, "utf-8", "surrogateescape")
            own = read_properties(item_text)
            if len(item_text) + len(shared) >= SHORT_CHARACTERS:
                separator = "" if item_text[-1:] in ("", "\x02") else "\x02"
                check_properties(item_text + separator + shared, header.topic)
            if own.unique_key is None:
                text, unique_key = add_to(own.text + envelope.text, envelope.unique_key, wall_ms)
            else:
                text, unique_key = add_to(own.text + keyless, own.unique_key, wall_ms)
            if not (own.is_plain and envelope.is_plain):
                self._check_plain(SentProperties(text, unique_key, False))
            messages.append((flag, body, text.encode("utf-8", "surrogateescape")))
            unique_keys.append(unique_key if unique_key.isascii() else _readable(unique_key))
        return messages, unique_keys

    def _check_plain(self, properties: SentProperties) -> None:
        """Raises `RequestError` for a half message, and for one that is to be delivered later: a batch has neither."""
        broker = self._settings.current.broker
        values = properties.by_name()
        check_no_half(values)
        if delay_level(values, self._delay_levels) or due_ms_of(
            values, self._time.wall_ms, broker.timer_max_delay_s * 1000
        ):
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "the messages of a batch cannot be delayed")


def items_of(body: bytes | memoryview) -> list[BatchItem]:
    """The items of a batch. Raises `RequestError` for a body that is none."""
    try:
        return parse_batch(body)
    except RecordError as error:
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error


def _readable(unique_key: str) -> str:
    """A key with U+FFFD for what is no UTF-8, as a Java client would read it."""
    return unique_key.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
