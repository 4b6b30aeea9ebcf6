"""Does each kind of fault to the machines of a world, and ends all of them.

A fault that cannot be done when its time comes (the host is down already, the group is not in the state that an
operator would wait for) is left out; what was done is counted in `Journal.fault_counts`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simulation.faults import (
    choreographies,
    cores,
    damage,
    disk_faults,
    links,
    moments,
    operations,
    overload,
    processes,
    recoveries,
)
from simulation.faults.stage import Stage
from simulation.machines.broker_host import BrokerHost
from simulation.plans.plan import LASTING, LEADER, LEADER_BITS, Fault


def inject(stage: Stage, fault: Fault) -> None:
    """Does the fault now, unless one that came before needs quiet."""
    if stage.is_quiet and fault.kind not in LASTING:
        return
    _INJECTORS[fault.kind](stage, _target(stage, fault), fault)


def _target(stage: Stage, fault: Fault) -> BrokerHost:
    """The broker that is hit: half of all faults hit the leader, around which most of what can go wrong goes wrong."""
    leader = stage.members.leader() if fault.target & LEADER else None
    hosts = stage.members.in_service()
    return leader or hosts[(fault.target >> LEADER_BITS) % len(hosts)]


_INJECTORS: Final[dict[str, Callable[[Stage, BrokerHost, Fault], None]]] = {
    "loss": links.loss,
    "delay": links.delay,
    "cut one way": links.cut_one_way,
    "isolate": links.isolate,
    "partition": links.partition,
    "depose": links.depose,
    "clog": links.clog,
    "reset": links.reset,
    "link": links.link,
    "messages": links.messages,
    "kill": processes.kill,
    "stop": processes.stop,
    "power": processes.power,
    "power inside": processes.power_inside,
    "power of all": processes.power_of_all,
    "pause": processes.pause,
    "new disk": processes.new_disk,
    "clock rate": processes.clock_rate,
    "wall jump": processes.wall_jump,
    "name server": processes.name_server,
    "slow disk": disk_faults.slow_disk,
    "full disk": disk_faults.full_disk,
    "flush failure": disk_faults.flush_failure,
    "read failure": disk_faults.read_failure,
    "bit rot": disk_faults.bit_rot,
    "misdirected write": disk_faults.misdirected_write,
    "retention": disk_faults.retention,
    "transfer": operations.transfer,
    "rivals": operations.rivals,
    "membership": operations.membership,
    "client kill": processes.client_kill,
    "topics": operations.topics,
    "release": operations.release,
    "kills while paused": choreographies.pause_and_others_die,
    "power while cut off": choreographies.partition_and_power,
    "bit rot while recovering": choreographies.bit_rot_and_recovery,
    "transfer in a change": choreographies.transfer_in_a_change,
    "overlapping elections": choreographies.overlapping_elections,
    "leadership returns": choreographies.leadership_returns,
    "damage": damage.damage,
    "suspend": processes.suspend,
    "more than is known": choreographies.more_than_is_known,
    "other work": processes.other_work,
    "words outlive their node": choreographies.words_outlive_their_node,
    "words outlive their term": choreographies.words_outlive_their_term,
    "change without one": choreographies.change_without_one,
    "left behind": choreographies.left_behind,
    "change that is lost": choreographies.change_that_is_lost,
    "at a moment": moments.at_a_moment,
    "client pause": processes.client_pause,
    "elected in vain": choreographies.elected_in_vain,
    "disk goes in an election": choreographies.disk_goes_in_an_election,
    "no descriptors": disk_faults.no_descriptors,
    "change over a slow disk": recoveries.change_over_a_slow_disk,
    "recovery that lasts": recoveries.recovery_that_lasts,
    "forgotten vote": recoveries.forgotten_vote,
    "unheard promotion": recoveries.unheard_promotion,
    "core": cores.core,
    "overload": overload.overload,
}
