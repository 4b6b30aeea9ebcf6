"""The requests for other members and another leader: an operator's to a group's leader, or a node's before it stops.

Raft decides about all of them. Here they reach it, and its effects are carried out at once.
"""

from typing import Final

import structlog

from broker.replica.proposals import Waiter
from broker.replica.replica import Replica
from broker.requests.errors import NotServingError
from log.entry_room import make_room
from log.errors import DiskError, DiskFullError
from raft.configuration import Change
from raft.errors import RaftError
from raft.reasons import Reason

log = structlog.get_logger("trivet.replica")

CONFIGURATION_BYTES_MAX: Final = 4096
"""More than the entry of a membership change has: names and addresses of a few nodes."""


def change_membership(replica: Replica, change: Change, address: str | None, waiter: Waiter) -> None:
    """Proposes to add, promote or remove a member; `waiter` hears when that is committed, or lost.

    `address` is where a node that is added listens for peers. Raises as `Leadership.check_may_append`,
    DiskFullError, and `raft.errors.ConfigurationError`.
    """
    replica.leadership.check_may_append(despite_full_disk=True)
    make_room(replica.store.log, CONFIGURATION_BYTES_MAX)  # raft counts the entry as appended before it is
    replica.members.propose(change, address, waiter, replica.time.now_ns)
    try:
        replica.carry_out()
    except DiskFullError as error:
        # Raft has it, the disk has not: this node must stop, not refuse a request.
        raise DiskError("membership", "noting a change", str(error)) from error


def transfer_leadership(replica: Replica, target: str) -> None:
    """Begins to hand leadership over to `target`, a voter; raft gives the attempt up after an election timeout.

    Raises `NotServingError`, and `raft.errors.RaftError` where raft refuses.
    """
    if not replica.serving:
        raise NotServingError(replica.leader)
    replica.raft.transfer_leadership(target, replica.time.now_ns)
    replica.carry_out()


def hand_over(replica: Replica) -> str | None:
    """Begins to hand leadership over to the peer that holds most of the log; returns its id, None if there is none."""
    heirs = [
        peer
        for peer in replica.raft.status(replica.time.now_ns).peers
        if peer.voter and peer.connected and not peer.recovering
    ]
    if not heirs:
        return None
    target = max(heirs, key=lambda peer: peer.match_index).node
    try:
        replica.raft.transfer_leadership(target, replica.time.now_ns, Reason.STOP)
    except RaftError as error:
        log.info("leadership is not handed over", target=target, reason=str(error))
        return None
    replica.carry_out()
    return target
