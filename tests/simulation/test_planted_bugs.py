"""The simulator finds known mistakes: those that need few seeds, so that every change runs them.

docs/simulation.md has the table of all; `python -m tests.simulation.planted_bugs` makes it.
"""

import pytest

from tests.simulation.aimed_plans import AIMED, AIMED_SEEDS, hunt_aimed
from tests.simulation.planted_bugs import PLANTED, hunt

_SEEDS = 4

_FOUND_AS: dict[str, tuple[str, ...]] = {
    "vote not persisted": ("votes are durable",),
    "term and vote not saved": ("votes are durable",),
    "commit by one disk": ("durability",),
    "follower acknowledges before its flush": ("durability",),
    "acknowledged before the flush": ("durability",),
    "release: format raised when a majority reads it": ("a node fails",),
    "part of the flush left out": ("durability",),
    "async: never flushed at the interval": ("durability",),
    "async: page cache taken for the disk": ("durability",),
    "queues built before commit": ("durability",),
    "arrivals told twice": ("dispatch in order",),
    "unit at the wrong place": ("reads leave nothing out",),
    "transaction: finished ones not in the snapshot": ("one operation message",),
    "transaction: questions not counted": ("questions are counted",),
    "transaction: half message in its own topic": ("no half message visible",),
    "transaction: given up after two questions": ("given up after all questions",),
    "transaction: acknowledged before it is committed": ("acknowledged decisions are committed",),
    "transaction: unknown taken for rollback": ("decided as it should be",),
    "timer: judged by the leader's wall clock": ("no delay is cut short",),
    "order: done with before it is handled": ("positions follow handling",),
    "order: every lock is granted": ("handled under its own lock", "one holder of an ordered queue"),
    "order: position read before the lock": ("order without gaps or steps back",),
    "retry: delays do not grow": ("delays grow",),
    "retry: due at once": ("no retry is early",),
    "retry: not counted": ("retries are counted",),
    "retry: the last one dropped": ("what was taken back is committed",),
    "retry: confirmed before it is committed": ("what was taken back is committed",),
    "retry: property lost": ("what comes again is what was sent",),
    "retry: without end": ("retries are counted",),
    "retry: nothing counted at takeover": ("each retry comes once, after waiting",),
    "request: answer pushed to another client": ("a confirmed answer has arrived",),
    "request: answer given to whoever waits": ("answers reach who asked",),
    "request: waited for without a limit": ("calls end in time",),
    "one way: sent twice": ("committed once",),
    "outbox: last come, first sent": ("an outbox keeps its order",),
    "pull: older position stored again": ("a puller's position stays",),
    "search: passes the first of a time": ("offsets by time are exact",),
    "earliest time of the end": ("the begin of a queue is linearizable",),
    "index: only the first key": ("what has the key is found",),
    "reset: force ignored": ("resets are ordered",),
    "reset: acknowledged before it is committed": ("acknowledged resets are in the log",),
    "reset: of one queue for all": ("resets are ordered",),
    "names: wiped for good": ("name servers answer by what was asked",),
    "names: wiped queues are written": ("nothing is sent where nothing may be written",),
    "names: wiped queues are not read": ("what may not be written can be read",),
    "names: wiped route is kept": ("what may be written again is written",),
    "names: waits until it may write": ("sends end in time",),
    "names: strangers are let in": ("strangers register nothing",),
    "names: answers remembered": ("clients are told what was configured",),
    "settings: acknowledged before it is committed": ("acknowledged settings are in the log",),
    "settings: group's switch not looked at": ("who may not read reads nothing",),
    "settings: refused for good": ("who may read is not refused",),
    "offset rewind after failover": (
        "acknowledged offsets are committed",
        "positions are stored when clients ask",
    ),
    "offsets applied by the leader only": ("stored offsets are linearizable",),
    "offsets rewound": ("stored offsets are linearizable", "order without gaps or steps back"),
}

_FOUND_BY = {
    "failed flush of a stop passed over": 2,
    "order: lock counted on for ever": 1,
    "previous entry not looked at": 9,
    "stale read from a deposed leader": 3,
    "read index without a round": 5,
    "lost no-op": 4,
    "peer forgotten after its link broke": 2,
    "queue damage not looked for": 1,
    "orderly stop without the last flush": 1,
    "pull: forward of another term acted on": 9,
    "timer: announced taken for delivered": 2,
    "retry: announced taken for delivered": 4,
    "retry: done with before it is confirmed": 5,
}
"""Where an aimed hunt begins: the seed that found the mistake when these were looked up; without it, the first.

Those before it are whole runs that find nothing. Seeds come to mean other runs as the code changes: then another does.
"""


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("name", AIMED)
def test_a_mistake_of_a_rare_situation_is_found_where_that_is_made(name: str) -> None:
    result = hunt_aimed(name, _FOUND_BY.get(name, 0))
    assert result is not None, f"{name!r} was not found within {AIMED_SEEDS} seeds"
    assert result.violation is not None
    aim = AIMED[name]
    allowed = (
        aim.found_as,
        *aim.or_as,
        "stored offsets are linearizable",
        "the end of a queue is linearizable",
    )
    found = result.violation.invariant
    assert found in (*allowed, "state machine safety", "log matching", "election safety"), str(
        result.violation
    )
