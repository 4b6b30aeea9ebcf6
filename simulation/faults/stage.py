"""What faults happen to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from simulation.journal import Journal
from simulation.machines.broker_host import BrokerHost
from simulation.machines.client_host import ClientHost
from simulation.machines.members import Members
from simulation.machines.name_server_host import NameServerHost
from simulation.machines.network import Network
from simulation.scheduler import Scheduler
from simulation.workload.context import Wishes

__all__ = ["Stage"]


@dataclass(slots=True)
class Stage:
    """All machines of a world, and who is told of what is done to them."""

    scheduler: Scheduler
    network: Network
    journal: Journal
    members: Members
    name_servers: Sequence[NameServerHost]
    clients: Sequence[ClientHost]
    wishes: Wishes
    wiped: Callable[[BrokerHost], object]
    """Told of each disk that is replaced or harmed."""
    flush: Literal["sync", "async"]
    calm_ns: int
    """When all faults have ended."""
    host_names: list[str] = field(init=False)
    """Brokers, name servers, clients."""

    def __post_init__(self) -> None:
        self.host_names = [broker.name for broker in self.members.machines]
        self.host_names += [name_server.name for name_server in self.name_servers]
        self.host_names += [client.name for client in self.clients]

    def is_calm(self) -> bool:
        """Whether the time of faults is over."""
        return self.scheduler.now_ns >= self.calm_ns
