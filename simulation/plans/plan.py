"""A whole run as plain data: the settings of a world and the schedule of its faults.

Replaying a run is running its plan; shrinking a failure is running plans with fewer faults.
"""

from __future__ import annotations

from dataclasses import dataclass
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
"""All kinds, in the order of docs/simulation.md."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something done `time_ns` after the start and undone `duration_ns` later.

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
class Plan:
    """A whole run. Faults end at `calm_ns`; from then on the group must recover, and the run ends at `end_ns`."""

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


def encode_plan(plan: Plan) -> bytes:
    """Returns the plan as JSON, for people and `decode_plan`."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n"


def decode_plan(data: bytes) -> Plan:
    """Reads the plan that `encode_plan` wrote.

    Raises msgspec.DecodeError, and msgspec.ValidationError also for a plan that this version does not know how to run.
    """
    plan = msgspec.json.decode(data, type=Plan)
    for what, known, named in (
        ("kind of fault", FAULT_KINDS, [fault.kind for fault in plan.faults]),
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
