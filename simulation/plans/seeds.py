"""The plan of a seed, as `trivet simulate` runs it: two in five seeds are dense, the others swarms.

Of these one in six comes to a core that is left alone (simulation/plans/lasting.py).
"""

from dataclasses import replace
from typing import Final

from simulation.plans.dense import draw_dense_plan
from simulation.plans.fault_times import Rhythm, draw_faults
from simulation.plans.lasting import with_core, with_overload
from simulation.plans.plan import LEADER, Fault, Plan
from simulation.plans.room import with_founder, with_little_room
from simulation.plans.swarm import draw_swarm_plan
from simulation.randomness import Random, stream
from simulation.scheduler import MILLISECOND, SECOND

_OUT_OF: Final = 5
_DENSE: Final = (1, 3)
"""The seeds whose number leaves one of these when it is divided by `_OUT_OF`."""
_NODES: Final = 3
_CORE: Final = 4
"""The seeds whose number ends so come to a core; half of them have five nodes."""
_OVERLOAD: Final = 7
"""The seeds whose number ends so are overloaded for a while."""
_DAMAGE_SHARE: Final = 0.3
_DAMAGE_RHYTHM: Final = Rhythm(
    begin_ns=8 * SECOND,  # by then there are old files
    first_within_ns=4 * SECOND,
    mean_gaps_s=(1, 2, 4),
    gap_ns_min=100 * MILLISECOND,
    durations_ns_max=(100 * MILLISECOND,),
)
_STANDS_STILL_SHARE: Final = 0.4
"""The share of the seeds with suspensions."""
_STANDS_STILL_NS: Final = 6 * SECOND
_STRANGERS_SHARE: Final = 0.15
_REPORTS_SHARE: Final = 0.4
_BESIDE_ACTORS: Final = {"postponer": 0.2, "subscriber": 0.2, "waverer": 0.15}
"""Actors that come beside those of a seed, with their shares."""
_LITTLE_ROOM_SHARE: Final = 0.3
_FEW_AT_ONCE: Final = 0.5
"""The share of the plans with one of them in which little is looked at, or waits for a majority, at once."""
_SUSPEND_SHARE: Final = 0.1
_SUSPEND_RHYTHM: Final = Rhythm(
    begin_ns=6 * SECOND,
    first_within_ns=4 * SECOND,
    mean_gaps_s=(1, 2, 4),
    gap_ns_min=200 * MILLISECOND,
    durations_ns_max=(500 * MILLISECOND, 2 * SECOND),  # a leader that is away for long leads no more
)
_MOMENTS_SHARE: Final = 0.5
_OTHER_WORK_SHARE: Final = 0.2
_CLIENT_PAUSE_SHARE: Final = 0.2
_DESCRIPTORS_SHARE: Final = 0.15
_BESIDE_RHYTHM: Final = Rhythm(
    begin_ns=5 * SECOND,
    first_within_ns=4 * SECOND,
    mean_gaps_s=(1, 2, 4),
    gap_ns_min=100 * MILLISECOND,
    durations_ns_max=(100 * MILLISECOND, SECOND, 3 * SECOND),
)
_UNHEARD_SHARE: Final = 0.12
_UNHEARD_FILE_BYTES: Final = (16 * 1024, 32 * 1024)
"""A file of the log is full in a second or two, and can be deleted in as many."""
_UNHEARD_APPEND_BYTES: Final = 8192
_ENDS_EARLY_SHARE: Final = 0.5
_IDLE_SHARE: Final = 0.1
_IDLE_NS: Final = 150 * SECOND
"""Longer than anything that a node, a client or a name server waits for before it calls another one silent or idle."""
_AWAKE_NS: Final = 8 * SECOND
"""The time in which clients work again behind it."""
_MAY_REST: Final = frozenset(
    {
        *("producer", "repeater", "careful", "consumer", "administrator", "operator"),
        *("transactor", "scheduler", "courier", "poster"),
    }
)
"""Actors of which nothing comes while the load has stopped."""
_SNAPSHOT_ENTRIES: Final = (100, 500, 200_000)


def plan_of_seed(seed: int, *, seconds: int = 60, nodes: int | None = None) -> Plan:
    """Draws the plan of a seed; `nodes` None: as drawn, of a swarm three.

    `seconds` is the whole run, but for dense plans that end early: these have 10 s more, and seldom need them.
    """
    if seed % 10 == _CORE:
        drawn_nodes = 5 if seed // 10 % 2 else _NODES
        return with_core(draw_swarm_plan(seed, seconds=seconds, nodes=nodes or drawn_nodes))
    if seed % 10 == _OVERLOAD:
        return with_overload(draw_swarm_plan(seed, seconds=seconds, nodes=nodes or _NODES, groups=1))
    if seed % _OUT_OF not in _DENSE:
        swarm = draw_swarm_plan(seed, seconds=seconds, nodes=nodes or _NODES)
        plan = _with_reports(_with_strangers(_with_suspensions(_with_damage(swarm))))
        plan = _beside(plan, "at a moment", _MOMENTS_SHARE, "moments")
        plan = _beside(plan, "other work", _OTHER_WORK_SHARE, "other work")
        plan = _beside(plan, "client pause", _CLIENT_PAUSE_SHARE, "client pause")
        plan = _beside(plan, "no descriptors", _DESCRIPTORS_SHARE, "no descriptors")
        plan = with_founder(_with_actors(plan))
        plan = _with_idle_stretch(_ends_early(_with_unheard(plan)))
        return with_little_room(plan, _LITTLE_ROOM_SHARE)
    # Dense seeds are counted by themselves: each run of `round_length()` of them makes all pairs of kinds meet.
    number = seed // _OUT_OF * len(_DENSE) + _DENSE.index(seed % _OUT_OF)
    return draw_dense_plan(seed, number, seconds=seconds, nodes=nodes)


def _with_damage(plan: Plan) -> Plan:
    """Adds, to a share of the plans, damage on the disk of a running node; all else of them stays as it was."""
    random = stream(f"damage {plan.seed}")
    if random.random() >= _DAMAGE_SHARE:
        return plan
    return damaged_plan(plan)


def _with_strangers(plan: Plan) -> Plan:
    """Adds, to a share of the plans, strangers who take places; all else that is drawn stays as it was."""
    if stream(f"strangers {plan.seed}").random() >= _STRANGERS_SHARE:
        return plan
    return replace(plan, actors=(*plan.actors, "stranger"))


def _with_reports(plan: Plan) -> Plan:
    """Adds, to a share of the plans of one group, reports that nobody waits for; all else that is drawn stays as it
    was.
    """
    if plan.groups > 1 or stream(f"reports {plan.seed}").random() >= _REPORTS_SHARE:
        return plan
    return replace(plan, actors=(*plan.actors, "reporter"))


def _with_actors(plan: Plan) -> Plan:
    """Adds, to shares of the plans of one group, actors that none of them draws, and to half of these little room for
    what they do at once; all else that is drawn stays as it was.
    """
    chosen = [
        name for name, share in _BESIDE_ACTORS.items() if stream(f"{name} {plan.seed}").random() < share
    ]
    if plan.groups > 1 or not chosen:
        return plan
    limits, random = plan.limits, stream(f"few at once {plan.seed}")
    if random.random() < _FEW_AT_ONCE:
        limits = replace(limits, scanned_units=random.choice((1, 7)), pending_messages=random.choice((8, 32)))
    return replace(plan, actors=(*plan.actors, *chosen), limits=limits)


def _with_suspensions(plan: Plan) -> Plan:
    """Has machines suspended in a share of the plans, in some of which nothing else happens."""
    random = stream(f"suspend {plan.seed}")
    if random.random() >= _SUSPEND_SHARE:
        return plan
    if random.random() < _STANDS_STILL_SHARE:
        return replace(plan, faults=tuple(leader_stands_still(random, plan.calm_ns)))
    return _with_faults(plan, draw_faults(random, "suspend", _SUSPEND_RHYTHM, plan.calm_ns))


def leader_stands_still(random: Random, end_ns: int) -> list[Fault]:
    """Has the leader's machine suspended three times in a row, each time for less than it takes to lose the lead, and
    leadership go over some seconds behind that; all of it again and again until `end_ns`.

    Who follows goes back by an eighth of the time that passes, so what one short suspension takes is made up for before
    anybody could see whether the leader is believed; and other faults bring other leaders, whose first words count.
    """
    faults: list[Fault] = []
    at_ns = _STANDS_STILL_NS
    while at_ns < end_ns:
        for _ in range(3):
            duration_ns = random.randrange(600, 900) * MILLISECOND
            faults.append(Fault(at_ns, "suspend", LEADER, duration_ns, random.random()))
            at_ns += 1300 * MILLISECOND
        at_ns += random.randrange(4400, 5500) * MILLISECOND
        faults.append(Fault(at_ns, "transfer", 0, SECOND, random.random()))
        at_ns += random.randrange(1000, 4000) * MILLISECOND
    return [fault for fault in faults if fault.time_ns + fault.duration_ns < end_ns]


def _beside(plan: Plan, kind: str, share: float, name: str) -> Plan:
    """Adds, to a share of the plans, faults of a kind, from the stream of that name; all else stays as it was."""
    random = stream(f"{name} {plan.seed}")
    if random.random() >= share:
        return plan
    return _with_faults(plan, draw_faults(random, kind, _BESIDE_RHYTHM, plan.calm_ns))


def _with_unheard(plan: Plan) -> Plan:
    """Has leaders know less of a follower than that has, in a share of the plans, in which nothing else happens: for
    seconds the same node must lead, and delete.
    """
    random = stream(f"unheard {plan.seed}")
    if random.random() >= _UNHEARD_SHARE:
        return plan
    faults = draw_faults(random, "more than is known", _BESIDE_RHYTHM, plan.calm_ns)
    limits = replace(plan.limits, append_bytes=_UNHEARD_APPEND_BYTES)  # many go out that nobody answers
    file_bytes = random.choice(_UNHEARD_FILE_BYTES)
    return replace(plan, faults=tuple(faults), data_file_bytes=file_bytes, limits=limits)


def _ends_early(plan: Plan) -> Plan:
    """Has half of the plans end as soon as all is well again; until then they are what they were."""
    return replace(plan, ends_early=stream(f"ends early {plan.seed}").random() < _ENDS_EARLY_SHARE)


def _with_idle_stretch(plan: Plan) -> Plan:
    return idle_plan(plan) if stream(f"idle {plan.seed}").random() < _IDLE_SHARE else plan


def idle_plan(plan: Plan) -> Plan:
    """Returns the plan with clients that are quiet for minutes once the faults are over, and go on behind that."""
    return replace(
        plan,
        actors=tuple(name for name in plan.actors if name in _MAY_REST),
        idle_ns=_IDLE_NS,
        ends_early=False,
        end_ns=plan.end_ns + _IDLE_NS + _AWAKE_NS,
    )


def _with_faults(plan: Plan, faults: list[Fault]) -> Plan:
    return replace(plan, faults=tuple(sorted((*plan.faults, *faults), key=lambda fault: fault.time_ns)))


def damaged_plan(plan: Plan) -> Plan:
    """Returns the plan with damage on the disk of a running node, and with a snapshot now and then."""
    random = stream(f"damage of {plan.seed}")
    faults = draw_faults(random, "damage", _DAMAGE_RHYTHM, plan.calm_ns)
    limits = replace(plan.limits, snapshot_entries=random.choice(_SNAPSHOT_ENTRIES))
    return replace(_with_faults(plan, faults), limits=limits)


def dense_seed(number: int) -> int:
    """Returns the dense seed of that number, counted from 0: where tests and hunts begin."""
    return number // len(_DENSE) * _OUT_OF + _DENSE[number % len(_DENSE)]
