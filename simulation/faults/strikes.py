"""Faults that strike at a moment of the run (moments.py); other plans have the same faults at drawn times.

Each gets two nodes: `one`, at which something is under way, and the `other` one, which it deals with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from simulation.faults import disk_faults, links, processes
from simulation.faults.operations import give_leadership_to
from simulation.faults.stage import Stage
from simulation.machines.broker_host import BrokerHost
from simulation.machines.frame_faults import FrameFaults
from simulation.plans.plan import Fault
from simulation.scheduler import MILLISECOND, SECOND

Strike = Callable[[Stage, BrokerHost, BrokerHost, Fault], None]
"""Does a fault. The first host is the node at which something is under way, the second the one that it deals with."""

_WORDS_NS: Final = (100 * MILLISECOND, 1200 * MILLISECOND)
"""For how long words are lost."""
_LONG_MESSAGE_NS: Final = 3 * SECOND
"""A snapshot may take so long to be written."""
_HEAD_NS: Final = 2 * SECOND
_OPERATIONS: Final = 12
"""Power fails within one of the next so many operations of the disk: to replace a log by a leader's takes as many."""


def lose_words(stage: Stage, host: BrokerHost, source: BrokerHost | None, fault: Fault) -> None:
    """Messages to a node are lost for a while, those of `source`, or all."""
    shortest_ns, longest_ns = _WORDS_NS
    lost = FrameFaults(
        loss=1.0, source=None if source is None else source.name, told=stage.counted_once("messages")
    )
    host.frame_faults.append(lost)
    duration_ns = shortest_ns + fault.duration_ns % (longest_ns - shortest_ns)
    stage.scheduler.after(duration_ns, host.end_frame_faults, lost)


def _words_of_one(stage: Stage, one: BrokerHost, other: BrokerHost, fault: Fault) -> None:
    for host in stage.members.machines:
        if host is not one:
            lose_words(stage, host, one, fault)


def _words_to_one(stage: Stage, one: BrokerHost, other: BrokerHost, fault: Fault) -> None:
    lose_words(stage, one, None, fault)


def _words_to_the_other(stage: Stage, one: BrokerHost, other: BrokerHost, fault: Fault) -> None:
    lose_words(stage, other, one, fault)


def _kill(stage: Stage, one: BrokerHost, other: BrokerHost, fault: Fault) -> None:
    processes.kill(stage, one, replace(fault, kind="kill"))


def _power(stage: Stage, one: BrokerHost, other: BrokerHost, fault: Fault) -> None:
    processes.power(stage, one, replace(fault, kind="power"))


def _pause(stage: Stage, one: BrokerHost, other: BrokerHost, fault: Fault) -> None:
    processes.pause(stage, one, replace(fault, kind="pause"))


def _cut(stage: Stage, one: BrokerHost, other: BrokerHost, fault: Fault) -> None:
    one_way = replace(fault, kind="cut one way")
    links.cut(stage, [(one.name, other.name)], one_way, one.name, f"towards {other.name}")


def _isolate(stage: Stage, one: BrokerHost, other: BrokerHost, fault: Fault) -> None:
    links.isolate(stage, one, replace(fault, kind="isolate"))


def _break_in_the_middle(stage: Stage, one: BrokerHost, other: BrokerHost, fault: Fault) -> None:
    within_ns = fault.duration_ns + _LONG_MESSAGE_NS
    links.break_in_the_middle(stage, one, other, replace(fault, kind="link", duration_ns=within_ns))


def _give_away(stage: Stage, one: BrokerHost, other: BrokerHost, fault: Fault) -> None:
    if give_leadership_to(stage, other):
        stage.done(replace(fault, kind="transfer"), one.name, f"to {other.name}")


def _give_elsewhere(stage: Stage, one: BrokerHost, other: BrokerHost, fault: Fault) -> None:
    """Hands leadership to a third node, to which nothing is happening; to the other one if there is no third."""
    third = [host for host in stage.members.in_service() if host not in (one, other)]
    heir = third[fault.target % len(third)] if third else other
    if give_leadership_to(stage, heir):
        stage.done(replace(fault, kind="transfer"), one.name, f"to {heir.name}")


def _fill_disk(stage: Stage, one: BrokerHost, other: BrokerHost, fault: Fault) -> None:
    disk_faults.full_disk(stage, other, replace(fault, kind="full disk"))


def _fail_write(stage: Stage, one: BrokerHost, other: BrokerHost, fault: Fault) -> None:
    disk_faults.flush_failure(stage, one, replace(fault, kind="flush failure"))


def _power_inside_the_other(stage: Stage, one: BrokerHost, other: BrokerHost, fault: Fault) -> None:
    amount = fault.duration_ns % _OPERATIONS / _OPERATIONS
    processes.power_inside(stage, other, replace(fault, kind="power inside", amount=amount))


def _delete_head(stage: Stage, one: BrokerHost, other: BrokerHost, fault: Fault) -> None:
    disk_faults.retention(stage, one, replace(fault, kind="retention", amount=0.9, duration_ns=_HEAD_NS))


def _to_the_other(strike: Strike) -> Strike:
    """Returns a strike that hits the other node instead."""
    return lambda stage, one, other, fault: strike(stage, other, one, fault)


STRIKES: Final[dict[str, Strike]] = {
    "its words are lost": _words_of_one,
    "what it is told is lost": _words_to_one,
    "the other does not hear it": _words_to_the_other,
    "it is killed": _kill,
    "the other is killed": _to_the_other(_kill),
    "it loses power": _power,
    "it stands still": _pause,
    "the other stands still": _to_the_other(_pause),
    "it is cut off from the other": _cut,
    "it is isolated": _isolate,
    "leadership moves": _give_away,
    "the other's disk is full": _fill_disk,
    "leadership goes elsewhere": _give_elsewhere,
    "its link to the other breaks in the middle": _break_in_the_middle,
    "its next flush fails": _fail_write,
    "the other's next flush fails": _to_the_other(_fail_write),
    "power fails inside the other": _power_inside_the_other,
    "the head of its log goes": _delete_head,
}
