"""Dense plans: few kinds of fault that meet often, in a world whose limits are small.

A plan of `swarm.py` has a dozen kinds, each by itself and far apart, so that two of them seldom fall together. Here two
to four share the time of faults, with 0.7 to 3 s between one fault and the next, under the load that every run has and
two actors at most. Kinds that came later (`_LATER_KINDS`) join them in a share of the plans, each with its own rhythm.

Which kinds meet is a covering array: in each round of `round_length()` dense seeds each pair of kinds meets at least
once. The array is a function of the seed's number alone, so that any seed replays alone; the next round deals the kinds
anew, and others make up threes and fours.
"""

from dataclasses import replace
from functools import cache
from itertools import combinations, cycle
from typing import Final

from simulation.plans.fault_times import Rhythm, draw_fault
from simulation.plans.intervals import with_short_intervals
from simulation.plans.plan import CHOREOGRAPHIES, FAULT_KINDS, Fault, Limits, Plan, Shape
from simulation.plans.room import with_founder, with_little_room
from simulation.plans.small_groups import with_small_groups
from simulation.plans.swarm import NEEDS_SYNC, is_of_second_group, over_groups
from simulation.randomness import Random, stream
from simulation.scheduler import MILLISECOND, SECOND
from simulation.workload import ACTORS

KINDS: Final = (*FAULT_KINDS, *CHOREOGRAPHIES)

_KINDS_OF_A_PLAN: Final = (4, 3, 4, 2)
"""How many kinds of faults a plan has, one plan after the other."""
_FIVE_NODES_SHARE: Final = 0.5
"""The share of the dense plans that have five; of all seeds it is a fifth."""
_SMALL_SHARE: Final = 0.6
"""The probability with which each limit is small."""
_RESTLESS_SHARE: Final = 0.25
"""The share of the dense plans in which members come and go all the time."""
_LATER_KINDS: Final = {
    "words outlive their node": 0.2,
    "words outlive their term": 0.2,
    "change without one": 0.15,
    "left behind": 0.15,
    "change that is lost": 0.15,
    "at a moment": 0.5,
    "other work": 0.25,
    "client pause": 0.25,
    "elected in vain": 0.1,
    "disk goes in an election": 0.1,
    "no descriptors": 0.15,
    "change over a slow disk": 0.2,
    "recovery that lasts": 0.2,
    "forgotten vote": 0.1,
    "unheard promotion": 0.2,
}
"""Choreographies that are in no covering array, with their shares of the dense plans: each has a stream of its own, so
that the seeds without it stay as they are."""
_LATER_LIMITS_SHARE: Final = 0.3
"""The share of the dense plans in which little is delivered, looked at and sorted at once; the seeds without it stay as
they are."""
_LITTLE_ROOM_SHARE: Final = 0.5
"""Half of the plans keep their room: what begins with many at once is seldom refused there."""
_SHORT_INTERVALS_SHARE: Final = 0.3
_TWO_GROUPS_SHARE: Final = 0.1
_HARMED_LIVES_SHARE: Final = 0.5
"""The share of the plans with a topic that comes and goes in which files are damaged behind all else."""
_SNAPSHOT_ENTRIES: Final = (20, 100)
_PREFERRED_SHARE: Final = 0.4
"""The share of the dense plans whose group prefers a leader."""
_ENDS_EARLY_SHARE: Final = 0.75
"""The share of the dense plans that end as soon as all is well again; what shows only later the others find."""
_ENDS_EARLIER_S: Final = 10
_ACTORS_MAX: Final = 2
_OWN_ACTOR: Final = "tenant"
_OWN_ACTOR_SHARE: Final = 0.2
"""The share of the dense plans with an actor that no other plan has."""
_LATER_ACTORS: Final = {"writer": 0.25}
"""Others that no other plan has, with their shares; each has a stream of its own, so that the seeds without it stay as
they are."""
_BESIDE_ACTORS: Final = {"postponer": 0.2, "subscriber": 0.2, "waverer": 0.15}
"""Others that come beside those of a plan, each from a stream of its own."""
_FIRST_FAULT_NS: Final = 4 * SECOND
_CLERKS_SHARE: Final = 0.5
"""The share of the plans whose clients stand still that have members who handle in order: their locks run out then."""
_GAPS_S: Final = (0.7, 3.0)
_GAP_NS_MIN: Final = 20 * MILLISECOND
_RHYTHM: Final = Rhythm(
    begin_ns=_FIRST_FAULT_NS,
    first_within_ns=SECOND,
    mean_gaps_s=(1,),
    gap_ns_min=_GAP_NS_MIN,
    durations_ns_max=(100 * MILLISECOND, SECOND, 3 * SECOND, 6 * SECOND),
)


def kinds_of(number: int) -> tuple[str, ...]:
    """Returns the kinds of the dense plan of that number, counted from 0."""
    blocks = list(_blocks(len(KINDS)))
    random = stream(f"dense round {number // len(blocks)}")
    dealt = list(KINDS)
    random.shuffle(dealt)
    random.shuffle(blocks)  # those that follow each other in the array share a kind
    return tuple(dealt[at] for at in blocks[number % len(blocks)])


@cache
def _blocks(count: int) -> tuple[tuple[int, ...], ...]:
    """Returns groups of the numbers below `count` in which each pair is together once at least.

    Greedy: each group takes next what makes the most pairs that are not covered yet.
    """
    missing = set(combinations(range(count), 2))
    blocks: list[tuple[int, ...]] = []
    for size in cycle(_KINDS_OF_A_PLAN):
        if not missing:
            return tuple(blocks)
        block = list(min(missing))
        while len(block) < size:
            block.append(max(range(count), key=lambda one: (_new_pairs(one, block, missing), -one)))
        missing -= {(min(pair), max(pair)) for pair in combinations(block, 2)}
        blocks.append(tuple(block))
    raise AssertionError("the sizes repeat for ever")


def round_length() -> int:
    """Returns the number of dense seeds in which each pair of kinds meets; no run asks, tests hold the plans to it."""
    return len(_blocks(len(KINDS)))


def _new_pairs(one: int, block: list[int], missing: set[tuple[int, int]]) -> int:
    """Returns how many pairs are covered for the first time if `one` joins; less than none if it is there."""
    return -1 if one in block else sum((min(one, other), max(one, other)) in missing for other in block)


def draw_dense_plan(seed: int, number: int, *, seconds: int = 60, nodes: int | None = None) -> Plan:
    """Draws the plan of a seed that is the dense one of that number; `seconds` as in `draw_swarm_plan`.

    `nodes` None: three or five, by the seed. Most plans end early: their faults go on for longer by what that saves.
    """
    random = stream(f"dense {seed}")
    ends_early = stream(f"ends early {seed}").random() < _ENDS_EARLY_SHARE
    if ends_early:
        seconds += _ENDS_EARLIER_S
    end_ns = seconds * SECOND
    calm_ns = max(_FIRST_FAULT_NS, end_ns - max(20 * SECOND, end_ns // 3))
    kinds = kinds_of(number)
    # Some kinds would lose data that async flush does not promise: their plans flush before they acknowledge.
    is_sync = random.random() < 0.6 or not NEEDS_SYNC.isdisjoint(kinds)
    drawn_nodes = 5 if random.random() < _FIVE_NODES_SHARE else 3
    group_size = nodes or drawn_nodes
    plan = Plan(
        seed=seed,
        nodes=group_size,
        flush="sync" if is_sync else "async",
        data_file_bytes=random.choice((16, 16, 32, 64)) * 1024,
        actors=_draw_actors(random, seed),
        producers=random.choice((1, 2, 3)),
        think_ms=random.choice((300, 600, 1200, 2400)),
        queues=random.choice((1, 2, 4)),
        calm_ns=calm_ns,
        end_ns=end_ns,
        ends_early=ends_early,
        faults=_with_later_kinds(
            seed, _with_all(seed, kinds, _draw_faults(random, kinds, calm_ns), calm_ns), calm_ns
        ),
        limits=_with_later_limits(seed, _draw_limits(stream(f"limits {seed}"))),
        shape=_draw_shape(stream(f"shape {seed}"), group_size),
    )
    plan = _with_harmed_lives(_with_second_group(with_small_groups(plan), kinds))
    plan = with_little_room(with_founder(plan), _LITTLE_ROOM_SHARE)
    return with_short_intervals(plan, _SHORT_INTERVALS_SHARE)


def _with_harmed_lives(plan: Plan) -> Plan:
    """Damages files of nodes that are down, in a share of the plans in which a topic comes and goes: its queues are
    built again then, with an earlier life of theirs in the log, which keeps all, and a snapshot has the deletion.

    Such damage waits until nothing else is wrong, so all other faults come in the first half of their time.
    """
    random = stream(f"harmed lives {plan.seed}")
    if _OWN_ACTOR not in plan.actors or random.random() >= _HARMED_LIVES_SHARE:
        return plan
    begin_ns = (_FIRST_FAULT_NS + plan.calm_ns) // 2
    faults = [
        replace(fault, time_ns=at_ns, duration_ns=min(fault.duration_ns, begin_ns - at_ns))
        for fault in plan.faults
        for at_ns in ((_FIRST_FAULT_NS + fault.time_ns) // 2,)
    ]
    for fault in _draw_faults(random, ("bit rot",), plan.calm_ns):
        if fault.time_ns >= begin_ns:
            # To files of queues, or to the checkpoint that tells of them (faults/disk_faults.py).
            begins_at = 0.2 if fault.amount < 0.5 else 0.6
            faults.append(replace(fault, amount=begins_at + 0.2 * (2 * fault.amount % 1)))
    usual = Limits()
    limits = replace(
        plan.limits,
        snapshot_entries=random.choice(_SNAPSHOT_ENTRIES),
        hour_ms=usual.hour_ms,
        reserved_hours=usual.reserved_hours,
    )
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.time_ns)), limits=limits)


def _with_second_group(plan: Plan, kinds: tuple[str, ...]) -> Plan:
    """Adds, to a share of the plans, a second group, which those of the kinds hit that can, each group at its own
    times.
    """
    if stream(f"dense number of groups {plan.seed}").random() >= _TWO_GROUPS_SHARE:
        return plan
    faults, of_second = plan.faults, tuple(kind for kind in kinds if is_of_second_group(kind, plan.flush))
    if of_second:
        drawn = _draw_faults(stream(f"dense second group {plan.seed}"), of_second, plan.calm_ns)
        faults = tuple(
            sorted((*faults, *(replace(fault, group=1) for fault in drawn)), key=lambda fault: fault.time_ns)
        )
    return replace(plan, groups=2, actors=over_groups(plan.actors), faults=faults)


def _draw_actors(random: Random, seed: int) -> tuple[str, ...]:
    """Draws up to two actors beside those that every run has."""
    others = [name for name, actor in ACTORS.items() if 0 < actor.share < 1]
    chosen = random.sample(others, random.randrange(_ACTORS_MAX + 1))
    if random.random() < _OWN_ACTOR_SHARE:
        chosen = [*chosen[: _ACTORS_MAX - 1], _OWN_ACTOR]
    for name, share in _LATER_ACTORS.items():
        if stream(f"dense {name} {seed}").random() < share:
            chosen = [*chosen[: _ACTORS_MAX - 1], name]
    stands_still = stream(f"client pause {seed}").random() < _LATER_KINDS["client pause"]
    if stands_still and stream(f"paused clerks {seed}").random() < _CLERKS_SHARE:
        chosen = [*chosen[: _ACTORS_MAX - 1], "clerk"]
    chosen += [
        name for name, share in _BESIDE_ACTORS.items() if stream(f"dense {name} {seed}").random() < share
    ]
    return tuple(name for name, actor in ACTORS.items() if actor.share >= 1 or name in chosen)


def _draw_faults(random: Random, kinds: tuple[str, ...], calm_ns: int) -> tuple[Fault, ...]:
    """Draws faults of these kinds, in any order; all are over at `calm_ns`."""
    faults = []
    mean_gap_ns = int(random.uniform(*_GAPS_S) * SECOND)
    at = _FIRST_FAULT_NS + random.randrange(mean_gap_ns)
    while at < calm_ns:
        faults.append(draw_fault(random, random.choice(kinds), at, _RHYTHM, calm_ns))
        at += int(random.expovariate(1 / mean_gap_ns)) + _GAP_NS_MIN
    return tuple(faults)


def _with_all(
    seed: int, kinds: tuple[str, ...], faults: tuple[Fault, ...], calm_ns: int
) -> tuple[Fault, ...]:
    """Adds a fault of each kind that the draw has left out, so that the pairs of the covering array meet indeed."""
    random = stream(f"left out {seed}")
    for kind in kinds:
        if all(fault.kind != kind for fault in faults):
            at = random.randrange(_FIRST_FAULT_NS, calm_ns)
            faults = (*faults, draw_fault(random, kind, at, _RHYTHM, calm_ns))
    return tuple(sorted(faults, key=lambda fault: fault.time_ns))


def _with_changes_of_members(seed: int, faults: tuple[Fault, ...], calm_ns: int) -> tuple[Fault, ...]:
    """Adds, in a share of the plans, operators who change the members all the time, whatever else befalls the group."""
    random = stream(f"members {seed}")
    if random.random() >= _RESTLESS_SHARE:
        return faults
    changes = _draw_faults(random, ("membership",), calm_ns)
    return tuple(sorted((*faults, *changes), key=lambda fault: fault.time_ns))


def _with_later_kinds(seed: int, faults: tuple[Fault, ...], calm_ns: int) -> tuple[Fault, ...]:
    """Adds changes of the members, and choreographies that are in no covering array, to their shares of the plans."""
    faults = _with_changes_of_members(seed, faults, calm_ns)
    for kind, share in _LATER_KINDS.items():
        random = stream(f"{kind} {seed}")
        if random.random() < share:
            faults = (*faults, *_draw_faults(random, (kind,), calm_ns))
    return tuple(sorted(faults, key=lambda fault: fault.time_ns))


def _draw_limits(random: Random) -> Limits:
    """Draws each limit by itself, small more often than not."""
    usual = Limits()

    def small(default: int, *smaller: int) -> int:
        return random.choice(smaller) if random.random() < _SMALL_SHARE else default

    # Retention by age has two settings, of which one alone changes nothing in a run of a minute.
    keeps_seconds = random.random() < _SMALL_SHARE
    append_bytes = small(usual.append_bytes, 512, 2048, 8192)
    return Limits(
        append_bytes=append_bytes,
        snapshot_entries=small(usual.snapshot_entries, 20, 100, 500),
        catch_up_entries=small(usual.catch_up_entries, 1, 10, 100),
        pull_bytes=small(usual.pull_bytes, 1, 1000, 4000),
        hour_ms=1000 if keeps_seconds else usual.hour_ms,
        reserved_hours=random.choice((3, 6, 12)) if keeps_seconds else usual.reserved_hours,
        window_bytes=small(usual.window_bytes, append_bytes, 2 * append_bytes, 8 * append_bytes),
        pending_messages=small(usual.pending_messages, 8, 32, 128),
        open_transactions=small(usual.open_transactions, 2, 10),
        held_pulls=small(usual.held_pulls, 1, 4),
        log_index_units=small(usual.log_index_units, 16, 64),
        queue_units=small(usual.queue_units, 4, 16),
        index_slots=small(usual.index_slots, 1, 7),
        index_entries=small(usual.index_entries, 20, 50),
        pending_bytes=small(usual.pending_bytes, 1024 * 1024),
    )


def _with_later_limits(seed: int, limits: Limits) -> Limits:
    """Makes the limits of what is done at once small, in a share of the plans."""
    random = stream(f"later limits {seed}")
    if random.random() >= _LATER_LIMITS_SHARE:
        return limits
    return replace(
        limits,
        deliveries=random.choice((1, 3, limits.deliveries)),
        delivery_bytes=random.choice((1, 1000, limits.delivery_bytes)),
        scanned_units=random.choice((1, 7, limits.scanned_units)),
        timer_run_units=random.choice((2, 8)),
    )


def _draw_shape(random: Random, nodes: int) -> Shape:
    """Draws what operators do with the members: 3 to 2 to 3, two learners at once, two spare machines."""
    return Shape(
        spares=random.choice((1, 2, 2)),
        fewest_voters=random.choice((2, nodes - 1, nodes)),
        most_learners=random.choice((1, 2, 2)),
        prefers_first=random.random() < _PREFERRED_SHARE,
    )
