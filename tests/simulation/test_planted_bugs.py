"""The simulator finds known mistakes: those that need few seeds, so that every change runs them.

docs/simulation.md has the table of all; `python -m tests.simulation.planted_bugs` makes it.
"""

from dataclasses import replace
from random import Random

import pytest

from simulation.plan import Fault, Plan
from simulation.scheduler import SECOND
from simulation.world import run_plan
from tests.simulation.planted_bugs import PLANTED, hunt, plan_of

_SEEDS = 4

_FOUND_AS: dict[str, tuple[str, ...]] = {
    "vote not persisted": ("votes are durable",),
    "term and vote not saved": ("votes are durable",),
    "commit by one disk": ("durability",),
    "follower acknowledges before its flush": ("durability",),
    "acknowledged before the flush": ("durability",),
    "part of the flush left out": ("durability",),
    "queues built before commit": ("durability",),
    "unit at the wrong place": ("reads leave nothing out",),
    "transaction: finished ones not in the snapshot": ("one operation message",),
    "transaction: questions not counted": ("questions are counted",),
    "order: every lock is granted": ("handled under its own lock",),
    "order: locks forgotten with their leader": ("handled under its own lock",),
    "order: position read before the lock": ("order without gaps or steps back",),
    "offset rewind after failover": ("acknowledged offsets are committed",),
    "offsets applied by the leader only": ("stored offsets are linearizable",),
    "offsets rewound": ("stored offsets are linearizable", "order without gaps or steps back"),
}


@pytest.mark.parametrize("name", _FOUND_AS)
def test_a_planted_mistake_is_found(name: str) -> None:
    result = hunt(PLANTED[name], range(_SEEDS))
    assert result is not None, f"{name!r} was not found within {_SEEDS} seeds"
    assert result.violation is not None
    allowed = (
        *_FOUND_AS[name],
        "a node fails",
        "state machine safety",
        "dispatch after commit",
        "queue agrees with log",
        "decided as it should be",
        "committed once",
    )
    assert result.violation.invariant in allowed, str(result.violation)


_AIMED = {
    "stale read from a deposed leader": (("depose",), 4.0, "the end of a queue is linearizable"),
    "read index without a round": (("depose",), 4.0, "the end of a queue is linearizable"),
    "previous entry not looked at": (("depose",), 4.0, "state machine safety"),
    "peer forgotten after its link broke": (("link",), 4.0, "liveness"),
    "double vote": (("rivals",), 1.0, "one vote a term"),
    "membership change before commit": (("membership",), 1.0, "one member at a time"),
    "lost no-op": (("kill", "power", "transfer"), 1.5, "commit by current term"),
    "CRC unchecked": (("messages",), 2.0, "log matching"),
    "index file not rebuilt": (("power", "bit rot"), 1.5, "index agrees with log"),
}
"""By mistake: the faults of which its situation is made, their mean distance in seconds, and what it is found as."""


def _aimed_plan(name: str, seed: int) -> Plan:
    """40 s, half of it full of the faults that the mistake needs, and no others."""
    kinds, gap_s, _ = _AIMED[name]
    random = Random(seed)
    faults = []
    at_s = 5.0
    while at_s < 19:
        duration_ns = int(random.uniform(0, 5) * SECOND)
        kind = random.choice(kinds)
        faults.append(
            Fault(int(at_s * SECOND), kind, random.randrange(1 << 16), duration_ns, random.random())
        )
        at_s += 2 * gap_s * random.random()
    return replace(plan_of(PLANTED[name], seed), faults=tuple(faults))


@pytest.mark.slow
@pytest.mark.parametrize("name", _AIMED)
def test_a_mistake_of_a_rare_situation_is_found_where_that_is_made(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    PLANTED[name].patch(monkeypatch)
    found = []
    for seed in range(12):
        violation = run_plan(_aimed_plan(name, seed)).violation
        if violation is not None:
            found.append(violation.invariant)
            break
    allowed = (_AIMED[name][2], "stored offsets are linearizable", "the end of a queue is linearizable")
    assert found, f"{name!r} was not found within 12 seeds"
    assert found[0] in (*allowed, "state machine safety", "log matching", "election safety"), found
