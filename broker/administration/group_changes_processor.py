"""Changes of a group that operators ask for: to add, promote and remove members, and to move leadership.

A change is answered when it is committed; one that cannot be carried out is refused at once, with nothing changed:

    INVALID_PARAMETER 29     no such node, or it is already what it should become; a malformed id or address
    ILLEGAL_OPERATION 604    the last voter would go, or no majority of voters would be left that can be reached
    SYSTEM_BUSY 2            not now: another change or a transfer is under way, or the node has not caught up
    SYSTEM_ERROR 1           the leader was lost on the way: the outcome is unknown, look at the group

A transfer is answered when the target leads. Both work on any node, which forwards them to the leader; a transfer that
outlives its leader is asked of the next one, to whom it may be no news.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from broker.node.listeners import Listeners
from broker.remoting.addresses import split_address
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.replica.group_changes import GroupChanges
from broker.replica.members import Members
from broker.requests.connection import Connection
from broker.requests.deadline import NEVER, Time
from broker.requests.errors import RequestError
from broker.requests.processing import HandledOn, Route
from broker.requests.responses import ReplyWhenCommitted, reply
from broker.settings.live import LiveSettings
from broker.settings.tables import NodeId
from raft.configuration import AddLearner, Change, Configuration, PromoteLearner, RemoveMember
from raft.errors import AlreadyMember, LastVoter, RaftError, UnknownMember
from raft.status import PeerStatus

_TRANSFER_GRACE_NS: Final = 1_000_000_000
"""A transfer is waited for so much longer than raft tries it: the next leader has to be heard of."""


class ChangeGroupHeader(msgspec.Struct):
    """TRIVET_CHANGE_GROUP 90002. `operation` is add, promote or remove; `address`, where a node that is added listens
    for its peers."""

    operation: str
    node: str
    address: str | None = None


class TransferLeadershipHeader(msgspec.Struct):
    """TRIVET_TRANSFER_LEADERSHIP 90003: `node` is to lead."""

    node: str


@dataclass(slots=True, eq=False)
class _Transfer:
    """A transfer that waits for its end."""

    connection: Connection
    command: RemotingCommand
    target: str
    term: int


class GroupChangesProcessor:
    """TRIVET_CHANGE_GROUP 90002 and TRIVET_TRANSFER_LEADERSHIP 90003."""

    def __init__(
        self,
        changes: GroupChanges,
        members: Members,
        settings: LiveSettings,
        time: Time,
        listeners: Listeners,
    ) -> None:
        self._changes = changes
        self._members = members
        self._time = time
        self._election_timeout_ns = settings.current.raft.election_timeout_min_ms * 1_000_000
        """A node that was silent for longer cannot be reached."""
        self._transfer: _Transfer | None = None
        """The one whose end somebody waits for; `_deadline` is due while there is one, and only then."""
        listeners.role_changes.append(self._role_changed)
        listeners.disconnects.append(self._disconnected)
        self._deadline = time.add_deadline(self._give_up)

    def routes(self) -> Iterable[Route]:
        """The leader's."""
        return (
            Route(RequestCode.TRIVET_CHANGE_GROUP, self.change, HandledOn.LEADER),
            Route(RequestCode.TRIVET_TRANSFER_LEADERSHIP, self.transfer, HandledOn.LEADER),
        )

    # ------------------------------------------------------------------ members

    def change(self, connection: Connection, command: RemotingCommand) -> None:
        """Adds, promotes or removes a member. Raises `RequestError` with the codes of this module's head."""
        header = command.decode_fields(ChangeGroupHeader)
        node_id = _node_id(header.node)
        change: Change
        match header.operation:
            case "add":
                self._check_address(node_id, header.address)
                change = AddLearner(node_id)
            case "promote":
                change = PromoteLearner(node_id)
            case "remove":
                change = RemoveMember(node_id)
            case other:
                raise RequestError(
                    ResponseCode.INVALID_PARAMETER, f"operation {other!r}: one of add, promote, remove"
                )
        try:
            self._check_majority(change.applied_to(self._changes.configuration))
            self._changes.change_members(change, header.address, ReplyWhenCommitted(connection, command))
        except RaftError as error:
            raise _refusal(error) from error

    def _check_address(self, node_id: str, address: str | None) -> None:
        try:
            _, port = split_address(address or "")
        except ValueError as error:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"peer address {address or ''!r}: {error}"
            ) from None
        if port == 0:
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"peer address {address!r}: the port is 0")
        addresses, own_id = self._members.addresses, self._members.node_id
        if not addresses.get(own_id):
            raise RequestError(
                ResponseCode.ILLEGAL_OPERATION,
                f"{own_id} has no peer address that others could reach: name it in raft.peers and restart it",
            )
        for member in self._changes.configuration.members:
            if member != node_id and addresses.get(member) == address:
                raise RequestError(ResponseCode.INVALID_PARAMETER, f"{member} has the peer address {address}")

    def _check_majority(self, configuration: Configuration) -> None:
        """Raises `RequestError` for a change that could not be committed: it would stop the group."""
        voters, own_id = configuration.voters, self._members.node_id
        reached = [
            peer.node for peer in self._changes.peers() if peer.node in voters and self._is_reachable(peer)
        ] + [own_id for _ in range(own_id in voters)]
        if 2 * len(reached) <= len(voters):
            raise RequestError(
                ResponseCode.ILLEGAL_OPERATION,
                f"of the voters {', '.join(voters)} only {', '.join(reached) or 'none'} could be reached, no majority",
            )

    def _is_reachable(self, peer: PeerStatus) -> bool:
        # A new leader takes everyone for connected and lately heard; that there is a link is seen here.
        return self._members.is_linked(peer.node) and peer.silence_ns <= self._election_timeout_ns

    # ------------------------------------------------------------------ leadership

    def transfer(self, connection: Connection, command: RemotingCommand) -> None:
        """Has another voter lead. Raises `RequestError` with the codes of this module's head."""
        target = _node_id(command.decode_fields(TransferLeadershipHeader).node)
        own_id = self._members.node_id
        if target == own_id:
            reply(connection, command, ResponseCode.SUCCESS)
            return
        for peer in self._changes.peers():
            if peer.node == target and peer.voter and not self._is_reachable(peer):
                raise RequestError(ResponseCode.SYSTEM_BUSY, f"{target} is silent; {own_id} leads on")
        try:
            self._changes.transfer(target)
        except RaftError as error:
            raise _refusal(error) from error
        if self._transfer is not None:
            self._give_up()  # raft has given it up before; as the only one it would never be answered
        self._transfer = _Transfer(connection, command, target, self._changes.term)
        self._deadline.due_ns = self._time.now_ns + self._election_timeout_ns + _TRANSFER_GRACE_NS

    def _role_changed(self) -> None:
        transfer, leader = self._transfer, self._changes.leader
        assert (transfer is None) == (self._deadline.due_ns == NEVER), (
            "who waits for a transfer that nobody gives up would never be answered"
        )
        if transfer is None or leader is None:
            return
        if leader == transfer.target:
            self._forget()
            reply(transfer.connection, transfer.command, ResponseCode.SUCCESS)
        elif self._changes.term != transfer.term:
            self._refuse(f"{leader} leads now")

    def _give_up(self) -> None:
        self._refuse(f"the leader is {self._changes.leader or 'unknown'}")

    def _refuse(self, state: str) -> None:
        transfer = self._transfer
        assert transfer is not None, "nobody waits for a transfer"
        self._forget()
        reply(
            transfer.connection,
            transfer.command,
            ResponseCode.SYSTEM_BUSY,
            f"{transfer.target} did not take over in time; {state}",
        )

    def _disconnected(self, connection: Connection) -> None:
        if self._transfer is not None and self._transfer.connection is connection:
            self._forget()

    def _forget(self) -> None:
        self._transfer = None
        self._deadline.due_ns = NEVER


def _node_id(text: str) -> str:
    try:
        return msgspec.convert(text, NodeId)
    except msgspec.ValidationError:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER, f'{text!r} is no node id ("n" and a number, such as n3)'
        ) from None


def _refusal(error: RaftError) -> RequestError:
    """Returns the refusal of a change that raft does not make."""
    if isinstance(error, AlreadyMember | UnknownMember):
        return RequestError(ResponseCode.INVALID_PARAMETER, str(error))
    if isinstance(error, LastVoter):
        return RequestError(ResponseCode.ILLEGAL_OPERATION, str(error))
    return RequestError(ResponseCode.SYSTEM_BUSY, str(error))
