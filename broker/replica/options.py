"""The parts that a replica is made with, beside what its disk holds: its settings, and those whom it asks and tells."""

from dataclasses import dataclass, field

from broker.replica.inner_limits import InnerLimits
from broker.replica.proposals import Observer
from broker.state.release import THIS_RELEASE, Release
from broker.statistics.events import Events
from broker.statistics.timings import Timings
from broker.trace import TraceWriter
from raft.options import RaftOptions
from raft.state import RandomSource


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """The settings that a replica begins with and keeps."""

    node_id: str
    raft: RaftOptions
    sync_flush: bool
    """An entry counts as held here when it is on the disk, not when it is in the page cache."""
    flush_interval_ns: int
    """The time that bytes which are only in the page cache may wait for their flush."""
    uncommitted_bytes_max: int
    """A leader whose entries without a majority have more bytes together takes nothing new."""
    store_host: bytes
    """This node's address, packed as in a record."""
    release: Release = THIS_RELEASE
    """The release that runs; another one only where two of them are tried together."""
    limits: InnerLimits = field(default_factory=InnerLimits)


@dataclass(frozen=True, slots=True)
class ReplicaSurroundings:
    """The surroundings that a replica asks and tells, and the time at which it begins."""

    random: RandomSource
    now_ns: int
    """Monotonic, in nanoseconds."""
    wall_ms: int
    """This machine's wall clock, in milliseconds since 1970."""
    observer: Observer
    events: Events
    timings: Timings
    trace: TraceWriter | None
    """Gets the replica's events; None where nobody wants them."""
