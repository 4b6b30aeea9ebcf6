"""The cluster at one moment: what every node says of itself, side by side with what its leader knows of it.

Nodes that no name server knows are in it, too, as long as their leader counts them: an operator looks for the dead one
first.
"""

import contextlib
import math
from collections.abc import Iterable, Mapping

import msgspec
import trio

from broker.client.admin import AdminClient
from broker.client.errors import ClientError
from broker.operations.asking import as_json, body_at
from broker.remoting.bodies import KeyValueTable
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.node_status import KnownLeader, NodeStatus, decode_node_status

PATIENCE_S = 1.5
"""A node that does not answer within this time counts as silent. To wait longer would make the others' answers old."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node, registered or only known to its leader. Fields that it has not told are None."""

    node: str
    address: str
    error: str | None = None
    """Why it did not answer; all below is unknown then, but for what the leader knows."""
    role: str | None = None
    serving: bool = False
    term: int | None = None
    leader: str | None = None
    commit_index: int | None = None
    applied_index: int | None = None
    lag: int | None = None
    """Entries that its leader has committed and it has not applied; of a silent node, those that the leader does not
    know it to hold."""
    last_contact_ms: int | None = None
    """Time since its leader heard of it."""
    recovering: str | None = None
    disk_full: bool = False
    disk_used: float | None = None
    """The part of its disk that is in use, from 0 to 1."""
    log_bytes: int | None = None
    stored: int | None = None
    """Messages that it has taken as the leader since it started."""
    delivered: int | None = None
    """Messages that it has given to consumers since it started."""
    started_ms: int | None = None
    release: str = ""
    recovered: tuple[str, ...] = ()
    process_id: int = 0


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A broker group."""

    cluster: str
    name: str
    leader: str | None
    """The node that serves; None if none does."""
    term: int | None
    voters: tuple[str, ...]
    learners: tuple[str, ...]
    nodes: tuple[NodeView, ...]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All groups at one moment. ``failure`` says why no groups can be shown; empty if they can."""

    at_ms: int
    groups: tuple[GroupView, ...]
    failure: str = ""
    refused: bool = False
    """True if ``failure`` is a refusal: whoever asks may not see the groups."""


class _Answer(msgspec.Struct):
    """What one address has answered."""

    cluster: str
    group: str
    address: str
    status: NodeStatus | None = None
    table: Mapping[str, str] = {}
    error: str | None = None
    refused: bool = False


class Observer:
    """Takes snapshots. It remembers addresses: a dead node is looked for where it was, though nobody registers it."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self._addresses: dict[tuple[str, str], tuple[str, str]] = {}
        """Cluster and address of each node that has answered, by group and node."""
        self.leaders: dict[str, tuple[KnownLeader, ...]] = {}
        """By group the leaders that its nodes remember, one for each term, the newest last."""

    async def look(self, at_ms: int) -> Snapshot:
        """Ask every node; returns within 2 s once the name server has answered. Raises nothing for what fails."""
        try:
            info = await self._admin.cluster_info()
        except ClientError as error:
            return await self._without_name_server(at_ms, error)
        answers = [
            _Answer(data.cluster, name, address)
            for name, data in info.broker_table.items()
            for address in data.broker_addresses.values()
        ]
        return await self._finish(at_ms, answers, "")

    async def _without_name_server(self, at_ms: int, error: ClientError) -> Snapshot:
        """Ask the nodes that were there before: groups may be well while their name servers are not."""
        refused = getattr(error, "code", None) == ResponseCode.NO_PERMISSION
        if refused or not self._addresses:
            return Snapshot(at_ms=at_ms, groups=(), failure=str(error), refused=refused)
        return await self._finish(at_ms, [], str(error))

    async def _finish(self, at_ms: int, answers: list[_Answer], failure: str) -> Snapshot:
        asked = {answer.address for answer in answers}
        answers += [
            _Answer(cluster, group, address)
            for (group, _), (cluster, address) in self._addresses.items()
            if address not in asked
        ]
        async with trio.open_nursery() as nursery:
            for answer in answers:
                nursery.start_soon(self._ask, answer)
        if answers and all(answer.refused for answer in answers):
            # Whether they serve is not for this account to know; it is not that they do not.
            return Snapshot(at_ms=at_ms, groups=(), failure=answers[0].error or "", refused=True)
        for answer in answers:
            if answer.status is not None:
                self._addresses[answer.group, answer.status.node] = answer.cluster, answer.address
        groups = {(answer.cluster, answer.group) for answer in answers}
        views = tuple(
            self._group(cluster, name, [answer for answer in answers if answer.group == name])
            for cluster, name in sorted(groups)
        )
        return Snapshot(at_ms=at_ms, groups=views, failure=failure)

    async def _ask(self, answer: _Answer) -> None:
        answer.error = f"no answer within {PATIENCE_S:g} s"
        with trio.move_on_after(PATIENCE_S):
            try:
                status = await body_at(
                    self._admin, answer.address, RequestCode.TRIVET_NODE_STATUS, decode_node_status
                )
                code, decode = RequestCode.GET_BROKER_RUNTIME_INFO, as_json(KeyValueTable)
                answer.table = (await body_at(self._admin, answer.address, code, decode)).table
                answer.status, answer.error = status, None
            except ClientError as error:
                answer.error = str(error)
                answer.refused = getattr(error, "code", None) == ResponseCode.NO_PERMISSION

    def _group(self, cluster: str, name: str, answers: list[_Answer]) -> GroupView:
        known = [answer.status for answer in answers if answer.status is not None]
        self.leaders[name] = _merged(known)
        leader = max((status for status in known if status.serving), key=lambda one: one.term, default=None)
        newest = leader or max(known, key=lambda one: one.configuration_index, default=None)
        members = () if newest is None else (*newest.voters, *newest.learners)
        views = {
            answer.status.node: _answering(answer.status, answer, leader)
            for answer in answers
            if answer.status is not None
        }
        silent = {answer.address: answer for answer in answers if answer.status is None}
        for node in members:
            if node not in views:
                views[node] = self._silent(name, node, silent, leader)
        for (group, node), _ in list(self._addresses.items()):
            # A node that was removed is nobody's any more, as soon as it is silent.
            if group == name and members and node not in members and views.get(node) is None:
                del self._addresses[group, node]
        for address, answer in silent.items():
            if not members or answer.refused:
                views[address] = NodeView(node=address, address=address, error=answer.error)
        return GroupView(
            cluster=cluster,
            name=name,
            leader=None if leader is None else leader.node,
            term=max((status.term for status in known), default=None),
            voters=() if newest is None else newest.voters,
            learners=() if newest is None else newest.learners,
            nodes=tuple(view for _, view in sorted(views.items())),
        )

    def _silent(
        self, group: str, node: str, silent: Mapping[str, _Answer], leader: NodeStatus | None
    ) -> NodeView:
        _, address = self._addresses.get((group, node), ("", ""))
        answer = silent.get(address)
        peer = None if leader is None else next((peer for peer in leader.peers if peer.id == node), None)
        return NodeView(
            node=node,
            address=address,
            error="not registered" if answer is None else answer.error,
            lag=None if leader is None or peer is None else max(0, leader.commit_index - peer.match_index),
            last_contact_ms=None if peer is None else peer.last_contact_ms,
        )


def _merged(known: Iterable[NodeStatus]) -> tuple[KnownLeader, ...]:
    """Return the leaders that nodes remember, each with the earliest time at which a node heard of it."""
    # A term has one leader at most (Raft 5.2), so that the term tells which of them are the same.
    first: dict[int, KnownLeader] = {}
    for leader in (leader for status in known for leader in status.leaders):
        if leader.term not in first or leader.at_ms < first[leader.term].at_ms:
            first[leader.term] = leader
    return tuple(first[term] for term in sorted(first))


def _answering(status: NodeStatus, answer: _Answer, leader: NodeStatus | None) -> NodeView:
    table = answer.table
    peer = None if leader is None else next((peer for peer in leader.peers if peer.id == status.node), None)
    return NodeView(
        node=status.node,
        address=answer.address,
        role=status.role,
        serving=status.serving,
        term=status.term,
        leader=status.leader,
        commit_index=status.commit_index,
        applied_index=status.applied_index,
        lag=None if leader is None else max(0, leader.commit_index - status.applied_index),
        last_contact_ms=None if peer is None else peer.last_contact_ms,
        recovering=status.recovering,
        disk_full=status.disk_full,
        disk_used=_number(table, "commitLogDiskRatio"),
        log_bytes=status.last_position,
        stored=_count(table, "putMessageTimesTotal"),
        delivered=_count(table, "msgGetTotalTodayNow"),
        started_ms=_count(table, "bootTimestamp"),
        release=status.release,
        recovered=status.recovered,
        process_id=status.process_id,
    )


def _number(table: Mapping[str, str], name: str) -> float | None:
    with contextlib.suppress(KeyError, ValueError):
        number = float(table[name])
        return number if math.isfinite(number) else None
    return None


def _count(table: Mapping[str, str], name: str) -> int | None:
    number = _number(table, name)
    return None if number is None else int(number)
