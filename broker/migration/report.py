"""What a migration found, took and left: for people as tables, for scripts as JSON."""

from __future__ import annotations

import msgspec


class TopicReport(msgspec.Struct, kw_only=True):
    """One topic that is taken."""

    topic: str
    queues: int
    messages: int
    """In the log; those that retention has deleted are not counted."""
    next_offset: int
    """The sum of its queues' ends: how many messages it ever had."""
    consumer_groups: int
    """Groups with positions in it."""


class Report(msgspec.Struct, kw_only=True):
    """The whole of it. `is_complete` is false for a check alone and for a copy of a store in use."""

    source: str
    node: str
    directory: str
    is_complete: bool
    first_index: int
    last_index: int
    last_term: int
    """DLedger's; the group's is one higher, since Raft counts terms from 1."""
    committed_index: int
    """By the source's checkpoint, which may be seconds older than the log."""
    data_file_bytes: int
    """`storage.data_file_bytes` of the group that this becomes."""
    entries_copied: int
    """By this run."""
    messages: int
    """Messages that a queue has."""
    topics: list[TopicReport]
    consumer_groups: int
    positions: int
    delayed_waiting: int
    timed_waiting: int
    half_open: int
    brokers_own: int
    """Topics and groups that every broker makes by itself, and that are not taken."""
    units_compared: int
    """Units of the source's ConsumeQueues that lead to the message that they should."""
    records_without_queue: int
    """Records that no queue has: rolled back, prepared, of deleted topics, left out, or with an offset once more."""
    not_taken: list[str]
    """Sentences for whoever decides whether this is well."""
