"""A group of a world: its machines, the operator's view of them, and its judges.

Most worlds have one. A second one (`Plan.groups`) is registered with the same name servers and used by the same
clients, stands on machines of its own, prefers its first node as its leader, and is judged by its own log.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulation.faults.stage import Stage
from simulation.journal import Journal
from simulation.judges.availability import Availability
from simulation.judges.client_judge import ClientJudge
from simulation.judges.data_loss import DataLossWatch
from simulation.judges.group_model import GroupModel
from simulation.judges.monitor import Monitor
from simulation.machines.broker_host import BrokerHost
from simulation.machines.client_host import ClientHost
from simulation.machines.members import Members
from simulation.machines.name_server_host import NameServerHost
from simulation.machines.network import Network
from simulation.plans.plan import Plan
from simulation.randomness import Random
from simulation.scheduler import Scheduler
from simulation.workload.context import Wishes


@dataclass(slots=True)
class WorldGroup:
    """One group. `brokers` is filled when the machines are made, as the judges must be there before."""

    number: int
    name: str
    monitor: Monitor
    model: GroupModel
    judge: ClientJudge
    brokers: list[BrokerHost]
    members: Members
    losses: DataLossWatch
    availability: Availability

    @property
    def node_names(self) -> Callable[[int], str]:
        """Names a node by the number of its machine, as `trivet cluster` does: n0, and n100 in the second group."""
        return lambda machine: f"n{100 * self.number + machine}"

    def ip(self, machine: int) -> str:
        """Returns the address of a machine."""
        return f"10.0.{3 if self.number else 0}.{machine + 1}"

    def members_at_end(self) -> list[BrokerHost]:
        """Returns the nodes that must hold everything in the end: a node that was removed holds what it had then."""
        return [host for host in self.members.in_service() if host.name in self.members.committed]

    def make_stage(
        self,
        scheduler: Scheduler,
        network: Network,
        journal: Journal,
        name_servers: Sequence[NameServerHost],
        clients: Sequence[ClientHost],
        wishes: Wishes,
        plan: Plan,
    ) -> Stage:
        """Returns what faults of this group happen to."""
        return Stage(
            scheduler,
            network,
            journal,
            self.members,
            name_servers,
            clients,
            wishes,
            self.monitor.harmed,
            plan.flush,
            plan.calm_ns,
            self.availability,
        )


def make_group(
    number: int,
    plan: Plan,
    scheduler: Scheduler,
    network: Network,
    journal: Journal,
    random: Callable[[str], Random],
) -> WorldGroup:
    """Makes the judges of a group. `random` returns a stream of the world by its name."""

    def now_ns() -> int:
        return scheduler.now_ns

    # The first group's streams have the names that they had when there was one: its seeds stay what they were.
    monitor = Monitor(
        now_ns,
        journal,
        sync_flush=plan.flush == "sync",
        random=random(f"monitor{number or ''}"),
    )
    model = monitor.model
    judge = ClientJudge(model, now_ns)
    brokers: list[BrokerHost] = []
    members = Members(brokers, model, monitor.wiped)
    losses = DataLossWatch(scheduler, journal, monitor.power_losses, model, judge)
    availability = Availability(scheduler, network, members, model, judge)
    name = f"broker-{'ab'[number]}"
    return WorldGroup(number, name, monitor, model, judge, brokers, members, losses, availability)
