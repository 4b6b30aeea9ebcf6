"""The things that a node is given by whoever runs it: the Trio shell on a machine, the simulator, the tests.

A node owns no clock and opens nothing but the files of its disk. All that differs between those who run one is here, so
that they build it by the same call (`broker.assembly.build_node`); what goes on between them while it runs is
`broker.node.running.NodeSurroundings`.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from broker.remoting.node_status import ProcessFacts
from broker.replica.inner_limits import InnerLimits
from broker.requests.connection import Outgoing
from broker.state.release import THIS_RELEASE, Release
from broker.trace import TraceWriter
from log.files.disk import Disk
from log.options import StoreOptions
from raft.state import RandomSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine and the process that a node runs on, at its start."""

    disk: Disk
    outgoing: Outgoing
    """Names the connections that have something to write after a turn."""
    random: RandomSource
    now_ns: int
    """Monotonic, in nanoseconds."""
    wall_ms: int
    """The wall clock, in milliseconds since 1970."""
    hour_of_day: Callable[[int], int]
    """Tells the hour, here, at a time in milliseconds since 1970."""
    address: str | None = None
    """The ``host:port`` that clients are told, if it is not what the settings say; the host is a numeric address."""
    memory_bytes: int = 0
    """All that the machine has; 0 if unknown."""
    boot: str = ""
    """Names the time since the machine was started, "" if unknown: pages that were not flushed do not outlive it
    (broker/replica/recovering_file.py)."""
    process_id: Callable[[], int] = os.getpid
    process_facts: Callable[[], ProcessFacts] = ProcessFacts
    """Tells what the system knows of this process, for operators."""
    stopwatch: Callable[[], int] = lambda: 0
    """Returns nanoseconds, for the figures on how long the node's work takes."""
    trace: TraceWriter | None = None
    """Gets the replica's events; None where nobody wants them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How a node differs from a shipped one: where two releases are tried together, or where what is rare is to happen
    often, as in the simulator."""

    release: Release = THIS_RELEASE
    limits: InnerLimits = field(default_factory=InnerLimits)
    store_options: StoreOptions | None = None
    """The store's options, in place of those that follow from the settings."""


SHIPPED: Final = Variant()
