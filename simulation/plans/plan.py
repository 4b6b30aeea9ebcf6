"""What a seed means: the settings of a world and the schedule of its faults, drawn before anything runs.

A plan is plain data. Replaying a run is running its plan; shrinking a failure is running plans with fewer faults. Each
seed turns on a random subset of the fault kinds (swarm testing: kinds that hide each other do not always meet), each
with a rate of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from simulation.randomness import Random, stream
from simulation.scheduler import MILLISECOND, SECOND
from simulation.workload import ACTORS

__all__ = ["FAULT_KINDS", "Fault", "Plan", "decode_plan", "draw_plan", "encode_plan", "faults_of_actor"]

FAULT_KINDS: Final = (
    "loss",
    "delay",
    "cut one way",
    "isolate",
    "partition",
    "depose",
    "clog",
    "reset",
    "link",
    "messages",
    "kill",
    "stop",
    "power",
    "power inside",
    "power of all",
    "pause",
    "new disk",
    "clock rate",
    "wall jump",
    "name server",
    "slow disk",
    "full disk",
    "flush failure",
    "read failure",
    "bit rot",
    "misdirected write",
    "retention",
    "transfer",
    "rivals",
    "membership",
    "client kill",
    "topics",
)
"""All kinds, in the order of docs/simulation.md."""

_DRAWN_APART: Final = ("stop",)
"""From a random stream of its own each: the other faults of a seed are what they were before the kind existed."""

_OF_ACTORS: Final = {"configurer": "name server"}
"""Kinds that an actor's work is for: three fifths of the seeds that have it have such faults beside those they draw."""
_OF_ACTORS_SHARE: Final = 0.6

_NEEDS_SYNC: Final = frozenset({"power inside", "power of all"})
"""With async flush a minority may lose power and nothing is lost; these do not ask how the others are."""
_ASYNC_OUTAGE_SHARE: Final = 0.25
"""Of the plans with async flush, those in which all lose power once nevertheless, late, since it may end the run."""

_SHARE: Final = 0.35
"""Of the seeds that turn a kind on."""

_FIRST_FAULT_NS: Final = 4 * SECOND


@dataclass(frozen=True, slots=True)
class Fault:
    """Something done to the world. `target` numbers a host, `amount` is what the kind makes of it in 0..1."""

    time_ns: int
    kind: str
    target: int
    duration_ns: int
    amount: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run. Faults end at `calm_ns`; from then on the group must recover, and the run ends at `end_ns`."""

    seed: int
    nodes: int
    flush: Literal["sync", "async"]
    data_file_bytes: int
    actors: tuple[str, ...]
    """Names in `workload.ACTORS`."""
    producers: int
    think_ms: int
    queues: int
    calm_ns: int
    end_ns: int
    faults: tuple[Fault, ...]


def draw_plan(seed: int, *, seconds: int = 60, nodes: int = 3) -> Plan:
    """The plan of a seed; `seconds` is the whole run, of which the last third is calm (at least 20 s)."""
    random = stream(f"plan {seed}")
    end_ns = seconds * SECOND
    calm_ns = max(_FIRST_FAULT_NS, end_ns - max(20 * SECOND, end_ns // 3))
    flush: Literal["sync", "async"] = "sync" if random.random() < 0.6 else "async"
    kinds = [kind for kind in FAULT_KINDS if kind not in _DRAWN_APART]
    enabled = [kind for kind in kinds if random.random() < _SHARE]
    faults: list[Fault] = []
    for kind in enabled:
        if flush == "async" and kind in _NEEDS_SYNC:
            continue
        faults += _draw_faults(random, kind, calm_ns)
    for kind in _DRAWN_APART:
        apart = stream(f"faults {kind} {seed}")
        if apart.random() < _SHARE:
            faults += _draw_faults(apart, kind, calm_ns)
    actors = tuple(name for name, actor in ACTORS.items() if _is_on(seed, name, actor.share))
    for name in actors:
        faults += faults_of_actor(seed, name, calm_ns)
    if flush == "async":
        faults += _draw_outage(seed, calm_ns)
    faults.sort(key=lambda fault: fault.time_ns)
    return Plan(
        seed=seed,
        nodes=nodes,
        flush=flush,
        data_file_bytes=random.choice((16, 32, 64, 128)) * 1024,
        actors=actors,
        producers=random.choice((1, 2, 3)),
        think_ms=random.choice((300, 900, 1800, 3600)),
        queues=random.choice((1, 2, 4)),
        calm_ns=calm_ns,
        end_ns=end_ns,
        faults=tuple(faults),
    )


def _draw_outage(seed: int, calm_ns: int) -> list[Fault]:
    """A power failure of all in the last fifth of the time of faults, from a stream of its own."""
    random = stream(f"outage {seed}")
    if random.random() >= _ASYNC_OUTAGE_SHARE:
        return []
    at = random.randrange(calm_ns - (calm_ns - _FIRST_FAULT_NS) // 5, calm_ns + 1)
    return [_draw_fault(random, "power of all", min(at, calm_ns - MILLISECOND), calm_ns)]


def faults_of_actor(seed: int, actor: str, calm_ns: int) -> list[Fault]:
    """Those that an actor brings, from a stream of its own."""
    kind = _OF_ACTORS.get(actor)
    random = stream(f"faults of {actor} {seed}")
    if kind is None or random.random() >= _OF_ACTORS_SHARE:
        return []
    return _draw_faults(random, kind, calm_ns)


def _is_on(seed: int, actor: str, share: float) -> bool:
    return stream(f"actor {actor} {seed}").random() < share


def _draw_faults(random: Random, kind: str, calm_ns: int) -> list[Fault]:
    """A kind's faults, at a rate of its own."""
    faults = []
    mean_gap_ns = int(random.choice((2, 4, 8, 16)) * SECOND)
    at = _FIRST_FAULT_NS + random.randrange(mean_gap_ns)
    while at < calm_ns:
        faults.append(_draw_fault(random, kind, at, calm_ns))
        at += int(random.expovariate(1 / mean_gap_ns)) + 50 * MILLISECOND
    return faults


def _draw_fault(random: Random, kind: str, at: int, calm_ns: int) -> Fault:
    longest = random.choice((100 * MILLISECOND, SECOND, 5 * SECOND, 12 * SECOND))
    duration = min(random.randrange(MILLISECOND, longest), calm_ns - at)
    return Fault(at, kind, random.randrange(1 << 16), duration, random.random())


def encode_plan(plan: Plan) -> bytes:
    """The plan as JSON, for people and `decode_plan`."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n"


def decode_plan(data: bytes) -> Plan:
    """The plan that `encode_plan` wrote. Raises msgspec.DecodeError; ValidationError, also for a plan that this version
    does not know how to run."""
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
        and all(
            fault.time_ns >= 0 and fault.duration_ns >= 0 and 0 <= fault.amount < 1 for fault in plan.faults
        )
    )
    if not is_sound:
        raise msgspec.ValidationError("a number is out of the range that plans are drawn from")
    return plan
