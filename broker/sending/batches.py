"""Batches: each item becomes a record of its own, with consecutive queue offsets; all of them are stored, or none.

`batch_items` (log/batch.py) cuts a batch into items, this module checks them and adds the broker's properties, and
`Replica.append_batch` makes the records.

A batch may have tens of thousands of messages. So it is worked on in slices of `StoreOptions.batch_messages`, one a
turn of the node. Pulls, heartbeats and consumer offsets go on between them; other messages wait, for the queue offsets
of a batch follow each other. And what is the same for all of them is found once, what most of them do not have is not
looked for in each.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from broker.delayed.delays import delay_level
from broker.delayed.timers import due_ms_of
from broker.node.ports import Appends
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import SendHeader
from broker.replica.proposals import BatchUnderWay, NewMessage
from broker.requests.connection import Connection
from broker.requests.deadline import Time
from broker.requests.errors import OverloadedError, RequestError
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
from log.batch import ITEM_OVERHEAD, BatchItem, batch_items, parse_batch
from log.errors import DiskFullError, EntryTooLargeError, RecordError
from log.properties import UNIQ_KEY, terminated, without_properties
from log.record import MAX_PROPERTIES_BYTES, SMALLEST_RECORD_BYTES

GROWTH_MAX: Final = 4
"""The records of a batch may have so many times the bytes of the longest message: tiny messages of RocketMQ's clients
grow threefold.
"""
KEYS_MAX: Final = 50_000
"""Keys of all messages of a batch."""


_Message = tuple[int, bytes, bytes]
"""Flag, body and properties of a message as it is stored."""


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
    ) -> Iterator[None]:
        """Appends all messages of a batch, in steps; the response comes with the commit of the last.

        First all are checked and made, then all are appended: what is wrong with one is known before the first of them
        is in the log. `envelope` are the properties in the request's header, which each message gets. Raises
        `RequestError`, `OverloadedError`, `NotServingError` and `DiskFullError`, with nothing appended.
        """
        try:
            body, body_bytes_max = bytes(command.body), self._settings.current.storage.max_message_bytes
            if len(body) > body_bytes_max:
                raise too_long(len(body), body_bytes_max)
            batch = self._appends.begin_batch()
            try:
                messages: list[_Message] = []
                unique_keys: list[str] = []
                yield from self._make(body, header, envelope, messages, unique_keys)
                pending = PendingSend(self._stats, connection, command, queue_id, ",".join(unique_keys))
                common = sent_message(header, connection, queue_id, b"", b"")
                yield from self._append(batch, common, messages, pending)
            except (RecordError, EntryTooLargeError) as error:
                raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
            finally:
                self._appends.end_batch(batch)
        except (RequestError, OverloadedError, DiskFullError):
            self._stats.puts_failed += 1
            raise

    def _make(
        self,
        body: bytes,
        header: SendHeader,
        envelope: SentProperties,
        messages: list[_Message],
        unique_keys: list[str],
    ) -> Iterator[None]:
        """Checks the items of a body, and makes the messages of them as they are stored, and the unique keys of all.

        Raises `RequestError` for records that would be too long together or have too many keys, as
        `_check_properties`, and `RecordError` for a body that is no batch.

        Every message is stored with the envelope's properties, so that a short request could ask for gigabytes.
        """
        shared = terminated((header.properties or "").encode())
        beside = SMALLEST_RECORD_BYTES + len(header.topic) + len(shared) + self._added.bytes
        size_max = GROWTH_MAX * self._settings.current.storage.max_message_bytes
        # The envelope's key belongs to the batch as a whole: on the items it would outdo their own.
        keyless = without_properties(envelope.text.encode(), UNIQ_KEY).decode()
        # Keys are separated by spaces, of which most batches have few: then there is nothing to count.
        counts_keys = b" " in shared or body.count(b" ") > KEYS_MAX
        spaces = keys = 0
        items = batch_items(body)
        while part := list(islice(items, self._appends.store.options.batch_messages)):
            if messages:
                yield
            count = len(messages) + len(part)
            size = len(body) + count * (beside - ITEM_OVERHEAD)
            if size > size_max:
                raise RequestError(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the first {count} messages of the batch have {size} bytes as they are stored, each with the "
                    f"properties that all share, at most {size_max} are allowed",
                )
            if counts_keys:
                spaces += sum([item.properties.count(b" ") for item in part]) + len(part) * shared.count(b" ")
                keys += sum([count_keys(terminated(item.properties) + shared) for item in part])
                if min(spaces, keys) > KEYS_MAX:
                    raise RequestError(
                        ResponseCode.MESSAGE_ILLEGAL,
                        f"the messages of the batch have {keys} keys together, at most {KEYS_MAX} are allowed",
                    )
            self._make_part(part, header, envelope, keyless, messages, unique_keys)

    def _make_part(
        self,
        items: Sequence[BatchItem],
        header: SendHeader,
        envelope: SentProperties,
        keyless: str,
        messages: list[_Message],
        unique_keys: list[str],
    ) -> None:
        """Raises `RequestError` for properties that are too long, and for a message that is to be delivered later."""
        wall_ms, add_to = self._time.wall_ms, self._added.add_to
        shared = header.properties or ""
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
            stored = text.encode("utf-8", "surrogateescape")
            if len(stored) > MAX_PROPERTIES_BYTES:
                raise RequestError(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the properties of a message of the batch have {len(stored)} bytes as they are stored, at most "
                    f"{MAX_PROPERTIES_BYTES} are allowed",
                )
            messages.append((flag, body, stored))
            unique_keys.append(unique_key if unique_key.isascii() else _readable(unique_key))

    def _append(
        self, batch: BatchUnderWay, common: NewMessage, messages: Sequence[_Message], pending: PendingSend
    ) -> Iterator[None]:
        """Appends the messages, and notes where they are for the response. Raises as `Replica.append_batch`."""
        host, left = self._host, len(messages)
        message_ids: list[str] = []
        for first_offset, offsets in self._appends.append_batch(batch, common, messages, pending):
            if not message_ids:
                pending.queue_offset = first_offset
            message_ids.append(",".join(["%s%016X" % (host, offset) for offset in offsets]))  # noqa: UP031
            self._stats.put += len(offsets)
            left -= len(offsets)
            if left:
                yield
            else:
                pending.message_ids = ",".join(message_ids)

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
