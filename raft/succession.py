"""The way in which a leader hands over: it stops proposals, brings one voter up to date, and asks it to stand
(dissertation 3.10).

Proposals in parts belong here, too. What was granted of them is part of the log that the successor needs: a change of
leaders in the middle would leave the rest behind.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from raft.errors import LeadershipTransferring, UnknownMember
from raft.messages import TimeoutNow
from raft.progress import Progress
from raft.reasons import Reason
from raft.state import NodeState


@dataclass(slots=True)
class Transfer:
    """A hand-over of the leadership that is under way."""

    target: str
    """A voter, as long as this lasts: the membership does not change meanwhile."""
    deadline: int
    """The time at which the transfer is given up (ns)."""
    reason: Reason
    is_sent: bool = False
    """TimeoutNow is on its way: the target held the whole log."""


@dataclass(slots=True, eq=False)
class Succession:
    """The succession to the leader of one term, by its own doing."""

    _state: NodeState
    _peers: Mapping[str, Progress]
    """The leader's, which come and go."""
    transfer: Transfer | None = None
    """While it is there nothing is proposed but what was granted before."""
    granted: int = 0
    """Entries that were allowed together and are proposed in parts: so many are still to come."""

    @property
    def target(self) -> str | None:
        """The voter that is to lead next, while a transfer is under way."""
        return None if self.transfer is None else self.transfer.target

    def begin(self, target: str, now: int, reason: Reason) -> None:
        """Begins a transfer. Raises UnknownMember, LeadershipTransferring."""
        state = self._state
        if target == state.node_id or target not in state.configurations.current.voters:
            raise UnknownMember(target, "another voter")
        if self.transfer is not None:
            raise LeadershipTransferring(self.transfer.target)
        # Dissertation 3.10: whoever has not taken over within an election timeout is not waited for.
        self.transfer = Transfer(target, now + state.options.election_timeout_min_ns, reason)
        self.ask_target(self.transfer)

    def ask_target(self, transfer: Transfer) -> None:
        """Sends TimeoutNow, once, as soon as the target holds the whole log: it could not win before (5.4.1)."""
        state = self._state
        peer = self._peers[transfer.target]
        if not transfer.is_sent and not self.granted and peer.match_index == state.log.last_index:
            transfer.is_sent = True
            state.send(TimeoutNow(state.node_id, peer.node, state.term))

    def end_grant(self) -> None:
        """Waits no more for parts that have not come."""
        self.granted = 0
        if self.transfer is not None:
            self.ask_target(self.transfer)

    def end_overdue(self, now: int) -> None:
        """Gives up a transfer that took too long."""
        # If the target stands all the same, later, that costs one election more and does no harm (dissertation 3.10).
        if self.transfer is not None and now >= self.transfer.deadline:
            self.transfer = None

    def reason_given_to(self, node: str) -> Reason | None:
        """Returns why `node` was asked to succeed; None if it was not."""
        transfer = self.transfer
        return (
            transfer.reason if transfer is not None and transfer.is_sent and transfer.target == node else None
        )
