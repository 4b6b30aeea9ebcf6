"""Messages by id and by key, as RocketMQ's `QueryMessageProcessor` answers them.

A message id names the node that gave it, and leads to its message whatever that node is now: any node answers with what
it holds and knows to be committed, and "no such message" is said by the leader alone, once it knows that it leads.
Which messages have a key is asked of the leader, since a follower may not have the newest.
"""

from collections.abc import Iterable
from typing import Final

from broker.node.ports import Requests, State
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, encode_response_head
from broker.remoting.headers import QueryMessageHeader, ViewMessageHeader
from broker.requests.connection import Connection
from broker.requests.errors import RequestError
from broker.requests.processing import HandledOn, Route
from broker.state.topic_rules import INTERNAL_TOPIC
from log.entries.entry_reads import index_at, record_at
from log.errors import OutOfRangeError, RecordError
from log.formats.layout import HEADER_BYTES
from log.formats.properties import KEYS, REAL_TOPIC, RETRY_TOPIC, UNIQ_KEY, get_property
from log.formats.record import peek
from log.index.index_file import StepBudget

QUERY_COUNT_MAX: Final = 64
UNIQUE_KEY_QUERY_COUNT: Final = 32
RESPONSE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Newest first, as many as fit; the first whatever its size."""

QUERY_STEPS_MAX: Final = 100_000
"""Entries of the index that one query looks at, some hundredths of a second: all messages with one key are one chain,
newest first, and those of an hour long ago lie behind all that came since.
"""

_INTERNAL_TOPIC: Final = INTERNAL_TOPIC.encode()


def committed_record(state: State, physical_offset: int) -> memoryview | None:
    """The committed message record that begins at an offset of this node's log; None where there is none, or before the
    group's head.

    The offset may be anything: it comes from a client.
    """
    log = state.store.log
    if physical_offset < state.store.head_position:
        return None
    try:
        record = record_at(log, physical_offset)
        # What is behind may be cut off again.
        if index_at(log, physical_offset - HEADER_BYTES) > state.applied_index:
            return None
        head = peek(record)
    except (OutOfRangeError, RecordError):
        return None
    # The group's own records are stored like messages, and are none.
    if record[head.topic_begin : head.topic_end] == _INTERNAL_TOPIC:
        return None
    return record


def topics_of(record: memoryview) -> tuple[str, ...]:
    """The topics that a stored message may be asked for under: its own, and where it comes from or goes to."""
    head = peek(record)
    properties = bytes(record[head.properties_begin : head.properties_end])
    own = bytes(record[head.topic_begin : head.topic_end])
    found = (own, get_property(properties, REAL_TOPIC), get_property(properties, RETRY_TOPIC))
    return tuple(topic.decode("utf-8", "replace") for topic in found if topic)


class QueriesProcessor:
    """VIEW_MESSAGE_BY_ID 33 and QUERY_MESSAGE 12."""

    def __init__(self, state: State, requests: Requests) -> None:
        self._state = state
        self._requests = requests

    def routes(self) -> Iterable[Route]:
        """See the head of this module."""
        return (
            Route(RequestCode.VIEW_MESSAGE_BY_ID, self.view, HandledOn.ANY),
            Route(RequestCode.QUERY_MESSAGE, self.query, HandledOn.LEADER_READ),
        )

    def view(self, connection: Connection, command: RemotingCommand) -> None:
        """Answers with the message whose record begins at an offset of the log."""
        offset = command.decode_fields(ViewMessageHeader).offset
        if committed_record(self._state, offset) is not None:
            self._view(connection, command)
        elif self._state.serving:
            # A leader that was deposed may not have it: it must not say that there is none.
            self._requests.handle_after_barrier(connection, command, self._view)
        else:
            self._requests.forward(connection, command)

    def _view(self, connection: Connection, command: RemotingCommand) -> None:
        header = command.decode_fields(ViewMessageHeader)
        offset = header.offset
        record = committed_record(self._state, offset)
        if record is not None:
            topics = topics_of(record)
            sight = self._requests.sight(connection, command)
            if not sight.is_everything and (
                # What the request was allowed for is the topic that it names.
                (header.topic and header.topic not in topics) or not sight.message(topics)
            ):
                wanted = (
                    f"none of topic {header.topic}"
                    if header.topic
                    else "of no topic that the account may read"
                )
                raise RequestError(ResponseCode.NO_PERMISSION, f"the message at {offset} is {wanted}")
            head = encode_response_head(command, ResponseCode.SUCCESS, body_length=len(record))
            connection.send(head, record)
        else:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")

    def query(self, connection: Connection, command: RemotingCommand) -> None:
        """Answers with the newest messages of a topic with a key that were stored in a time.

        Raises `RequestError` QUERY_NOT_FOUND if there are none.
        """
        header = command.decode_fields(QueryMessageHeader)
        state = self._state
        unique = bool(header.unique_key_query)
        limit = UNIQUE_KEY_QUERY_COUNT if unique else min(header.max_count, QUERY_COUNT_MAX)
        # The index knows hashes: what it finds is looked at, and the newest come first.
        budget = StepBudget(QUERY_STEPS_MAX)
        offsets = state.store.index.query(
            header.topic,
            header.key,
            QUERY_COUNT_MAX,
            header.begin_timestamp,
            header.end_timestamp,
            budget=budget,
        )
        cut = f"only the newest {QUERY_STEPS_MAX} index entries were looked at" if budget.exhausted else None
        found: list[memoryview] = []
        size = 0
        last_offset = last_timestamp = 0
        for offset in offsets:
            record = committed_record(state, offset)
            if record is None or not _has_key(record, header.topic.encode(), header.key, unique=unique):
                continue
            # The first goes whatever its size: a key must not become unfindable by one long message.
            if len(found) >= limit or (found and size + len(record) > RESPONSE_BYTES_MAX):
                break
            if not found:
                last_offset, last_timestamp = offset, peek(record).store_timestamp
            found.append(record)
            size += len(record)
        if not found:
            remark = "can not find message, maybe time range not correct"
            raise RequestError(ResponseCode.QUERY_NOT_FOUND, f"{remark}; {cut}" if cut else remark)
        fields = {
            "indexLastUpdateTimestamp": str(last_timestamp),
            "indexLastUpdatePhyoffset": str(last_offset),
        }
        connection.send(encode_response_head(command, ResponseCode.SUCCESS, cut, fields, size), *found)


def _has_key(record: memoryview, topic: bytes, key: str, *, unique: bool) -> bool:
    """Tells whether the record has the key truly, and not only a key of the same hash."""
    head = peek(record)
    if record[head.topic_begin : head.topic_end] != topic:
        return False
    properties = bytes(record[head.properties_begin : head.properties_end])
    wanted = key.encode()
    if get_property(properties, UNIQ_KEY) == wanted:
        return True
    keys = get_property(properties, KEYS)
    return not unique and keys is not None and wanted in keys.split(b" ")
