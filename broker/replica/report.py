"""The report of a replica to operators, of one moment."""

from collections.abc import Mapping
from typing import NamedTuple

from broker.replica.replica import Replica
from raft.status import Status


class ReplicaReport(NamedTuple):
    """One replica at one moment. Indices count entries from 0; -1 means none."""

    raft: Status
    is_member: bool
    """True if the node belongs to its group, as far as it knows."""
    serving: bool
    """True if it leads, and answers for the group."""
    links: frozenset[str]
    """The peers to which there is a link."""
    refuses_sends: bool
    """True while too much of its disk is used: as a leader it takes no messages."""
    disk_full: bool
    """True if it refuses sends, or something has found no room."""
    damage_found: int
    """Damaged entries, units and files that it has found since its start."""
    damage_repaired: int
    """How many of them were repaired, and the repair flushed."""
    damage_left: int
    """Damaged entries that it has not got from a peer yet."""
    scrubbed_bytes: int
    """Bytes of old files that it has read and checked since its start."""
    scrubbed_ms: int | None
    """The end of its last pass over old files, in milliseconds since 1970; None if none since its start."""
    digests: Mapping[int, tuple[int, int]]
    """The newest sum of the replicated state for each step: the index of an entry, and the sum behind it."""
    peer_addresses: dict[str, str]
    """The addresses at which the members listen for each other, as far as it knows."""
    release: str
    wall_ms: int
    """This node's wall clock, in milliseconds since 1970."""


def report_on(replica: Replica, now_ns: int) -> ReplicaReport:
    """Returns what there is to tell of it now."""
    raft, addresses = replica.raft.status(now_ns), replica.membership.addresses
    members, disk_space = raft.configuration.members, replica.disk_space
    repairs, scrubbing = replica.repairs, replica.scrubbing
    return ReplicaReport(
        raft,
        replica.members.is_member,
        replica.serving,
        frozenset(replica.links),
        disk_space.refuses_sends,
        disk_space.is_full(now_ns),
        repairs.found,
        repairs.repaired,
        repairs.left,
        scrubbing.bytes,
        scrubbing.last_pass_ms or None,
        dict(replica.applied.digests.newest),
        {member: addresses[member] for member in members if member in addresses},
        replica.release.name,
        replica.clock.wall_ms(now_ns),
    )
