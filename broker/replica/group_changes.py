"""The requests for other members and another leader: an operator's to a group's leader, or a node's before it stops.

Raft decides about all of them. Here they reach it, and its effects are carried out at once.
"""

from collections.abc import Callable
from typing import Final

import structlog

from broker.replica.leadership import Leadership
from broker.replica.members import Members
from broker.replica.proposals import Waiter
from broker.requests.deadline import Time
from broker.requests.errors import NotServingError
from log.entry_log import EntryLog
from log.entry_room import make_room
from log.errors import DiskError, DiskFullError
from raft.configuration import Change, Configuration
from raft.core import Raft
from raft.errors import RaftError
from raft.reasons import Reason
from raft.status import PeerStatus

log = structlog.get_logger("trivet.replica")

CONFIGURATION_BYTES_MAX: Final = 4096
"""More than the entry of a membership change has: names and addresses of a few nodes."""


class GroupChanges:
    """Changes of one replica's group, of which this node leads the way."""

    def __init__(
        self,
        raft: Raft,
        entry_log: EntryLog,
        leadership: Leadership,
        members: Members,
        time: Time,
        carry_out: Callable[[], None],
    ) -> None:
        """`carry_out` carries out raft's effects."""
        self._raft = raft
        self._log = entry_log
        self._leadership = leadership
        self._members = members
        self._time = time
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
        make_room(self._log, CONFIGURATION_BYTES_MAX)  # raft counts the entry as appended before it is
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
        """Begins to hand leadership over to the peer that holds most of the log; returns its id, None if there is
        none.
        """
        heirs = [peer for peer in self.peers() if peer.voter and peer.connected and not peer.recovering]
        if not heirs:
            return None
        target = max(heirs, key=lambda peer: peer.match_index).node
        try:
            self._raft.transfer_leadership(target, self._time.now_ns, Reason.STOP)
        except RaftError as error:
            log.info("leadership is not handed over", target=target, reason=str(error))
            return None
        self._carry_out()
        return target
