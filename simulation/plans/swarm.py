"""Draws the plan of a swarm seed, before anything runs; which seeds are, and what the others are, says `seeds.py`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

from simulation.plans.fault_times import Rhythm, draw_fault, draw_faults, draw_kinds
from simulation.plans.plan import FAULT_KINDS, Fault, Plan
from simulation.randomness import stream
from simulation.scheduler import MILLISECOND, SECOND
from simulation.workload import ACTORS

_DRAWN_APART: Final = ("stop", "release")
"""Kinds that are drawn from a stream of their own each: the other faults of a seed are what they were before them."""

_OF_ACTORS: Final = {"configurer": "name server"}
"""The kind of fault that an actor looks at: most seeds with the actor have such faults beside those they draw."""
_OF_ACTORS_SHARE: Final = 0.6

_GROUPS_SHARE: Final = 0.15
"""The share of the seeds with two groups."""
_OVER_GROUPS: Final = ("producer", "repeater", "careful", "consumer", "auditor", "administrator", "operator")
"""Actors that know of several groups. The promises of all others are about one group's log."""
_OF_GROUPS: Final = ("keeper",)
"""Actors that every seed with several groups has, beside them."""
_NOT_OF_GROUPS: Final = frozenset(
    {"name server", "client kill", "topics", "membership", "release", "transfer"}
)
"""Kinds of faults that are not about the machines of one group, or that ask an operator of the first one."""

NEEDS_SYNC: Final = frozenset({"power inside", "power of all"})
"""Kinds that take power from any number of nodes: with async flush only that of a minority may fail unpunished."""
_ASYNC_OUTAGE_SHARE: Final = 0.25
"""The share of the plans with async flush in which all lose power once nevertheless; late, since it may end the run."""

_SHARE: Final = 0.35
"""The share of the seeds that turn a kind on."""

_FIRST_FAULT_NS: Final = 4 * SECOND
_RHYTHM: Final = Rhythm(
    begin_ns=_FIRST_FAULT_NS,
    first_within_ns=16 * SECOND,
    mean_gaps_s=(2, 4, 8, 16),
    gap_ns_min=50 * MILLISECOND,
    durations_ns_max=(100 * MILLISECOND, SECOND, 5 * SECOND, 12 * SECOND),
)


def draw_swarm_plan(seed: int, *, seconds: int = 60, nodes: int = 3, groups: int | None = None) -> Plan:
    """Draws the plan of a seed; `seconds` is the whole run, of which the last third is calm (at least 20 s).

    `groups` replaces the number of groups that the seed has.
    """
    random = stream(f"plan {seed}")
    end_ns = seconds * SECOND
    calm_ns = max(_FIRST_FAULT_NS, end_ns - max(20 * SECOND, end_ns // 3))
    flush: Literal["sync", "async"] = "sync" if random.random() < 0.6 else "async"
    kinds = [kind for kind in FAULT_KINDS if kind not in _DRAWN_APART]
    faults: list[Fault] = []
    for kind in draw_kinds(random, kinds, _SHARE):
        if flush == "async" and kind in NEEDS_SYNC:
            continue
        faults += draw_faults(random, kind, _RHYTHM, calm_ns)
    # What has a stream of its own leaves the draws above as they are: old seeds keep their meaning.
    for kind in _DRAWN_APART:
        apart = stream(f"faults {kind} {seed}")
        if apart.random() < _SHARE:
            faults += draw_faults(apart, kind, _RHYTHM, calm_ns)
    actors = tuple(name for name, actor in ACTORS.items() if _is_on(seed, name, actor.share))
    for name in actors:
        faults += faults_of_actor(seed, name, calm_ns)
    if flush == "async":
        faults += _draw_outage(seed, calm_ns)
    if groups is None:
        groups = 2 if stream(f"number of groups {seed}").random() < _GROUPS_SHARE else 1
    if groups > 1:
        actors = over_groups(actors)
        faults += _faults_of_second_group(seed, flush, calm_ns)
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
        groups=groups,
    )


def over_groups(actors: Sequence[str]) -> tuple[str, ...]:
    """Returns those of the actors that a plan with several groups can have, and the ones that only such plans have."""
    return (*(name for name in actors if name in _OVER_GROUPS), *_OF_GROUPS)


def is_of_second_group(kind: str, flush: str) -> bool:
    """Tells whether faults of that kind can hit the machines of the second group."""
    return (
        kind in FAULT_KINDS and kind not in _NOT_OF_GROUPS and not (flush == "async" and kind in NEEDS_SYNC)
    )


def _faults_of_second_group(seed: int, flush: str, calm_ns: int) -> list[Fault]:
    """Draws the faults that hit the machines of the second group, each kind from a stream of its own."""
    faults: list[Fault] = []
    for kind in FAULT_KINDS:
        random = stream(f"second group {kind} {seed}")
        if not is_of_second_group(kind, flush) or random.random() >= _SHARE:
            continue
        faults += [replace(fault, group=1) for fault in draw_faults(random, kind, _RHYTHM, calm_ns)]
    return faults


def _draw_outage(seed: int, calm_ns: int) -> list[Fault]:
    """Draws a power failure of all in the last fifth of the time of faults, or none, from a stream of its own."""
    random = stream(f"outage {seed}")
    if random.random() >= _ASYNC_OUTAGE_SHARE:
        return []
    at = random.randrange(calm_ns - (calm_ns - _FIRST_FAULT_NS) // 5, calm_ns + 1)
    return [draw_fault(random, "power of all", min(at, calm_ns - MILLISECOND), _RHYTHM, calm_ns)]


def faults_of_actor(seed: int, actor: str, calm_ns: int) -> list[Fault]:
    """Draws the faults that an actor brings, from a stream of its own."""
    kind = _OF_ACTORS.get(actor)
    random = stream(f"faults of {actor} {seed}")
    if kind is None or random.random() >= _OF_ACTORS_SHARE:
        return []
    return draw_faults(random, kind, _RHYTHM, calm_ns)


def _is_on(seed: int, actor: str, share: float) -> bool:
    return stream(f"actor {actor} {seed}").random() < share
