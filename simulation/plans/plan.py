"""A whole run as plain data: the settings of a world and the schedule of its faults.

Replaying a run is running its plan; shrinking a failure is running plans with fewer faults.
"""

from dataclasses import astuple, dataclass, field
from itertools import pairwise
from typing import Final, Literal

import msgspec

from simulation.scheduler import SECOND
from simulation.workload import ACTORS

FAULT_KINDS: Final = (
    *("loss", "delay", "cut one way", "isolate", "partition", "depose", "clog", "reset", "link"),
    *("messages", "kill", "stop", "power", "power inside", "power of all", "pause", "new disk", "clock rate"),
    *("wall jump", "name server", "slow disk", "full disk", "flush failure", "read failure", "bit rot"),
    *("misdirected write", "retention", "transfer", "rivals", "membership", "client kill", "topics"),
    "release",
)
"""All kinds that a plan draws each by itself; docs/simulation.md says what each does."""

CHOREOGRAPHIES: Final = (
    "kills while paused",
    "power while cut off",
    "bit rot while recovering",
    "transfer in a change",
    "overlapping elections",
    "leadership returns",
)
"""Kinds that are several faults in a certain order; only dense plans have them."""

LATER_KINDS: Final = (
    "damage",
    "suspend",
    "more than is known",
    "other work",
    "words outlive their node",
    "words outlive their term",
    "change without one",
    "left behind",
    "change that is lost",
    "at a moment",
    "client pause",
    "elected in vain",
    "disk goes in an election",
    "no descriptors",
    "change over a slow disk",
    "recovery that lasts",
    "forgotten vote",
    "unheard promotion",
)
"""Kinds that a share of the seeds has beside what they draw, or in its place (plans/seeds.py; all but the first three:
plans/dense.py; "other work", "at a moment", "client pause" and "no descriptors" in both)."""
LASTING: Final = ("core", "overload")
"""Kinds of which a plan has one at most, with no other fault behind its beginning (simulation/plans/lasting.py)."""


LEADER: Final = 1
"""A bit of a fault's target; set: the leader is meant, while there is one."""
LEADER_BITS: Final = 1
"""The bits of a target before those of a number: it picks a host where the leader is not meant, or what the kind says.
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that is done `time_ns` after the start and undone `duration_ns` later.

    `target` picks a host among those that there are then; `amount` in 0..1 is what the kind makes of it.
    """

    time_ns: int
    kind: str
    target: int
    duration_ns: int
    amount: float
    group: int = 0
    """The number of the group whose machines it hits."""

    @property
    def duration_s(self) -> float:
        """The duration in seconds."""
        return self.duration_ns / SECOND


@dataclass(frozen=True, slots=True)
class Limits:
    """Numbers that gate paths of a node, in this world; the defaults are those of the plans that are not dense.

    The defaults are the product's own, but for the files, which suit a short run.
    """

    append_bytes: int = 256 * 1024
    snapshot_entries: int = 200_000
    catch_up_entries: int = 1000
    pull_bytes: int = 256 * 1024
    hour_ms: int = 3_600_000
    reserved_hours: int = 72
    """The time for which messages are kept: a few seconds, if the hours are short."""
    window_bytes: int = 8 * 1024 * 1024
    pending_messages: int = 65_536
    pending_bytes: int = 64 * 1024 * 1024
    open_transactions: int = 1_000_000
    held_pulls: int = 100_000
    log_index_units: int = 256
    """Entries of a file of the log's index; then those of a file of a queue, and what a file of the index has."""
    queue_units: int = 64
    index_slots: int = 61
    index_entries: int = 200
    deliveries: int = 256
    delivery_bytes: int = 1 << 20
    scanned_units: int = 800
    timer_run_units: int = 4096
    log_mappings: int = 16
    """Files that are mapped at once: of the log, of its queues, and of the index; then those of queues that one
    dispatch maps, and the keys that it puts into the index."""
    queue_mappings: int = 256
    index_mappings: int = 8
    dispatch_files: int = 32
    dispatch_keys: int = 16_384
    held_requests: int = 4_000
    """Requests that wait at a node for a leader, for the leader's answer, and at the leader for a turn."""
    forwarded: int = 20_000
    unhandled: int = 20_000
    queues_per_command: int = 500
    transactions_at_once: int = 256
    operations_waiting: int = 400
    unused_offsets_look_ms: int = 600_000
    """Intervals that are longer than a run, and how long a writer is remembered and a backup waits."""
    writers_kept_ms: int = 30 * 24 * 3_600_000
    delays_idle_ms: int = 60_000
    backup_lease_ms: int = 60_000
    topics: int = 20_000
    """Settings; they bind where a founder fills them (simulation/workload/found.py)."""
    groups: int = 8_000
    stored_offsets: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """The changes that operators make to the group beside its first members."""

    spares: int = 1
    """Machines beside those of the first members, for nodes that join."""
    fewest_voters: int = 0
    """Operators remove voters down to so many; 0: down to as many as there were."""
    most_learners: int = 1
    prefers_first: bool = False
    """The first node of the group is preferred as its leader: it leads again and again."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A moment at which a run goes on with another future: all streams of random numbers are others from then on."""

    event: int
    """Behind the event of this number, counted from 1."""
    time_ns: int
    """The time of that event. The faults behind it belong to the new future."""
    seed: int
    """The seed of the streams from then on."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run. Faults end at `calm_ns`; from then on the group must recover, and the run ends at `end_ns`, or
    before it (`ends_early`).
    """

    seed: int
    nodes: int
    flush: Literal["sync", "async"]
    data_file_bytes: int
    actors: tuple[str, ...]
    """Names of actors, as in `workload.ACTORS`."""
    producers: int
    think_ms: int
    queues: int
    calm_ns: int
    end_ns: int
    faults: tuple[Fault, ...]
    groups: int = 1
    """Groups of so many nodes each, which share name servers and clients."""
    limits: Limits = field(default_factory=Limits)
    shape: Shape = field(default_factory=Shape)
    forks: tuple[Fork, ...] = ()
    """In the order of their events."""
    idle_ns: int = 0
    """Once the group has recovered its clients ask for nothing for so long."""
    ends_early: bool = False
    """The run ends as soon as the group has recovered and all that is checked at the end holds."""
    chance: int | None = None
    """A number: each host, link and fault draws from a stream of its own, which its name and the number fix, so that
    what is left out of a plan changes no draw of what stays. None, as plans are drawn: all links draw from one, and a
    host's faults from the host's."""


def encode_plan(plan: Plan) -> bytes:
    """Returns the plan as JSON, for people and `decode_plan`."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n"


def decode_plan(data: bytes) -> Plan:
    """Reads the plan that `encode_plan` wrote.

    Raises msgspec.DecodeError, and msgspec.ValidationError also for a plan that this version does not know how to run.
    """
    plan = msgspec.json.decode(data, type=Plan)
    # Names first: whoever runs a plan of another version should hear of that, and not of a number.
    for what, known, named in (
        (
            "kind of fault",
            (*FAULT_KINDS, *CHOREOGRAPHIES, *LATER_KINDS, *LASTING),
            [fault.kind for fault in plan.faults],
        ),
        ("actor", ACTORS, plan.actors),
    ):
        unknown = [name for name in named if name not in known]
        if unknown:
            raise msgspec.ValidationError(f"no {what} is called {unknown[0]!r}: a plan of another version")
    is_sound = (
        plan.nodes in (3, 5)
        and plan.data_file_bytes >= 16 * 1024
        and plan.think_ms > 0
        and plan.queues > 0
        and plan.producers >= 0
        and 0 < plan.calm_ns <= plan.end_ns
        and plan.groups in (1, 2)
        and plan.idle_ns >= 0
        and plan.shape.spares >= 1
        and (plan.shape.fewest_voters == 0 or 2 <= plan.shape.fewest_voters <= plan.nodes)
        and plan.shape.most_learners >= 1
        and all(number > 0 for number in astuple(plan.limits))
        and min(plan.limits.log_mappings, plan.limits.queue_mappings, plan.limits.index_mappings) > 1
        and all(fork.event > 0 and fork.time_ns >= 0 for fork in plan.forks)
        and all(one.event < other.event for one, other in pairwise(plan.forks))
        and plan.limits.index_entries > 1
        and plan.limits.timer_run_units > 1
        and all(
            0 <= fault.group < plan.groups
            and fault.time_ns >= 0
            and fault.duration_ns >= 0
            and 0 <= fault.amount < 1
            for fault in plan.faults
        )
    )
    if not is_sound:
        raise msgspec.ValidationError("a number is out of the range that plans are drawn from")
    return plan
