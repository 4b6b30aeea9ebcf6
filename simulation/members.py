"""Which machines belong to the group, as its operator sees it: who joins with an empty disk, who is taken away.

A machine is *in service* from the moment at which the operator starts a node on it until it is known to be out of the
group; only machines in service are started, hit by faults and looked at in the end. What the group has committed is
known here and waited for: an operator who takes a machine away before that is certain breaks Raft's assumptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from simulation.broker_host import BrokerHost
    from simulation.world import World

__all__ = ["Members"]


class Members:
    """The operator's books."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def committed(self) -> tuple[str, ...]:
        """Voters and learners, by the newest committed configuration."""
        model = self._world.monitor.model
        return (*model.voters, *model.learners)

    def in_service(self) -> list[BrokerHost]:
        """Machines that run a broker, or should."""
        return [host for host in self._world.brokers if host.in_service]

    def idle(self) -> list[BrokerHost]:
        """Machines that a node could be started on."""
        return [host for host in self._world.brokers if not host.in_service]

    def start_newcomer(self, host: BrokerHost) -> None:
        """Starts a node with an empty disk, which the group does not know yet."""
        assert not host.in_service, "it is a member, or will be"
        if not host.disk.is_empty:
            host.disk.wipe()
            self._world.monitor.wiped(host)
        host.needs_new_disk = False
        host.in_service = True
        self.configure(host)
        host.start()

    def retire(self, host: BrokerHost) -> None:
        """Takes a machine away whose node is out of the group."""
        assert host.name not in self.committed, "it is a member"
        host.in_service = False
        host.kill()

    def configure(self, host: BrokerHost) -> None:
        """Writes the configuration file of a node with an empty disk: it names the members of this moment."""
        members = self.committed
        known = [one for one in self._world.brokers if one is host or one.name in members]
        raft = msgspec.structs.replace(
            host.config.raft,
            peers={one.name: one.peer_address for one in known},
            join=host.name not in members,
        )
        host.config = msgspec.structs.replace(host.config, raft=raft)
