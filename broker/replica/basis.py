"""The objects that most parts of a replica work on. The replica makes them first, and gives them to each part."""

from dataclasses import dataclass

from broker.replica.disk_space import DiskSpace
from broker.replica.group_clock import GroupClock
from broker.replica.proposals import Observer
from broker.requests.deadline import Time
from broker.statistics.events import Events
from broker.statistics.timings import Timings
from log.store import Store
from raft.core import Raft


@dataclass(frozen=True, slots=True)
class Basis:
    """What all parts of a replica share; each keeps only those fields that it needs."""

    store: Store
    raft: Raft
    disk_space: DiskSpace
    clock: GroupClock
    time: Time
    """The time of the call under way."""
    observer: Observer
    events: Events
    timings: Timings
