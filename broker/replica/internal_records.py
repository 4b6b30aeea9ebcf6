"""The group's own records: no-ops, metadata commands and configurations, between the messages of the log.

Each is a message record of the topic `TRIVET_SYS_RAFT_LOG` whose tag says what its body is:

    noop            nothing: the first entry of a term, or one for a node that has lost its votes
    command         a metadata command (broker/state/commands.py)
    configuration   members and their addresses (broker/replica/members_file.py)

So any reader of the log can skip them by their topic, as dispatch does.
"""

from typing import Final

from broker.state.topic_rules import INTERNAL_TOPIC
from log.entries.entry_log import EntryLog
from log.formats.layout import HEADER_BYTES
from log.formats.properties import TAGS, get_property
from log.formats.record import RECORD_BYTES_WITHOUT_VARIABLE_PARTS, encode_record, peek

INTERNAL_TOPIC_BYTES: Final = INTERNAL_TOPIC.encode()
NO_OP: Final = b"noop"
COMMAND: Final = b"command"
CONFIGURATION: Final = b"configuration"


def append_internal(
    log: EntryLog, term: int, tag: bytes, body: bytes, host: bytes, group_ms: int
) -> tuple[int, int]:
    """Appends a record to the leader's log; returns (index of its entry, size of the record in bytes).

    Raises `log.errors.EntryTooLargeError`, `DiskFullError`, with nothing appended.
    """
    properties = b"TAGS\x01" + tag + b"\x02"
    size = (
        RECORD_BYTES_WITHOUT_VARIABLE_PARTS
        + 2 * len(host)
        + len(body)
        + len(INTERNAL_TOPIC_BYTES)
        + len(properties)
    )
    # The record holds its own physical offset, so the entry's position must be known before it is encoded.
    physical_offset = log.next_position(size) + HEADER_BYTES
    record = encode_record(
        INTERNAL_TOPIC_BYTES,
        0,
        0,
        0,
        physical_offset,
        0,
        group_ms,
        host,
        group_ms,
        host,
        0,
        0,
        body,
        properties,
    )
    return log.append(term, record), size


def read_internal(record: memoryview) -> tuple[bytes, memoryview] | None:
    """Returns (tag, body) of a record of the group's own, None for a message."""
    head = peek(record)
    if record[head.topic_begin : head.topic_end] != INTERNAL_TOPIC_BYTES:
        return None
    tag = get_property(bytes(record[head.properties_begin : head.properties_end]), TAGS)
    return tag or b"", record[head.body_begin : head.body_end]
