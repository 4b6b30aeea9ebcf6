"""The requests for other members and another leader: an operator's to a group's leader, or a node's own, before it
stops and while its disk is full.

Raft decides about all of them. Here they reach it, and its effects are carried out at once.
"""

from collections.abc import Callable
from typing import Final

import structlog

from broker.replica.basis import Basis
from broker.replica.leadership import Leadership
from broker.replica.members import Members
from broker.replica.proposals import Waiter
from broker.requests.errors import NotServingError
from log.entries.entry_room import make_room
from log.errors import DiskError, DiskFullError
from raft.configuration import Change, Configuration
from raft.errors import RaftError
from raft.reasons import Reason
from raft.status import PeerStatus

log = structlog.get_logger("trivet.replica")

HEARD_NS: Final = 1_000_000_000
"""A node that has answered within this time counts as being there."""

CONFIGURATION_BYTES_MAX: Final = 4096
"""More than the entry of a membership change has: names and addresses of a few nodes."""


class GroupChanges:
    """The requests for other members, and for another leader, on their way to one replica's raft."""

    def __init__(
        self,
        basis: Basis,
        members: Members,
        leadership: Leadership,
        carry_out: Callable[[], None],
    ) -> None:
        """`carry_out` carries out raft's effects."""
        self._raft = basis.raft
        self._log = basis.store.log
        self._members = members
        self._leadership = leadership
        self._disk_space = basis.disk_space
        self._time = basis.time
        self._carry_out = carry_out

    @property
    def configuration(self) -> Configuration:
        """The voters and learners in force."""
        return self._raft.configuration

    @property
    def leader(self) -> str | None:
        """The node that this one follows; itself when it leads; None when unknown."""
        return self._raft.leader

    @property
    def term(self) -> int:
        """The current term."""
        return self._raft.term

    def peers(self) -> tuple[PeerStatus, ...]:
        """Returns what the leader knows of each of the others; nothing on a node that does not lead."""
        return self._raft.status(self._time.now_ns).peers

    def change_members(self, change: Change, address: str | None, waiter: Waiter) -> None:
        """Proposes to add, promote or remove a member; `waiter` hears when that is committed, or lost.

        `address` is where a node that is added listens for peers. Raises as `Leadership.check_may_append`,
        DiskFullError, and `raft.errors.ConfigurationError`.
        """
        self._leadership.check_may_append(despite_full_disk=True)
        # Raft counts the entry as appended before it is, and the file of the members is written before it.
        if not self._disk_space.is_there(self._time.now_ns):
            raise DiskFullError("membership", "noting a change", "too little of the disk is free")
        make_room(self._log, CONFIGURATION_BYTES_MAX)
        self._members.propose(change, address, waiter, self._time.now_ns)
        try:
            self._carry_out()
        except DiskFullError as error:
            # Raft has it, the disk has not: this node must stop, not refuse a request.
            raise DiskError("membership", "noting a change", str(error)) from error

    def transfer(self, target: str) -> None:
        """Begins to hand leadership over to `target`, a voter; raft gives the attempt up after an election timeout.

        Raises `NotServingError`, and `raft.errors.RaftError` where raft refuses.
        """
        if not self._leadership.serving:
            raise NotServingError(self.leader)
        self._raft.transfer_leadership(target, self._time.now_ns)
        self._carry_out()

    def hand_over(self) -> str | None:
        """Begins to hand leadership over to the peer that holds most of the log, of those with room if there are any.

        Returns its id, None if there is none.
        """
        heirs = self._heirs()
        return self._hand_over([heir for heir in heirs if not heir.lacks_room] or heirs, Reason.STOP)

    def hand_over_to_room(self) -> str | None:
        """Begins to hand leadership over, if this node has it, to a peer that holds the whole log and has room for
        more. To be called while this node takes no messages for want of room.

        Returns its id, None if there is none, or if those who have room to keep their votes are no majority: it could
        not be elected then.
        """
        if not self._leadership.serving or self._raft.transferee is not None:
            return None
        with_room = [peer for peer in self._heirs() if not peer.lacks_room and peer.silence_ns <= HEARD_NS]
        # This node votes for its heir, too, if it has room to note that.
        votes = len(with_room) + self._disk_space.is_there(self._time.now_ns)
        if 2 * votes <= len(self.configuration.voters):
            return None
        last_index = self._log.last_index
        return self._hand_over(
            [peer for peer in with_room if peer.match_index == last_index], Reason.DISK_FULL
        )

    def _heirs(self) -> list[PeerStatus]:
        # Who recovers could not be elected by a majority alone (raft/recovery.py).
        return [peer for peer in self.peers() if peer.voter and peer.connected and not peer.recovering]

    def _hand_over(self, heirs: list[PeerStatus], reason: Reason) -> str | None:
        if not heirs:
            return None
        # Nothing can be proposed until the heir holds the whole log: so the one that lacks least.
        target = max(heirs, key=lambda peer: peer.match_index).node
        try:
            self._raft.transfer_leadership(target, self._time.now_ns, reason)
        except RaftError as error:
            log.info("leadership is not handed over", target=target, reason=str(error))
            return None
        self._carry_out()
        return target
