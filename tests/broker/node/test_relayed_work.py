"""What clients ask by way of a follower is handled by its leader in turns, each address in its turn, Raft's messages
before.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.node.links import AcceptedLink
from broker.node.node import Node
from broker.node.running import RunningNode
from broker.node.unhandled_forwards import UnhandledForwards
from broker.peers.protocol import ClientGone, Forward, PeerProtocolError, encode_frame
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, encode, request
from broker.replica.inner_limits import InnerLimits
from broker.requests.connection import LOOPBACK_HOST, Connection, RelayedConnection
from log.formats.record import pack_host
from tests.broker.harness import Client, Group

WORK = 4


class Handled:
    """The requests of other nodes' clients, in the order in which nodes have handled them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.addresses: list[str] = []
        self.most = 0
        """The most of them until the end of a turn."""
        self._count = 0
        received, end_turn = Node.received, RunningNode.end_turn

        def counted(node: Node, connection: Connection, command: RemotingCommand) -> None:
            if isinstance(connection, RelayedConnection):
                self.addresses.append(connection.address)
                self._count += 1
                self.most = max(self.most, self._count)
            received(node, connection, command)

        def ended(running: RunningNode) -> int:
            self._count = 0
            return end_turn(running)

        patch.setattr(Node, "received", counted)
        patch.setattr(RunningNode, "end_turn", ended)


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> Handled:
    return Handled(monkeypatch)


@pytest.fixture
def group(handled: Handled, monkeypatch: pytest.MonkeyPatch) -> Group:
    monkeypatch.setattr(Group, "limits", InnerLimits(relayed_work_a_turn=WORK))
    group = Group.elected(3)
    client = group.connect()
    client.create_topic("T")
    client.close()
    group.converge()
    handled.addresses.clear()
    return group


def unhandled(group: Group) -> UnhandledForwards:
    """Those of the leader."""
    return group.node(group.leader)._relayed._unhandled


def sends(client: Client, count: int) -> list[int]:
    return [client.start_send("T", b"%d" % number) for number in range(count)]


def deliver_forwards(group: Group, count: int, *, host: bytes = LOOPBACK_HOST, connection: int = 900) -> str:
    """Has a follower's link bring one-way requests to the leader; returns the follower."""
    follower = group.follower
    term = group.node(group.leader).replica.term
    data = encode(request(RequestCode.GET_BROKER_CLUSTER_INFO, one_way=True))
    frame = b"".join(encode_frame(Forward(connection, host, term, data)))
    link_to_leader(group, follower).received(frame * count)
    return follower


def link_to_leader(group: Group, follower: str) -> AcceptedLink:
    return group.members[group.leader].process.links.accepted[follower]


def test_a_turn_handles_so_many_and_all_are_handled_in_their_order(group: Group, handled: Handled) -> None:
    client = group.connect(group.follower)
    opaques = sends(client, 10 * WORK)
    assert [client.wait(opaque, 0).fields["queueOffset"] for opaque in opaques] == [
        str(number) for number in range(10 * WORK)
    ]
    assert len(handled.addresses) == 10 * WORK
    assert handled.most == WORK
    assert not unhandled(group).by_share


def test_a_long_request_counts_as_several(group: Group, handled: Handled) -> None:
    client = group.connect(group.follower)
    opaques = [client.start_send("T", bytes(8 * 1024)) for _ in range(6)]
    assert {client.wait(opaque, 0).code for opaque in opaques} == {0}
    assert handled.most == 2, "each counts as three of four, and the last one may be beyond"


def test_addresses_take_turns(group: Group, handled: Handled) -> None:
    many, one = (group.connect(group.follower, host=host) for host in ("10.0.0.1", "10.0.0.2"))
    opaques = sends(many, 20 * WORK)
    last = one.start_send("T", b"one")
    one.wait(last, 0)
    assert handled.addresses.index("10.0.0.2") <= 2 * WORK
    assert {many.wait(opaque, 0).code for opaque in opaques} == {0}


def test_all_addresses_of_a_network_take_one_turn(group: Group, handled: Handled) -> None:
    follower = group.follower
    crowd = [group.connect(follower, host=f"2001:db8:0:1::{number:x}") for number in range(20)]
    one = group.connect(follower, host="2001:db8:0:2::1")
    for client in crowd:
        sends(client, WORK)
    one.wait(one.start_send("T", b"one"), 0)
    assert handled.addresses.index("2001:db8:0:2::1") <= 2 * WORK


def test_what_raft_says_does_not_wait_behind_it(group: Group) -> None:
    """A leader whose followers' acknowledgements wait behind a client's flood loses its term."""
    leader = group.node(group.leader)
    own = group.connect()
    sent = own.start_send("T", b"x")
    process = group.members[group.leader].process
    process.turn(group.now_ns, group.wall_ms)
    process.end_turn()
    follower = deliver_forwards(group, 100)
    other = next(node for node in group.members if node not in (follower, group.leader))
    group.lose = lambda source, target, frame: source == other
    left: list[int] = []
    committed = leader.replica.raft.commit_index
    while leader.replica.raft.commit_index == committed:
        group._deliver(group._in_flight.popleft())
        for node in (follower,):
            if group.members[node].due_ns <= group.now_ns:
                group._turn(group.members[node])
        left.append(len(unhandled(group)))
    assert left[-1] == 100 - WORK, "not one of them was handled meanwhile"
    assert own.wait(sent, 0).code == 0


def test_a_client_that_has_gone_is_forgotten_behind_what_it_has_asked(group: Group) -> None:
    client = group.connect(group.follower)
    client.heartbeat("g")
    group.settle()
    sends(client, 5 * WORK)
    client.close()
    group.settle()
    reader = group.connect()
    assert reader.offset_of(RequestCode.GET_MAX_OFFSET, "T") == 5 * WORK
    relayed = group.node(group.leader)._relayed
    assert relayed._connections == {}
    assert not relayed.waiting


def test_many_that_have_gone_are_forgotten_in_turns(group: Group) -> None:
    follower = group.follower
    relayed = group.node(group.leader)._relayed
    for number in range(5 * WORK):
        deliver_forwards(group, 1, connection=1000 + number)
        group.settle()
    frames = b"".join(b"".join(encode_frame(ClientGone(1000 + number))) for number in range(5 * WORK))
    link_to_leader(group, follower).received(frames)
    assert len(relayed._connections) == 4 * WORK
    group.settle()
    assert relayed._connections == {}


def lose_link(group: Group, follower: str) -> None:
    link_to_leader(group, follower).close("a test ends it")


def lose_leadership(group: Group, follower: str) -> None:
    group.transfer_leadership(follower)


@pytest.mark.parametrize("loses", [lose_link, lose_leadership])
def test_the_clients_that_are_lost_with_a_link_or_a_role_are_forgotten_in_turns(
    group: Group, monkeypatch: pytest.MonkeyPatch, loses: Callable[[Group, str], None]
) -> None:
    former, follower = group.node(group.leader), group.follower
    clients = [group.connect(follower) for _ in range(5 * WORK)]
    for client in clients:
        client.heartbeat("g")
    group.settle()
    assert len(former._relayed._connections) == 5 * WORK
    told: list[int] = [0]
    former.listeners.disconnects.append(lambda _: told.append(told.pop() + 1))
    end_turn = RunningNode.end_turn

    def ended(running: RunningNode) -> int:
        if running.node is former:
            told.append(0)
        return end_turn(running)

    monkeypatch.setattr(RunningNode, "end_turn", ended)
    loses(group, follower)
    assert not former._relayed._connections, "nobody is answered through them any more"
    group.settle()
    assert sum(told) == 5 * WORK
    assert max(told) == WORK


def test_what_waits_of_a_node_is_lost_with_its_link(group: Group) -> None:
    follower = deliver_forwards(group, 10 * WORK)
    other = next(node for node in group.members if node not in (follower, group.leader))
    term = group.node(group.leader).replica.term
    data = encode(request(RequestCode.GET_BROKER_CLUSTER_INFO, one_way=True))
    link_to_leader(group, other).received(b"".join(encode_frame(Forward(5, LOOPBACK_HOST, term, data))))
    waiting = unhandled(group)
    assert len(waiting) == 9 * WORK + 1
    link_to_leader(group, follower).close("a test ends it")
    assert len(waiting) == 1, "that of the other node"
    assert (waiting.requests.places.taken, waiting.requests.bytes.taken) == (1, len(data))
    group.settle()
    assert (waiting.requests.places.taken, waiting.requests.bytes.taken) == (0, 0)


def test_of_one_address_half_of_the_places_are_taken_and_others_find_one(group: Group) -> None:
    leader = group.node(group.leader)
    leader._relayed._unhandled = waiting = UnhandledForwards(requests_max=20)
    leader._relayed.waiting = waiting.by_share
    many, one = (group.connect(group.follower, host=host) for host in ("10.0.0.1", "10.0.0.2"))
    opaques = sends(many, 30)
    last = one.start_send("T", b"one")
    assert one.wait(last, 0).code == 0
    codes = [many.wait(opaque, 0).code for opaque in opaques]
    assert codes == [0] * (WORK + 10) + [ResponseCode.SYSTEM_BUSY] * (20 - WORK)
    # Nobody waits for an answer to these: they are dropped, and the link stays.
    deliver_forwards(group, 100, host=pack_host("10.0.0.1", 1))
    assert len(waiting) == 10
    group.settle()
    assert one.send("T", b"another").queue_offset >= 0


def test_what_a_node_tells_of_its_clients_has_places_of_its_own(group: Group) -> None:
    """Requests have filled theirs: who asks is refused, but a leader knows who is there."""
    leader = group.node(group.leader)
    leader._relayed._unhandled = waiting = UnhandledForwards(requests_max=20)
    leader._relayed.waiting = waiting.by_share
    many, leaving, coming = (group.connect(group.follower) for _ in range(3))
    leaving.heartbeat("g")
    group.converge()
    assert leader.registry.members("g") == [leaving.client_id]
    opaques = sends(many, 30)
    coming.heartbeat("g")
    leaving.call(RequestCode.UNREGISTER_CLIENT, {"clientID": leaving.client_id, "consumerGroup": "g"})
    answers = [many.wait(opaque).code for opaque in opaques]
    assert answers == [0] * (WORK + 10) + [ResponseCode.SYSTEM_BUSY] * (20 - WORK)
    assert leader.registry.members("g") == [coming.client_id]
    for room in (waiting.requests, waiting.news):
        assert (room.places.taken, room.bytes.taken) == (0, 0)


def test_a_request_that_cannot_be_read_and_had_to_wait_ends_the_link_with_the_next_one(group: Group) -> None:
    leader = group.node(group.leader)
    follower = deliver_forwards(group, 2 * WORK)
    broken = Forward(900, LOOPBACK_HOST, leader.replica.term, b"nonsense")
    assert leader.peer_received(follower, broken)
    process = group.members[group.leader].process
    while unhandled(group).by_share:
        process.turn(group.now_ns, group.wall_ms)
        process.end_turn()
    with pytest.raises(PeerProtocolError, match="cannot be read"):
        leader.peer_received(follower, broken)


def test_what_waits_when_leadership_ends_is_asked_of_the_next_leader(group: Group) -> None:
    """Given back undone: each message is stored once, and answered."""
    third = next(node for node in group.members if node not in (group.leader, group.follower))
    client = group.connect(third)
    opaques = sends(client, 20 * WORK)
    former = group.leader
    # All that the client has sent reaches the former leader, which has one turn of it.
    group._turn(group.members[third])
    while group._in_flight:
        group._deliver(group._in_flight.popleft())
    assert unhandled(group).by_share
    group.transfer_leadership(group.follower)
    answers = [client.wait(opaque) for opaque in opaques]
    assert {answer.code for answer in answers} == {0}
    assert group.leader != former
    group.converge()
    assert group.connect().offset_of(RequestCode.GET_MAX_OFFSET, "T") == 20 * WORK
    assert not group.node(former)._relayed.waiting
