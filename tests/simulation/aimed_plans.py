"""Plans full of the faults that make one rare situation, for planted mistakes that show in nothing else.

A seed of the simulator draws from all kinds of faults, and some situations come up in one of dozens: a leader deposed
while clients still ask it, a power failure between a batch's announcement and the batch. What the plans here show is
that the world can make the situation and that an invariant sees it; how long drawn plans take is in the table of
docs/planted-mistakes.md beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

import pytest

from simulation.faults.cores import KINDS
from simulation.faults.moments import MOMENTS
from simulation.faults.strikes import STRIKES
from simulation.judges.beliefs import HELD, LEFT, PROMOTED
from simulation.judges.in_hand import LOOKED_FOR
from simulation.judges.log_heads import SERVES
from simulation.judges.own_state import FLUSHED
from simulation.judges.recoveries import ALL_TOLD, APPENDED, COMMITTED, USED
from simulation.judges.steps import PROMISED, STALE
from simulation.plans.plan import Fault, Limits, Plan, Shape
from simulation.plans.seeds import leader_stands_still
from simulation.scheduler import SECOND
from simulation.world.running import Result
from tests.simulation.planted_bugs import PLANTED, UNAIDED, plan_of, run_planted

AIMED_SEEDS = 40
"""Each is found within so many."""

Schedule = Callable[[Random], list[Fault]]

_BEGIN_S, _END_S = 5.0, 19.0
"""Faults come in this time of a run of 40 s."""


@dataclass(frozen=True, slots=True)
class Aim:
    """The faults of which a situation is made, the invariant that sees the mistake, the settings that it takes.

    `or_as` are others that may see it first.
    """

    faults: Schedule
    found_as: str
    settings: dict[str, Any] = field(default_factory=dict)
    or_as: tuple[str, ...] = ()


def _often(
    *kinds: str, gap_s: float, seconds: tuple[float, float] = (0.0, 5.0), end_s: float = _END_S
) -> Schedule:
    """Faults of these kinds in turn, on average every `gap_s` until `end_s`, each for so many seconds."""

    def draw(random: Random) -> list[Fault]:
        faults = []
        at_s = _BEGIN_S
        while at_s < end_s:
            duration_ns = int(random.uniform(*seconds) * SECOND)
            kind = random.choice(kinds)
            faults.append(
                Fault(int(at_s * SECOND), kind, random.randrange(1 << 16), duration_ns, random.random())
            )
            at_s += 2 * gap_s * random.random()
        return faults

    return draw


LOST: Final = tuple(name for name in STRIKES if "lost" in name or "hear" in name)
"""The strikes by which only words are lost."""


def at_moments(moment: str, strikes: Sequence[str], gap_s: int = 4) -> Schedule:
    """One of the strikes at each of these moments, every `gap_s`."""

    def draw(random: Random) -> list[Fault]:
        faults = []
        for at_s in range(int(_BEGIN_S), int(_END_S), gap_s):
            number = tuple(MOMENTS).index(moment) + len(MOMENTS) * random.randrange(1000)
            strike = tuple(STRIKES).index(random.choice(strikes))
            faults.append(
                Fault(
                    at_s * SECOND,
                    "at a moment",
                    number << 1,
                    random.randrange(SECOND),
                    (strike + 0.5) / len(STRIKES),
                )
            )
        return faults

    return draw


def _power_within_a_batch(random: Random) -> list[Fault]:
    """Disks are slow, the leader's clock is set forward so that much falls due at once, and power fails in between.

    A batch is a page of the disk or less, so that most failures leave all of it or nothing: it takes many of them.
    """
    end_s = 40.0
    slow_ns = int((end_s - _BEGIN_S) * SECOND)
    faults = [Fault(int(_BEGIN_S * SECOND), "slow disk", 2 * node, slow_ns, 0.9) for node in range(3)]
    at_s = _BEGIN_S + 2
    while at_s < end_s:
        faults.append(Fault(int(at_s * SECOND), "wall jump", 1, 0, 0.5 + 0.5 * random.random()))
        failure_ns = int((at_s + 0.5 * random.random()) * SECOND)
        faults.append(Fault(failure_ns, "power of all", 0, SECOND // 5, 0.5))
        at_s += 2.5 + random.random()
    return faults


def _clients_cut_off(random: Random) -> list[Fault]:
    """Some clients, others each time, hear nothing of any broker for longer than a lock lives."""
    return [
        replace(fault, target=fault.target << _FIRST_CLIENT)
        for fault in _often("partition", gap_s=4, seconds=(9, 12))(random)
    ]


def _leaders_lost(end_s: float, *kinds: str) -> Schedule:
    """Disks take their time, and leadership moves, by request or by a crash: clients ask followers, which forward.

    `kinds`: by which it moves instead.
    """

    def draw(random: Random) -> list[Fault]:
        slow_ns = int((end_s - _BEGIN_S) * SECOND)
        faults = [Fault(int(_BEGIN_S * SECOND), "slow disk", 2 * node, slow_ns, 0.7) for node in range(3)]
        return faults + _often(*(kinds or ("transfer", "kill")), gap_s=0.7, seconds=(0, 1), end_s=end_s)(
            random
        )

    return draw


_leaders_lost_with_requests_under_way = _leaders_lost(_END_S)


def _deposed_with_all_clients(random: Random) -> list[Fault]:
    """All clients stay with the leader that is deposed: its log goes on, and nobody else's does.

    The others change their leader once more. That one asks first about an entry that only its own term's leader wrote,
    where the deposed one has others.
    """
    return [replace(fault, target=0, amount=fault.amount / 2) for fault in _often("depose", gap_s=4)(random)]


def _answers_cut_off(random: Random) -> list[Fault]:
    """For longer than all questions take, brokers hear nothing of two clients, which hear everything.

    What those answer arrives afterwards.
    """
    at_ns = int(random.uniform(_BEGIN_S, _BEGIN_S + 4) * SECOND)
    clients = (5, 6)  # of the two name servers, an administrator, two operators and two transactors
    return [
        Fault(at_ns, "cut one way", (1 << 8) | broker << 1, 19 * SECOND, 0.6 + 0.4 * (client + 0.5) / 7)
        for broker in range(3)
        for client in clients
    ]


def _stops_of_failing_disks(random: Random) -> list[Fault]:
    """Disks take their time, so that flushes are out while leadership goes.

    A flush of every second stop fails; behind the others the power does, and shows what a disk really has.
    """
    slow_ns = int((_END_S - _BEGIN_S) * SECOND)
    faults = [Fault(int(_BEGIN_S * SECOND), "slow disk", 2 * node, slow_ns, 0.5) for node in range(3)]
    stops = _often("stop", gap_s=0.5, seconds=(0, 0.2))(random)
    return faults + [
        replace(stop, amount=0.19 * stop.amount if number % 2 else 0.5 + 0.3 * stop.amount)
        for number, stop in enumerate(stops)
    ]


def _stops_before_power_fails(random: Random) -> list[Fault]:
    """Behind each stop power fails, and shows what the stop has left in the page cache."""
    stops = _often("stop", gap_s=1, seconds=(0, 0.5))(random)
    return [replace(stop, amount=0.5 + 0.29 * stop.amount) for stop in stops]


def _core_left_alone(
    *kinds: str, before: Schedule = lambda random: [], leader_outside: bool = True
) -> Schedule:
    """Two of three nodes are left alone while the third one is broken for good, in one of these ways."""

    def draw(random: Random) -> list[Fault]:
        faults = before(random)
        begin_ns = int((_BEGIN_S + 3 * random.random()) * SECOND)
        begin_ns = max(begin_ns, *(fault.time_ns + fault.duration_ns for fault in faults), 0)
        amount = (KINDS.index(random.choice(kinds)) + 0.5) / len(KINDS)
        target = random.randrange(1 << 15) << 1 | leader_outside
        return [*faults, Fault(begin_ns, "core", target, _LEFT_ALONE_NS, amount)]

    return draw


def _overload(random: Random) -> list[Fault]:
    """A crowd sends for some seconds over slow disks, and nothing else happens."""
    return [Fault(int(_BEGIN_S * SECOND), "overload", 0, 4 * SECOND, random.random())]


_SHORT_LIVES: Final = {
    "think_ms": 300,
    "data_file_bytes": 16 * 1024,
    "limits": Limits(hour_ms=1000, reserved_hours=3, snapshot_entries=20),
}
"""Messages are kept for three seconds, in small files."""

_SNAPSHOTS: Final = {
    "think_ms": 100,
    "data_file_bytes": 16 * 1024,
    "flush": "sync",
    "actors": ("administrator", "producer", "consumer", "courier"),
    "limits": Limits(snapshot_entries=20),
}
"""Files of the log are full in a second, and the state has some hundred rows."""
_BEHIND_EACH_OTHER_S: Final = 7
"""Longer than a node is down that is to need a snapshot: no other one is down when its snapshot is on its way."""

_CROWDED = {
    "nodes": 3,
    "flush": "sync",
    "think_ms": 300,
    "actors": ("administrator", "producer", "consumer", "crowd"),
    "calm_ns": 30 * SECOND,
    "end_ns": 50 * SECOND,
    "limits": Limits(pending_messages=16, pending_bytes=1024 * 1024, held_pulls=1),
}


def _long_partitions(random: Random) -> list[Fault]:
    """A node is cut off for so long that its links break, and are dialled in vain."""
    return [Fault(int(2.5 * SECOND), "isolate", random.randrange(1 << 16), int(7.4 * SECOND), 0.1)]


_LEFT_ALONE_NS = 27 * SECOND
_CORE = {
    "nodes": 3,
    "think_ms": 300,
    "actors": ("administrator", "producer", "consumer"),
    "calm_ns": 32 * SECOND,
    "end_ns": 50 * SECOND,
}
_FIRST_CLIENT = 6
"""Where clients begin among the hosts that a partition counts, behind three brokers, a spare and two name servers."""
_BEGIN_OF_A_QUEUE = "the begin of a queue is linearizable"
_UNTIL_LATE = {"calm_ns": 42 * SECOND, "end_ns": 62 * SECOND}
_LONGER = {"flush": "sync", "data_file_bytes": 16 * 1024, **_UNTIL_LATE}
_END_OF_A_QUEUE = "the end of a queue is linearizable"
_SYNC = {"flush": "sync"}


def _with(actor: str) -> dict[str, Any]:
    """Nobody but this one writes, so that the runs are short."""
    return {"actors": ("administrator", "operator", actor)}


_FOUNDER: Final = {
    "actors": ("producer", "administrator", "operator", "founder"),
    "limits": replace(Limits(), topics=50, groups=28, stored_offsets=130),
}
"""There is room for few topics, and somebody who fills it."""


def _snapshots_struck(moment: str, *strikes: str, found_as: str) -> Aim:
    faults = at_moments(moment, strikes, _BEHIND_EACH_OTHER_S)
    return Aim(faults, found_as, _SNAPSHOTS, or_as=("a core keeps up",))


AIMED: dict[str, Aim] = {
    "stale read from a deposed leader": Aim(_often("depose", gap_s=4), _END_OF_A_QUEUE),
    "read index without a round": Aim(_often("depose", gap_s=4), _END_OF_A_QUEUE),
    "previous entry not looked at": Aim(
        _deposed_with_all_clients,
        "a node fails",
        or_as=(
            "committed entries stay",
        ),  # what a follower took so is cut off, though the group has committed it
    ),
    "peer forgotten after its link broke": Aim(
        _often("link", gap_s=4),
        "liveness",
        or_as=("a core keeps up",),  # what the link lost is not sent again: seen before the run's end
    ),
    "double vote": Aim(
        _often("rivals", gap_s=1),
        "one vote a term",
        # The disk has the second vote of a term already when the first one arrives.
        or_as=("votes are durable",),
    ),
    "vote without looking at the log": Aim(
        _often("overlapping elections", "depose", gap_s=2),
        "a vote goes to a log that lacks nothing of the voter's",
    ),
    "membership change before commit": Aim(
        _often("membership", gap_s=1),
        "one member at a time",
        or_as=("a node fails",),  # nobody would hear of the change before it, which is asserted
    ),
    "lost no-op": Aim(
        _often("kill", "power", "transfer", gap_s=1.5),
        "commit by current term",
        # A leader that does not know what is committed delivers again what was delivered.
        or_as=("timed messages come once", "each retry comes once, after waiting"),
    ),
    "CRC unchecked": Aim(_often("messages", gap_s=2), "log matching"),
    "index file not rebuilt": Aim(_often("power", "bit rot", gap_s=1.5), "index agrees with log"),
    "queue damage not looked for": Aim(
        _often("bit rot", "misdirected write", gap_s=1), "queue agrees with log"
    ),
    "failed flush of a stop passed over": Aim(
        _stops_of_failing_disks,
        FLUSHED,
        {"think_ms": 100},
        or_as=("durability", "an orderly stop keeps everything", "recovery"),
    ),
    "orderly stop without the last flush": Aim(
        _stops_before_power_fails,
        "an orderly stop keeps everything",
        {"think_ms": 50, "producers": 3, "actors": ("administrator", "producer", "repeater", "scheduler")},
    ),
    "release: format raised when a majority reads it": Aim(
        _often("release", gap_s=1, seconds=(0, 3)), "a node fails"
    ),
    "old terms are heard": Aim(
        _often("messages", "rivals", gap_s=0.5, seconds=(1, 5)),
        STALE,
        or_as=("a node fails",),  # what it makes of the message may be judged before the message is
    ),
    "truncation by a stale append": Aim(
        _often("messages", "delay", gap_s=1, seconds=(1, 5)),
        "a node fails",
        # What is truncated had been acknowledged, and was counted on.
        or_as=("who votes holds what was counted on", "committed entries stay"),
    ),
    "truncation below commit": Aim(
        _often("messages", "delay", gap_s=1, seconds=(1, 5)),
        "a node fails",
        or_as=("committed entries stay",),
    ),
    "late first attempt not looked up": Aim(
        _often("clog", "cut one way", "pause", gap_s=0.7, seconds=(2, 6)),
        "no duplicates",
        {"think_ms": 150, "producers": 3, "actors": ("administrator", "producer", "poster")},
        or_as=("committed once", "stored once", LOOKED_FOR),
    ),
    # A send fails in the end only where nothing answers for longer than all its attempts take.
    "outbox: failures forgotten": Aim(
        _often("partition", "isolate", "depose", gap_s=2, seconds=(4, 8)),
        "no failure is lost",
        _with("poster"),
    ),
    "send repeated by the broker": Aim(
        _leaders_lost_with_requests_under_way,
        "failed sends leave nothing",
        _SYNC | {"think_ms": 100} | _with("producer"),
        or_as=("stored once",),
    ),
    "repeated send looked up in what is applied": Aim(
        _leaders_lost_with_requests_under_way,
        "stored once",
        _SYNC | {"think_ms": 100},
        or_as=("committed once",),
    ),
    "transaction: decision under way not known": Aim(
        _leaders_lost_with_requests_under_way,
        "committed once",
        _SYNC | _with("transactor"),
        or_as=("one operation message",),
    ),
    "transaction: only operation messages decide": Aim(
        _often("power inside", gap_s=0.7, seconds=(0, 0.5)), "committed once", _SYNC | _with("transactor")
    ),
    "transaction: given up stays open": Aim(
        _answers_cut_off,
        "decided once",
        _LONGER | {"nodes": 3} | _with("transactor"),
        or_as=("open transactions are known",),
    ),
    "timer: a clock that stood still is not believed": Aim(
        lambda random: leader_stands_still(random, 25 * SECOND),
        "the group's time goes on from leader to leader",
        _with("producer"),
    ),
    "queue ends of an earlier term": Aim(_often("transfer", gap_s=1), "queue order"),
    "settings: asked without a round": Aim(
        _often("depose", gap_s=3),
        "settings are linearizable",
        _with("warden"),
    ),
    "settings: repeated by the broker": Aim(
        _leaders_lost_with_requests_under_way,
        "an order is done once",
        _SYNC | _with("warden"),
    ),
    "reset: forgotten by the next leader": Aim(
        _often("transfer", gap_s=1), "offsets and orders are known", _with("resetter")
    ),
    "reset: old report counts": Aim(
        _often("delay", "pause", gap_s=1),
        "offsets and orders are known",
        _with("resetter"),
        or_as=("acknowledged offsets are committed",),
    ),
    "reset: what was fetched comes all the same": Aim(
        _often("clog", "pause", gap_s=1),
        "members report where they are",
        _with("resetter"),
        or_as=("members go on where they were sent",),
    ),
    # An order every 4 s, and a report that fails at the same time: that takes a while.
    "reset: failed report repeated": Aim(
        _leaders_lost(40.0),
        "members report where they are",
        _with("resetter") | _UNTIL_LATE,
    ),
    "reset: repeated by the broker": Aim(
        _leaders_lost_with_requests_under_way,
        "a reset is done once",
        _SYNC | _with("resetter"),
        or_as=("members report where they are",),
    ),
    "order: locks judged by the wall clock": Aim(
        _often("wall jump", "transfer", gap_s=1),
        "the time of order locks goes on from leader to leader",
        _with("clerk"),
        or_as=("handled under its own lock", "one holder of an ordered queue"),
    ),
    # Members come and go by themselves; what disturbs them makes it rarer.
    "order: given back before the handler has ended": Aim(
        lambda random: [], "one holder of an ordered queue", _with("clerk")
    ),
    "order: locks forgotten with their leader": Aim(
        _often("transfer", gap_s=1),
        "handled under its own lock",
        _with("clerk"),
        or_as=("one holder of an ordered queue", "order without gaps or steps back"),
    ),
    "broadcast: offset behind what is fetched": Aim(
        _often("client kill", gap_s=0.7),
        "each member gets every message",
        {"think_ms": 300, "actors": ("administrator", "producer", "receiver")},
    ),
    # With a handler at work in a client that is cut off: there are few others, or it is rarely that client.
    "order: lock counted on for ever": Aim(
        _clients_cut_off,
        "handled under its own lock",
        _with("clerk"),
        or_as=("one holder of an ordered queue",),
    ),
    "begin of another queue": Aim(
        _often("retention", gap_s=2), _BEGIN_OF_A_QUEUE, {"data_file_bytes": 16 * 1024, "queues": 4}
    ),
    "begin remembered": Aim(_often("retention", gap_s=2), _BEGIN_OF_A_QUEUE, {"data_file_bytes": 16 * 1024}),
    "begin of the leader's own log": Aim(
        _often("retention", "transfer", gap_s=1),
        _BEGIN_OF_A_QUEUE,
        {"data_file_bytes": 16 * 1024},
        # One before the group's head is found, by a question or by a reset.
        or_as=("offsets by time are exact", "resets are ordered"),
    ),
    "head: not said before a leader serves": Aim(
        _often("retention", "transfer", gap_s=1), SERVES, {"data_file_bytes": 16 * 1024}
    ),
    "head: a leader deletes of its own": Aim(
        _often("retention", gap_s=2), SERVES, {"data_file_bytes": 16 * 1024}
    ),
    "pull: forward of another term acted on": Aim(
        _often("transfer", gap_s=0.25),
        "offsets are stored when clients ask",
        {"think_ms": 100, "actors": ("producer", "consumer", "administrator", "puller")},
        or_as=("requests of a client stay in order",),
    ),
    "timer: announced taken for delivered": Aim(
        _power_within_a_batch,
        "timed messages come",
        _LONGER | {"think_ms": 20, "actors": ("scheduler",)},
    ),
    "retry: held up by a clock that was ahead": Aim(
        _often("wall jump", "transfer", gap_s=1), "what failed comes again", _with("courier")
    ),
    "retry: announced taken for delivered": Aim(
        _power_within_a_batch, "what failed comes again", _LONGER | {"actors": ("administrator", "courier")}
    ),
    # Nobody takes a message back for longer than a request may take.
    "retry: done with before it is confirmed": Aim(
        _often("partition", "isolate", "depose", gap_s=2, seconds=(4, 8)),
        "offsets pass what is settled",
        {"actors": ("administrator", "courier")},
    ),
    "retry: repeated by the broker": Aim(
        _leaders_lost_with_requests_under_way,
        "retries follow failures",
        _SYNC | _with("courier"),
    ),
    "request: answer repeated by the broker": Aim(
        _leaders_lost_with_requests_under_way,
        "answers come once for each request",
        _SYNC | _with("correspondent"),
    ),
    "portion: done is forgotten": Aim(
        # All disks stay nearly full: the head follows the log's end at some seconds' distance, within a writer's pause.
        lambda random: [Fault(int(_BEGIN_S * SECOND), "retention", 0, 35 * SECOND, 0.0)],
        "what is done stays done",
        {
            "data_file_bytes": 32 * 1024,  # of smaller files more come than go, ten at a time
            "think_ms": 100,
            "producers": 3,
            "actors": ("administrator", "producer", "writer"),
            **_UNTIL_LATE,
        },
    ),
    "portion: sent behind a newer floor": Aim(
        _often("delay", "slow disk", gap_s=1), "a portion is stored once", _with("writer")
    ),
    "portion: not in snapshots": Aim(
        _often("kill", "stop", gap_s=1, seconds=(0, 1)), "a portion is stored once", _with("writer")
    ),
    "liveness: leads on without a majority": Aim(_core_left_alone("deaf"), "a core serves", _CORE),
    "liveness: no PreVote": Aim(
        _core_left_alone("comes and goes"), "who stands for election was promised a majority", _CORE
    ),
    "liveness: all voters must vote": Aim(_core_left_alone("gone", "isolated"), "a core serves", _CORE),
    "liveness: commit waits for all": Aim(
        _core_left_alone("gone", "isolated"),
        "a core keeps its leader",  # what confirms reads and contacts waits for all, too
        _CORE,
        or_as=("a core serves",),
    ),
    "liveness: who lags holds up proposals": Aim(
        _core_left_alone("with a full disk", leader_outside=False), "what waits moves", _CORE
    ),
    "liveness: a dial that hangs is not repeated": Aim(
        _core_left_alone("gone", before=_long_partitions), "whole links are up", _CORE
    ),
    "liveness: a broken link to a learner stays so": Aim(
        _often("membership", "link", gap_s=1, end_s=14), "whole links are up"
    ),
    "overload: bytes are not given back": Aim(_overload, "a core serves clients", _CROWDED),
    "overload: proposals without a limit": Aim(_overload, "what waits stays within its limits", _CROWDED),
    "overload: pulls without a limit": Aim(_overload, "what waits stays within its limits", _CROWDED),
    "waits: who recovers asks once": Aim(at_moments("a node that recovers", LOST), "what waits moves"),
    "waits: a pull wakes for single messages": Aim(lambda random: [], "what waits moves", {"think_ms": 300}),
    "waits: a preferred leader is left aside": Aim(
        _often("kill", gap_s=5, seconds=(1, 2), end_s=10),
        "what waits moves",
        {"shape": Shape(prefers_first=True)},
    ),
    "waits: no snapshot but at a stop": Aim(
        lambda random: [], "what waits moves", {"think_ms": 300, "limits": Limits(snapshot_entries=20)}
    ),
    "waits: no checkpoint but at a stop": Aim(lambda random: [], "what waits moves"),
    "waits: only a full disk has anything deleted": Aim(lambda random: [], "what waits moves", _SHORT_LIVES),
    "waits: a follower keeps what its leader deletes": Aim(
        lambda random: [], "what waits moves", _SHORT_LIVES
    ),
    "snapshot: one that finds no room is kept": _snapshots_struck(
        "a snapshot on its way", "the other's disk is full", found_as="what waits moves"
    ),
    "snapshot: one that cannot be written is waited for": _snapshots_struck(
        "a snapshot that was sent", "the other's next flush fails", found_as="what waits moves"
    ),
    "snapshot: one that was lost with its link is on its way": _snapshots_struck(
        "a snapshot on its way", "its link to the other breaks in the middle", found_as="what waits moves"
    ),
    "snapshot: another leader's is not begun": _snapshots_struck(
        "a snapshot that comes", "leadership goes elsewhere", found_as="what waits moves"
    ),
    "majority: of two voters one": Aim(
        _often("membership", gap_s=0.5),
        "what is committed a majority has acknowledged",
        {"nodes": 3, "shape": Shape(spares=2, fewest_voters=2)},
        or_as=("durability",),
    ),
    "majority: two of any number": Aim(
        lambda random: [], "what is committed a majority has acknowledged", {"nodes": 5}
    ),
    # One of two groups is without a majority now and then, while a node of it stays registered.
    "groups: a key goes to whoever leads": Aim(
        _often("kill", gap_s=0.7, seconds=(3, 8)),
        "a key keeps its queue",
    ),
    # Topics entered by hand and wiped permissions rarely meet; nothing needs to fail for it.
    "names: wiped only at registered topics": Aim(
        lambda random: [],
        "name servers answer by what was asked",
        _with("configurer") | {"calm_ns": 160 * SECOND, "end_ns": 180 * SECOND},
    ),
    **{
        f"names: {mistake}": Aim(
            _often("name server", gap_s=0.5, seconds=(0, 1)),
            "name servers keep what they acknowledged",
            _with("configurer"),
            or_as=("name servers answer by what was asked",),
        )
        for mistake in (
            "changed before it is saved",
            "deleted in memory only",
            "only the changed namespace saved",
        )
    },
    "room: topics under way take none": Aim(
        lambda random: [], "what waits stays within its limits", _FOUNDER
    ),
    "room: what is lost with its leader keeps it": Aim(
        _leaders_lost(_END_S, "depose", "transfer"), "room is freed", _FOUNDER
    ),
    "reset: done with its first part": Aim(
        _leaders_lost_with_requests_under_way,
        "acknowledged resets are in the log",
        {"queues": 4, "limits": replace(Limits(), queues_per_command=1)},
        or_as=("resets are ordered",),
    ),
    "descriptors: what cannot be opened is passed over": Aim(
        _often("no descriptors", gap_s=1, seconds=(0, 3)),
        "a node fails",
        {"limits": replace(Limits(), queue_mappings=2, queue_units=4)},
    ),
}
"""By the name in `PLANTED`."""

_FIVE: Final = {"nodes": 5, "flush": "sync"}
_FORGOTTEN_VOTES: Final = _often("forgotten vote", gap_s=2)
_SMALL_GROUP: Final = Shape(spares=2, fewest_voters=2)

AIMED_UNAIDED: dict[str, Aim] = {
    "a new disk votes once a majority has told its terms": Aim(_FORGOTTEN_VOTES, ALL_TOLD, _FIVE),
    "a new disk takes its vote for unused": Aim(_FORGOTTEN_VOTES, USED, _SYNC),
    "a marked vote is repeated unmarked": Aim(_FORGOTTEN_VOTES, "votes are durable", _SYNC),
    "a new disk acknowledges before its votes are known": Aim(_often("new disk", gap_s=2), COMMITTED, _SYNC),
    "only the candidate's voters are unanimous": Aim(
        _often("unheard promotion", gap_s=1.5), PROMISED, {"flush": "async", "shape": _SMALL_GROUP}
    ),
    "members that are not flushed commit alone": Aim(
        _often("change over a slow disk", gap_s=1.5), HELD, {**_SYNC, "shape": _SMALL_GROUP}
    ),
    "a voter goes whoever of the others recovers": Aim(
        _often("recovery that lasts", gap_s=1.5), LEFT, {**_SYNC, "shape": _SMALL_GROUP}
    ),
    "a learner is promoted while it recovers": Aim(
        _often("change over a slow disk", gap_s=1.5), PROMOTED, {**_SYNC, "shape": _SMALL_GROUP}
    ),
    "a new disk recovers with what is committed already": Aim(_often("new disk", gap_s=2), APPENDED, _SYNC),
    "a snapshot that could not be sent is waited for": _snapshots_struck(
        "a long snapshot on its way", "the head of its log goes", found_as="what waits moves"
    ),
    "a store that was stopped in order once counts as stopped in order": Aim(
        lambda random: [*_often("stop", gap_s=3)(random), *_often("power", gap_s=1)(random)],
        "who votes holds what was counted on",
        {"flush": "async"},
    ),
    "a reset is not noted before it begins": _snapshots_struck(
        "a snapshot that was sent",
        "power fails inside the other",
        found_as="who votes holds what was counted on",
    ),
}
"""By the name in `UNAIDED`."""


def aimed_plan(name: str, seed: int) -> Plan:
    """The seed's plan with the mistake's faults and no others."""
    aim = (AIMED | AIMED_UNAIDED)[name]
    faults = sorted(aim.faults(Random(seed)), key=lambda fault: fault.time_ns)
    return replace(plan_of((PLANTED | UNAIDED)[name], seed), faults=tuple(faults), **aim.settings)


def hunt_aimed(name: str, first: int = 0) -> Result | None:
    """The first of the seeds that finds the mistake; those before `first` come last."""
    with pytest.MonkeyPatch.context() as patch:
        (PLANTED | UNAIDED)[name].patch(patch)
        for seed in (*range(first, AIMED_SEEDS), *range(first)):
            result = run_planted(aimed_plan(name, seed))
            if result.violation is not None:
                return result
    return None
