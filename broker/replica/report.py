"""The report of a replica to operators, of one moment."""

from typing import NamedTuple

from broker.replica.replica import Replica
from raft.status import Status


class ReplicaReport(NamedTuple):
    """One replica at one moment. Indices count entries from 0; -1 means none."""

    raft: Status
    is_member: bool
    """True if the node belongs to its group, as far as it knows."""
    disk_full: bool
    damage_left: int
    """Entries that its disk has damaged, and that it has not from a peer yet."""
    scrubbed_ms: int | None
    """The end of its last pass over old files, in milliseconds since 1970; None if none since its start."""
    peer_addresses: dict[str, str]
    """The addresses at which the members listen for each other, as far as it knows."""
    release: str
    wall_ms: int
    """This node's wall clock, in milliseconds since 1970."""


def report_on(replica: Replica, now_ns: int) -> ReplicaReport:
    """Returns what there is to tell of it now."""
    raft, addresses = replica.raft.status(now_ns), replica.membership.addresses
    members = raft.configuration.members
    return ReplicaReport(
        raft,
        replica.members.is_member,
        replica.disk_space.is_full(now_ns),
        replica.repairs.left,
        replica.scrubbing.last_pass_ms or None,
        {member: addresses[member] for member in members if member in addresses},
        replica.release.name,
        replica.clock.wall_ms(now_ns),
    )
