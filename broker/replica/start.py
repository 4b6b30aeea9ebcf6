"""The beginning of a replica, made of what `Store.open` found, before raft may say anything.

It judges if this node still has all that it promised (broker/replica/recovering_file.py), gives up what cannot be
believed, and brings back the replicated metadata as the snapshot has them; dispatch goes on from there.
"""

from dataclasses import dataclass
from typing import NamedTuple

import structlog

from broker.replica.members_file import MembersFile
from broker.replica.recovering_file import RecoveringFile
from broker.state.metadata import Metadata
from broker.state.snapshot import decode_state, encode_state, restore_queue_ends
from log.notes.hard_state import StoredHardState
from log.notes.snapshot import Snapshot
from log.store import RecoveryReport, Store
from raft.configuration import Configuration
from raft.recovery_loss import Loss

log = structlog.get_logger("trivet.replica")


@dataclass(frozen=True, slots=True)
class OnDisk:
    """The things of a replica that a disk holds: its store, opened, and the two notes beside it."""

    store: Store
    recovery: RecoveryReport
    """The report of `Store.open`."""
    membership: MembersFile
    recovering: RecoveringFile


class ReplicaStart(NamedTuple):
    """The state of a node that has just started."""

    hard_state: StoredHardState
    loss: Loss | None
    """What this node may lack of what it has promised; None if it lacks nothing."""
    commit_index: int
    configurations: list[tuple[int, Configuration]]
    lost_voters: tuple[str, ...]
    """The voters of configurations that this node may have lost (members_file.py): they may have committed, with it,
    entries that it lacks."""
    metadata: Metadata
    metadata_index: int
    """The last entry whose command `metadata` reflects, -1 if none."""


def start_from_disk(node_id: str, found: OnDisk) -> ReplicaStart:
    """Reads what is kept beside the log, makes the store ready to be appended to, and returns the node's state.

    Raises `log.errors.DamagedLogError` in a group of one that has not accepted the loss, DamagedStateError, DiskError.
    """
    store, recovery, membership = found.store, found.recovery, found.membership
    # The judgement comes before anything is cut: it notes durably what is lost, and so survives a crash in the middle.
    hard_state = store.hard_state.read()
    committed = max(recovery.noted_committed_index, store.snapshot.applied_index)
    # Who has promised nothing begins with the members of its settings (members_file.py).
    blank = node_id if hard_state is None and store.log.last_index < 0 else None
    loaded = membership.load(store.log.last_index, committed, blank=blank)
    voters = {*loaded[-1][1].voters, *membership.lost_voters}
    loss, reason = found.recovering.judge(
        recovery,
        has_term=hard_state is not None and not hard_state.founding,
        only_voter=voters == {node_id},
    )
    if loss is Loss.ALL:
        log.info("the other nodes are asked whether the group is new", reason=reason)
    elif loss is not None:
        log.warning("recovering: this node may lack what it acknowledged", lost=loss.value, reason=reason)
    if recovery.needs_snapshot:
        # What is here belongs to no state; the leader sends a snapshot, or everything.
        log.error("log given up", damage=recovery.damage)
        nothing = encode_state(Metadata(), membership.addresses, store.queues)
        store.reset(0, 0, 0, {}, Snapshot(-1, nothing))
    elif store.log.damaged:
        # The group has these entries still; this node takes them from it again.
        log.error("damaged log cut", damage=recovery.damage)
        store.cut_damage()
    snapshot = store.snapshot.read()
    metadata, metadata_index = Metadata(), -1
    if snapshot is not None:
        metadata, addresses, queue_ends = decode_state(snapshot.data)
        metadata_index = snapshot.applied_index
        membership.merge(addresses)
        restore_queue_ends(store.queues, queue_ends, is_newer=metadata_index > recovery.queues_index)
        store.raise_head(metadata.head_position)
    # Raft may begin with any index that was committed: the greatest that is known, as far as the log still reaches. A
    # leader of less than its state reflects could not send a snapshot, nor without one commit anything with that peer.
    first_index, last_index = store.log.first_index, store.log.last_index
    # Anew, as the log may end earlier now.
    configurations = membership.load(last_index, committed, blank=blank)
    committed = max(recovery.committed_index, metadata_index, store.dispatched_index, first_index - 1)
    return ReplicaStart(
        hard_state or StoredHardState(),
        loss,
        min(committed, last_index),
        configurations,
        membership.lost_voters,
        metadata,
        metadata_index,
    )
