"""The members of the group as its operator sees them: who joins with an empty disk, who is taken away.

A machine is *in service* from the moment at which the operator starts a node on it until it is known to be out of the
group; only machines in service are started, hit by faults and looked at in the end. What the group has committed is
known here and waited for: an operator who takes a machine away before that is certain breaks Raft's assumptions.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from broker.state.release import THIS_RELEASE
from simulation.machines.broker_host import BrokerHost


class Committed(Protocol):
    """The part of the group's committed state that its operator needs."""

    voters: tuple[str, ...]
    learners: tuple[str, ...]

    deleted_topics: dict[str, int]

    @property
    def last_index(self) -> int:
        """The index of the last committed entry."""


class Members:
    """The operator's knowledge of the group, and what the operator does to its machines."""

    def __init__(
        self, machines: Sequence[BrokerHost], model: Committed, wiped: Callable[[BrokerHost], object]
    ) -> None:
        """`wiped` is called with each machine that gets an empty disk."""
        self.machines = machines
        """All machines that a broker can run on, in service or not."""
        self._model = model
        self._wiped = wiped

    @property
    def committed_voters(self) -> tuple[str, ...]:
        """The voters of the newest committed configuration."""
        return self._model.voters

    @property
    def committed(self) -> tuple[str, ...]:
        """The voters and learners of the newest committed configuration."""
        return (*self._model.voters, *self._model.learners)

    @property
    def deleted_topics(self) -> tuple[str, ...]:
        """The topics that were deleted, whether or not they were made again, in the order of the first deletions."""
        return (*self._model.deleted_topics,)

    def in_service(self) -> list[BrokerHost]:
        """Returns the machines that run a broker, or should."""
        return [host for host in self.machines if host.in_service]

    def idle(self) -> list[BrokerHost]:
        """Returns the machines that a node could be started on."""
        return [host for host in self.machines if not host.in_service]

    def leader(self) -> BrokerHost | None:
        """Returns the host that serves; None unless exactly one does."""
        serving = [
            host for host in self.machines if host.process is not None and host.process.replica.serving
        ]
        return serving[0] if len(serving) == 1 else None

    def is_settled(self) -> bool:
        """True if all nodes follow one leader and hold the same log, committed and durable, and no flush is to fail.

        And none of them is recovering: what it may vote for it does not know yet (raft/recovery.py, What is claimed).
        Nor is there a member that was never set up, or is gone: a node with an empty disk, which is told of the members
        and not of who votes, would wait for its answer (docs/operations.md, After the loss of a disk).
        """
        leader = self.leader()
        if leader is None or leader.process is None:
            return False
        if not {*self.committed} <= {host.name for host in self.in_service()}:
            return False
        # A voter may lose its disk now: nothing that counts is on that disk alone, or on its way from there.
        raft = leader.process.replica.raft
        for host in self.in_service():
            if host.process is None or host.paused or host.disk.failing_flushes:
                return False
            replica = host.process.replica
            if replica.raft.recovering is not None:
                return False
            state = (
                replica.raft.term,
                replica.raft.leader,
                replica.raft.log_terms.last_index,
                replica.applied_index,
            )
            if state != (raft.term, leader.name, raft.commit_index, raft.commit_index):
                return False
            if replica.raft.persisted_index != raft.commit_index:
                return False
        return raft.commit_index == self._model.last_index

    def have_their_data(self) -> bool:
        """True if no node has lost its disk, or is without what it has promised."""
        return not any(
            host.needs_new_disk
            or (host.process is not None and host.process.replica.raft.recovering is not None)
            for host in self.in_service()
        )

    def may_lose_one(self) -> bool:
        """True if the group goes on when a voter loses its data: of two, one is no minority (raft/recovery.py)."""
        return len(self._model.voters) > 2

    def start_newcomer(self, host: BrokerHost) -> None:
        """Starts a node with an empty disk, which the group does not know yet."""
        assert not host.in_service, "it is a member, or will be"
        if not host.disk.is_empty:
            host.disk.wipe()
            self._wiped(host)
        host.needs_new_disk = False
        host.release = THIS_RELEASE
        host.in_service = True
        self.configure(host)
        host.start()

    def give_new_disk(self, host: BrokerHost) -> None:
        """Gives a machine whose process has ended an empty disk."""
        host.disk.wipe()
        host.needs_new_disk = False
        self.configure(host)
        self._wiped(host)

    def tell_new_disks(self) -> list[BrokerHost]:
        """Starts the nodes again that ask their group with a list which lacks a present voter, and returns them.

        They would wait for ever (docs/operations.md, After the loss of a disk).
        """
        told = []
        for host in self.in_service():
            recovery = None if host.process is None else host.process.replica.raft.recovery
            if (
                recovery is None
                or not recovery.is_mute
                or {*self.committed_voters} <= {*host.settings.raft.peers}
            ):
                continue
            host.kill()
            self.configure(host)
            host.start()
            told.append(host)
        return told

    def retire(self, host: BrokerHost) -> None:
        """Takes a machine away whose node is out of the group."""
        assert host.name not in self.committed, "it is a member"
        host.in_service = False
        host.kill()

    def configure(self, host: BrokerHost) -> None:
        """Writes the settings of a node with an empty disk: they name the members of this moment."""
        members = self.committed
        known = [one for one in self.machines if one is host or one.name in members]
        raft = msgspec.structs.replace(
            host.settings.raft,
            peers={one.name: one.peer_address for one in known},
            join=host.name not in members,
        )
        host.settings = msgspec.structs.replace(host.settings, raft=raft)
