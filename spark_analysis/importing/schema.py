"""The tables of the analysis; also the documented Parquet schema of ``trivet analyze --to-parquet``
(docs/trace-schema.md).

Everything a trace can say fits one wide table, ``RECORDS``, so that a trace is decoded exactly once: column
``record`` tells operations from replica events, faults and damage. ``operations`` is what importers of other
formats produce.
"""

from typing import Final

FUNCTIONS: Final = (
    *("append", "read", "poll", "tail", "head", "commit_offset", "fetch_offset"),
    *("assign", "subscribe", "seek"),
)
"""All functions of operations on queues."""

# Spark's DDL, because it reads like the documentation it is.
OPERATION_COLUMNS: Final = (
    ("op", "BIGINT", "identity of the operation, which all rows of a poll or transaction share"),
    ("client", "STRING", "logical client: a lane in a timeline"),
    ("function", "STRING", "append, read, poll, tail, head, commit_offset, fetch_offset, assign, ..."),
    ("key", "STRING", "queue as topic/queue, or any model's key"),
    (
        "group",
        "STRING",
        "consumer group of commit_offset and fetch_offset; of a replica's event its broker group",
    ),
    ("outcome", "STRING", "ok, fail (certainly no effect) or info (unknown)"),
    ("invoke_ns", "BIGINT", "invocation, monotonic nanoseconds"),
    ("complete_ns", "BIGINT", "completion; null when the outcome is unknown"),
    ("offset", "BIGINT", "asked (read), stated (tail, head, fetch_offset) or stored (commit_offset)"),
    ("filtered", "BOOLEAN", "a read that leaves messages out on purpose"),
    ("first_offset", "BIGINT", "of the first value appended or read"),
    (
        "offsets",
        "ARRAY<BIGINT>",
        "of each value read, or sent by a transaction; null when contiguous from first_offset",
    ),
    ("values", "ARRAY<STRING>", "appended or read, in order; the keys of an assignment"),
    ("next_offset", "BIGINT", "where a read says to go on"),
    ("end_offset", "BIGINT", "the queue's end as a read states it; null unless it is to be judged"),
    ("reason", "STRING", "why an operation failed or is unknown"),
)

EVENT_COLUMNS: Final = (
    (
        "node",
        "STRING",
        "who recorded it: a replica, or a process of clients, or of faults; not of a completion",
    ),
    ("kind", "STRING", "start, stop, role, append, truncate, commit, digest, reset, dispatch, fault, note"),
    ("time_ns", "BIGINT", "monotonic nanoseconds on the operations' axis"),
    ("role", "STRING", "leader, candidate, precandidate, follower, learner"),
    ("term", "BIGINT", "Raft term"),
    ("leader", "STRING", "known leader"),
    ("first_index", "BIGINT", "first entry of an append, or of the log after a reset"),
    ("last_index", "BIGINT", "of an append or the log; index committed, digested, dispatched"),
    ("last_term", "BIGINT", "term of the log's last entry"),
    ("commit_index", "BIGINT", "durable commit index at a start"),
    ("digest", "BIGINT", "CRC-32 of an append's bytes or of the committed prefix"),
    ("targets", "ARRAY<STRING>", "nodes that a fault was done to"),
    ("detail", "STRING", "name and details of a fault, text of a note, what is damaged"),
)

_COMMON: Final = (
    ("record", "STRING", "operation, invocation, completion, event, damage; of a stream also read_to"),
    ("file", "STRING", "the trace's path"),
    ("position", "BIGINT", "byte offset of the record in the file; orders the events of one node"),
)


def _ddl(columns: tuple[tuple[str, str, str], ...]) -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind, _ in columns)


OPERATIONS: Final = _ddl(OPERATION_COLUMNS)
EVENTS: Final = _ddl(EVENT_COLUMNS)
OPERATION_NAMES: Final = tuple(name for name, _, _ in OPERATION_COLUMNS)
EVENT_NAMES: Final = tuple(name for name, _, _ in EVENT_COLUMNS)
EVENT_TABLE_NAMES: Final = ("file", "position", "group", *EVENT_NAMES)
EVENT_TABLE: Final = f"file STRING, position BIGINT, `group` STRING, {EVENTS}"
"""The events of a history: where each stands, and the group of the replica that recorded it."""
RECORD_COLUMNS: Final = _COMMON + OPERATION_COLUMNS + EVENT_COLUMNS
RECORDS: Final = _ddl(RECORD_COLUMNS)


def unanswered(function: str) -> dict[str, str | None]:
    """Returns an operation's columns where nobody knows its answer."""
    told = ("complete_ns", "first_offset", "offsets", "next_offset", "end_offset")
    given: dict[str, str | None] = dict.fromkeys(told if function == "append" else (*told, "values"))
    return given | {"outcome": "info"}
