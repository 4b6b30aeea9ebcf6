"""More is asked of a group than its limits take: a crowd sends over slow disks, and who is refused tries again."""

from __future__ import annotations

from typing import Final

from simulation.faults import disk_faults
from simulation.faults.healing import heal_everything
from simulation.faults.stage import Stage
from simulation.machines.broker_host import BrokerHost
from simulation.plans.plan import Fault
from simulation.scheduler import MILLISECOND

_FLUSH_NS: Final = (10 * MILLISECOND, 60 * MILLISECOND)


def overload(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """Mends everything, and then has the crowd send for a while, over disks that are slow.

    Afterwards all is whole: the group owes its clients what a core does.
    """
    wishes = stage.wishes
    wishes.withdraw()
    heal_everything(stage)
    shortest_ns, longest_ns = _FLUSH_NS
    for one in stage.members.in_service():
        disk_faults.slow_down(one, shortest_ns + int(fault.amount * (longest_ns - shortest_ns)))
    wishes.is_crowded = True
    stage.done(fault, "group", f"{fault.duration_s:.1f} s")

    def ease() -> None:
        wishes.is_crowded = False
        for one in stage.members.machines:
            disk_faults.quicken(one)
        stage.availability.stands()

    stage.scheduler.after(fault.duration_ns, ease)
