"""Batches: each item becomes a record of its own, with consecutive queue offsets; all of them are stored, or none.

`batch_columns` (log/formats/batch.py) cuts a batch into items, this module checks them, `BatchProperties` adds the
broker's properties, and `BatchAppends` makes the records.

A batch may have tens of thousands of messages. So it is worked on in slices of `StoreOptions.batch_messages`, one a
turn of the node. Pulls, heartbeats and consumer offsets go on between them; other messages wait, for the queue offsets
of a batch follow each other. And what is the same for all of them is found once, what most of them do not have is not
looked for in each.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from broker.node.ports import Appends
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import SendHeader
from broker.replica.proposals import BatchUnderWay, NewMessage
from broker.requests.connection import Connection
from broker.requests.deadline import Time
from broker.requests.errors import OverloadedError, RequestError
from broker.sending.batch_properties import BatchProperties
from broker.sending.properties import AddedProperties, SentProperties, count_keys
from broker.sending.responses import PendingSend
from broker.sending.shared import sent_message, too_long
from broker.settings.live import LiveSettings
from broker.statistics.stats import Stats
from log.errors import DiskFullError, EntryTooLargeError, RecordError
from log.formats.batch import ITEM_OVERHEAD, BatchColumns, batch_columns
from log.formats.message_id import offset_message_ids
from log.formats.properties import terminated
from log.formats.record import SMALLEST_RECORD_BYTES

GROWTH_MAX: Final = 4
"""The records of a batch may have so many times the bytes of the longest message: tiny messages of RocketMQ's clients
grow threefold.
"""
KEYS_MAX: Final = 50_000
"""Keys of all messages of a batch."""
_OFFSET_DIGITS: Final = 16
"""The hexadecimal digits of the physical offset at the end of a message id."""


@dataclass(eq=False)
class Batches:
    """Stores batches; the send processor has checked their topic and queue."""

    _leadership: Appends
    _settings: LiveSettings
    _added: AddedProperties
    _stats: Stats
    _time: Time
    _host: str
    """This node's address in hexadecimal digits, as message ids begin with it."""

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
            # From here on all other messages wait: the offsets of a batch follow each other.
            batch = self._leadership.batches.begin()
            try:
                messages = BatchColumns([], [], [])
                unique_keys: list[str] = []
                yield from self._make(body, header, envelope, messages, unique_keys)
                pending = PendingSend(
                    self._stats, connection, command, queue_id, ",".join(unique_keys), self._host
                )
                common = sent_message(header, connection, queue_id, b"", b"")
                yield from self._append(batch, common, messages, pending)
            except (RecordError, EntryTooLargeError) as error:
                raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
            finally:
                self._leadership.batches.end(batch)
        except (RequestError, OverloadedError, DiskFullError):
            self._stats.puts_failed += 1
            raise

    def _make(
        self,
        body: bytes,
        header: SendHeader,
        envelope: SentProperties,
        messages: BatchColumns,
        unique_keys: list[str],
    ) -> Iterator[None]:
        """Checks the items of a body, and adds them to `messages` as they are to be stored.

        `unique_keys` gets one text per stored part: its messages' keys, joined by commas.

        Every message is stored with the envelope's properties, so that a short request could ask for gigabytes. Raises
        `RequestError` for records that would be too long together or have too many keys, as `check_properties`, and
        `RecordError` for a body that is not a batch.
        """
        # From counts alone, before anything is made: the bytes of the body, and for each message what a record has more
        # than an item.
        shared = terminated((header.properties or "").encode())
        beside = SMALLEST_RECORD_BYTES + len(header.topic) + len(shared) + self._added.bytes
        size_max = GROWTH_MAX * self._settings.current.storage.max_message_bytes
        made = BatchProperties(self._settings, self._added, self._time.group_ms, header, envelope)
        part_messages = self._leadership.store.options.batch_messages
        spaces = counted = keys = 0
        for part in batch_columns(body, part_messages):
            if messages.flags:
                yield
            count = len(messages.flags) + len(part.flags)
            size = len(body) + count * (beside - ITEM_OVERHEAD)
            if size > size_max:
                raise RequestError(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the first {count} messages of the batch have {size} bytes as they are stored, each with the "
                    f"properties that all share, at most {size_max} are allowed",
                )
            properties, keys_of_part = made.complete(part.properties)
            messages.extend(part._replace(properties=properties))
            unique_keys.append(keys_of_part)
            # Keys are separated by spaces, of which most batches have few: then there is nothing to count.
            spaces += b"".join(properties).count(b" ")
            if spaces <= KEYS_MAX:
                continue
            while counted < count:
                keys += sum(map(count_keys, messages.properties[counted : counted + part_messages]))
                counted = min(counted + part_messages, count)
                if keys > KEYS_MAX:
                    raise RequestError(
                        ResponseCode.MESSAGE_ILLEGAL,
                        f"the messages of the batch have {keys} keys together, at most {KEYS_MAX} are allowed",
                    )
                if counted < count:
                    yield

    def _append(
        self, batch: BatchUnderWay, common: NewMessage, messages: BatchColumns, pending: PendingSend
    ) -> Iterator[None]:
        """Appends the messages, and notes where they are for the response. Raises as `BatchAppends.append`."""
        host, left = self._host, len(messages.flags)
        message_ids: list[str] = []
        for first_offset, offsets in self._leadership.batches.append(batch, common, messages, pending):
            # The producer is told one offset, that of the first: the others follow it without a gap.
            if not message_ids:
                pending.queue_offset = first_offset
            message_ids.append(offset_message_ids(bytes.fromhex(host), offsets))
            self._stats.put += len(offsets)
            left -= len(offsets)
            if left:
                yield
            else:
                # The response is encoded with the last offset, as that of a single message.
                pending.host = ",".join(message_ids)[:-_OFFSET_DIGITS]
                pending.physical_offset = int(offsets[-1])
