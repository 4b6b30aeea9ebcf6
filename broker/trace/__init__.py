"""The trace format: the deeds of clients and replicas as a CBOR sequence that anybody can write (docs/trace-format.md).

The reasons for its form:

* A trace is judged by other people's tools on other people's machines, so it is a published encoding (RFC
  8742) with a version, not a pickle of our classes. A file is nothing but concatenated items: recorders
  append, ``cat`` joins.
* Recording must not change what is recorded. A writer call appends one tuple to a list; a few hundred of them
  are encoded in one call of the C encoder (its array head is dropped, which leaves exactly the sequence),
  about 1.5 microseconds an event all together. The writer does no I/O: it hands finished bytes to a function.
* The header item is repeated, byte for byte, every few MiB. A reader that starts in the middle of a file, or
  that has met damaged bytes, searches for these bytes and goes on from there: large traces are split over a
  cluster, and one flipped bit costs a few MiB of events at most.
* Checkers compare invocation and completion times across processes, so times are monotonic nanoseconds and
  the header names the clock they come from. Processes of one machine share it; for others the header gives
  the wall clock at its zero and how far that may be wrong.

This package imports only the standard library and cbor2, so that ``spark_analysis`` can ship it to executors
alone.
"""

from broker.trace.events import (
    ClientEvent,
    CommitAdvanced,
    Damage,
    Dispatched,
    EntriesAppended,
    Fail,
    Fault,
    Info,
    Invoke,
    LogReset,
    LogTruncated,
    NodeStarted,
    NodeStopped,
    Note,
    Ok,
    PrefixDigest,
    ReadResult,
    ReplicaEvent,
    RoleChanged,
    TraceEvent,
    parse_event,
)
from broker.trace.format import FORMAT_VERSION, TRACE_SUFFIX, TraceFormatError, TraceHeader
from broker.trace.reader import read_items, read_trace
from broker.trace.tail import TraceTail
from broker.trace.writer import TraceWriter, extend_digest

__all__ = [
    "FORMAT_VERSION",
    "TRACE_SUFFIX",
    "ClientEvent",
    "CommitAdvanced",
    "Damage",
    "Dispatched",
    "EntriesAppended",
    "Fail",
    "Fault",
    "Info",
    "Invoke",
    "LogReset",
    "LogTruncated",
    "NodeStarted",
    "NodeStopped",
    "Note",
    "Ok",
    "PrefixDigest",
    "ReadResult",
    "ReplicaEvent",
    "RoleChanged",
    "TraceEvent",
    "TraceFormatError",
    "TraceHeader",
    "TraceTail",
    "TraceWriter",
    "extend_digest",
    "parse_event",
    "read_items",
    "read_trace",
]
