"""A node that stops hands over, says goodbye and waits for its jobs, each for a while and in this order."""

from __future__ import annotations

import msgspec
import pytest

from broker.node.orderly_stop import OrderlyStop, StopState
from broker.node.registrar import Registrar
from broker.remoting.codes import ResponseCode
from broker.remoting.command import encode, request, response
from broker.remoting.frame import FrameDecoder
from broker.replica.inner_limits import InnerLimits
from broker.replica.jobs import Jobs
from broker.requests.client_sessions import ClientSession
from log.entries.entry_log import EntryLog
from log.entries.tail import PrepareJob
from tests.broker.harness import Client, Group
from tests.broker.lines import Desk

REGISTER, UNREGISTER = 103, 104


class Rig:
    """The stop of a node that is registered with one name server."""

    def __init__(self, group: Group, node_id: str) -> None:
        self.desk = Desk()
        self.replica = group.node(node_id).replica
        self.jobs = Jobs(self.replica)
        self.ended = 0
        self.has_clients = True
        self.clients_are_left = False
        self.refused = 0
        self.registrar = Registrar(
            "ns:9876",
            lambda: request(REGISTER),
            lambda: request(UNREGISTER),
            30 * 10**9,
            surroundings=self.desk,
            time=self.desk.time,
            outgoing=self.desk.outgoing,
            dial=self.desk.dial,
        )
        line = self.registrar.line
        line.start()
        line.opened(self.desk.connection)
        line.received(encode(response(FrameDecoder().feed(self.desk.take())[0], 0)))

    def stop(self, linger_s: int = 0) -> OrderlyStop:
        def stopped() -> None:
            self.ended += 1

        return OrderlyStop(
            self.replica.leadership,
            self.replica.group_changes,
            self.jobs,
            [self.registrar],
            self,
            self.desk,
            self.desk.time,
            stopped,
            linger_ns=linger_s * 10**9,
        )

    def refuse_clients(self) -> None:
        self.refused += 1

    def part_with_clients(self) -> bool:
        return not self.clients_are_left

    def said(self) -> list[int]:
        return [command.code for command in FrameDecoder().feed(self.desk.take())]

    def written(self) -> None:
        self.registrar.line.lost(self.desk.connection, "closed here")


def state_of(stop: OrderlyStop) -> StopState:
    return stop.state


def test_a_follower_says_goodbye_at_once(group: Group) -> None:
    rig = Rig(group, group.follower)
    stop = rig.stop()
    assert (state_of(stop), rig.said()) == (StopState.SAYS_GOODBYE, [UNREGISTER])
    stop.turned()
    assert (state_of(stop), rig.ended) == (StopState.SAYS_GOODBYE, 0)
    rig.written()
    stop.turned()
    assert (state_of(stop), rig.ended) == (StopState.STOPPED, 1)
    stop.turned()
    assert rig.ended == 1


def handed_over(group: Group, *, is_master: bool) -> tuple[Rig, OrderlyStop]:
    """A leader that stops and leads no more. `is_master`: name servers send clients to it still."""
    leader = group.leader
    rig = Rig(group, leader)
    rig.registrar.is_master = is_master
    stop = rig.stop()
    assert (state_of(stop), rig.said()) == (StopState.HANDS_OVER, [])
    group.members[leader].due_ns = group.now_ns
    group.run_until(lambda: not rig.replica.serving, "another leader")
    stop.turned()
    return rig, stop


def test_a_leader_hands_over_first(group: Group) -> None:
    rig, stop = handed_over(group, is_master=False)
    assert (state_of(stop), rig.said()) == (StopState.SAYS_GOODBYE, [UNREGISTER])


def test_the_heir_is_registered_before_the_old_leader_leaves(group: Group) -> None:
    """What stops is the master of every route until then, and forwards what comes."""
    rig, stop = handed_over(group, is_master=True)
    assert (state_of(stop), rig.said()) == (StopState.AWAITS_HEIR, [])
    rig.registrar.is_master = False  # the name server has told of another one
    stop.turned()
    assert (state_of(stop), rig.said()) == (StopState.SAYS_GOODBYE, [UNREGISTER])


def test_an_heir_that_does_not_register_is_waited_for_two_seconds(group: Group) -> None:
    rig, stop = handed_over(group, is_master=True)
    rig.desk.advance(1.99)
    stop.turned()
    assert state_of(stop) is StopState.AWAITS_HEIR
    rig.desk.advance(0.01)
    assert (state_of(stop), rig.said()) == (StopState.SAYS_GOODBYE, [UNREGISTER])


def test_a_node_lingers_for_clients_with_older_routes(group: Group) -> None:
    rig = Rig(group, group.follower)
    stop = rig.stop(linger_s=25)
    rig.desk.advance(24.99)
    stop.turned()
    assert (state_of(stop), rig.said()) == (StopState.LINGERS, [])
    rig.desk.advance(0.01)
    assert (state_of(stop), rig.said()) == (StopState.SAYS_GOODBYE, [UNREGISTER])


def test_a_node_lingers_no_longer_than_clients_are_connected(group: Group) -> None:
    rig = Rig(group, group.follower)
    stop = rig.stop(linger_s=35)
    stop.turned()
    assert state_of(stop) is StopState.LINGERS
    rig.has_clients = False
    stop.turned()
    assert state_of(stop) is StopState.SAYS_GOODBYE
    assert state_of(Rig(group, group.follower).stop(linger_s=0)) is StopState.SAYS_GOODBYE


def test_a_node_that_is_elected_while_it_lingers_hands_over_again(group: Group) -> None:
    follower = group.follower
    rig = Rig(group, follower)
    stop = rig.stop(linger_s=35)
    group.node(group.leader).replica.group_changes.transfer(follower)
    for member in group.members.values():
        member.due_ns = group.now_ns
    group.run_until(lambda: rig.replica.serving, "the node leads")
    stop.turned()
    assert state_of(stop) is StopState.HANDS_OVER
    group.members[follower].due_ns = group.now_ns
    group.run_until(lambda: not rig.replica.serving, "another leader")
    stop.turned()
    assert (state_of(stop), rig.said()) == (StopState.LINGERS, [])


def test_a_leader_that_nobody_follows_waits_for_a_second(group: Group) -> None:
    leader = group.leader
    group.partition(leader)
    rig = Rig(group, leader)
    stop = rig.stop()
    rig.desk.advance(0.99)
    stop.turned()
    assert state_of(stop) is StopState.HANDS_OVER
    rig.desk.advance(0.01)
    assert (state_of(stop), rig.said()) == (StopState.SAYS_GOODBYE, [UNREGISTER])


def test_a_leader_alone_has_nobody_to_hand_over_to() -> None:
    group = Group.elected(1)
    assert state_of(Rig(group, "n0").stop()) is StopState.SAYS_GOODBYE


def test_a_goodbye_that_cannot_be_written_is_waited_for_a_second(group: Group) -> None:
    rig = Rig(group, group.follower)
    stop = rig.stop()
    rig.desk.advance(0.99)
    stop.turned()
    assert state_of(stop) is StopState.SAYS_GOODBYE
    rig.desk.advance(0.01)
    stop.turned()
    assert (state_of(stop), rig.ended) == (StopState.STOPPED, 1)


def test_a_name_server_that_was_not_connected_is_not_waited_for(group: Group) -> None:
    rig = Rig(group, group.follower)
    rig.written()
    stop = rig.stop()
    stop.turned()
    assert rig.ended == 1


def test_jobs_that_are_out_come_back_and_no_new_ones_begin(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EntryLog, "prepare_job", lambda self: PrepareJob([]))
    monkeypatch.setattr(EntryLog, "prepared", lambda self, job: None)
    rig = Rig(group, group.follower)
    (job, *_) = rig.jobs.others()
    assert not job.failure_stops_node
    stop = rig.stop()
    assert rig.jobs.others(), "until the goodbye everything goes on as before"
    rig.written()
    stop.turned()
    assert (state_of(stop), rig.jobs.out) == (StopState.AWAITS_JOBS, 2)
    assert (rig.jobs.others(), rig.jobs.flush()) == ([], None)
    for _ in range(2):
        assert rig.ended == 0
        rig.jobs.done(job)
        stop.turned()
    assert (state_of(stop), rig.ended) == (StopState.STOPPED, 1)


def test_clients_that_wait_have_their_answers_first(group: Group) -> None:
    """For a second at most: the heir may be gone, too."""
    for answered in (True, False):
        rig = Rig(group, group.follower)
        rig.clients_are_left = True
        stop = rig.stop()
        assert rig.refused == 0
        rig.written()
        stop.turned()
        rig.desk.advance(0.9)
        stop.turned()
        assert (state_of(stop), rig.ended, rig.refused) == (StopState.LEAVES_CLIENTS, 0, 1)
        if answered:
            rig.clients_are_left = False
        else:
            rig.desk.advance(0.2)
        stop.turned()
        assert (state_of(stop), rig.ended) == (StopState.STOPPED, 1)


@pytest.mark.parametrize(
    ("topic", "fields"), [("New", {}), ("T", {"once": 0, "again": True})], ids=["topic", "repeated send"]
)
def test_sends_that_a_turn_has_left_for_later_ones_have_their_answers(
    topic: str, fields: dict[str, object]
) -> None:
    """What they waited for is there, and nobody could take a node's place that is alone."""
    group = Group(1, start=False)
    group.limits = InnerLimits(held_at_once=1)
    group.start("n0")
    group.elect()
    client = group.connect()
    client.create_topic("T")
    opaques = [client.start_send(topic, b"x", 0, {"UNIQ_KEY": "K"}, **fields) for _ in range(5)]
    ended: list[bool] = []
    group.members["n0"].process.stop(lambda: ended.append(True))
    group.run_until(lambda: bool(ended), "the stop ends")
    assert [client.answers[opaque].code for opaque in opaques] == [ResponseCode.SUCCESS] * 5


def test_a_node_does_not_end_before_its_client_has_the_leaders_answer() -> None:
    group = Group.elected(3)
    group.converge()
    group.connect().create_topic("t")
    client = group.connect(group.follower)
    follower, leader = group.follower, group.leader
    ends: list[int] = []
    group.stop(leader)
    opaque = client.start_send("t", b"x")
    group.members[follower].process.stop(lambda: ends.append(group.now_ns))
    group.advance(0.3)
    assert (ends, client.answers) == ([], {})
    group.go_on(leader)
    group.run_until(lambda: bool(ends), "the stop ends")
    assert client.answers[opaque].code == 0


def test_a_leader_does_not_end_before_it_has_given_back_what_other_nodes_asked_it() -> None:
    """It gives back some in each turn; of what was left their clients heard that the outcome is unknown."""
    group = Group(3, start=False)
    group.limits = InnerLimits(relayed_work_a_turn=1)
    for name in group.members:
        group.start(name)
    group.elect()
    setup = group.connect()
    setup.create_topic("t")
    setup.close()
    group.converge()
    leader, left = group.leader, list[int]()
    node = group.node(leader)
    group.members[leader].process.stop(lambda: left.append(len(node._relayed.given_back)))
    heir = node.replica.raft.transferee
    assert heir is not None
    group.stop(heir)
    client = group.connect(next(other for other in group.members if other not in (leader, heir)))
    asked = [client.start_send("t", b"%d" % number) for number in range(20)]
    group.advance(0.01)
    assert node.held_count == 20
    group.go_on(heir)
    group.run_until(lambda: bool(left), "the stop ends")
    assert left == [0]
    assert {client.wait(opaque).code for opaque in asked} == {ResponseCode.SUCCESS}


def is_closing(client: Client) -> bool:
    return client.connection.close_requested


def test_each_connection_is_closed_when_nothing_is_under_way_on_it() -> None:
    """Right behind the last answer: a client whose connection ends behind a request waits for its whole time."""
    group = Group.elected(3)
    group.converge()
    group.connect().create_topic("t")
    follower, leader = group.follower, group.leader
    idle, waits, sends = (group.connect(follower) for _ in range(3))
    member = group.members[follower]
    ends: list[int] = []
    group.stop(leader)
    opaque = waits.start_send("t", b"x")
    member.unread.add(sends.connection)
    member.process.stop(lambda: ends.append(group.now_ns))
    group.run_until(lambda: is_closing(idle), "the stop begins")
    assert member.refuses_clients
    assert not is_closing(waits)
    group.go_on(leader)
    group.run_until(lambda: opaque in waits.answers, "the answer")
    assert is_closing(waits), "in the turn that has brought the answer"
    assert (ends, is_closing(sends)) == ([], False)
    member.unread.clear()
    group.run_until(lambda: bool(ends), "the stop ends")
    assert is_closing(sends)


@pytest.mark.parametrize("takes_them", [True, False])
def test_a_client_that_has_not_taken_its_answers_yet_has_a_second_for_it(
    takes_them: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection was closed in the middle of an answer: the one of a send that is stored might stand behind it."""
    group = Group.elected(3)
    group.converge()
    member = group.members[group.follower]
    client = group.connect(member.id)
    client.connection.unsent_bytes = 100_000
    ends: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(client, "close", lambda: None)  # the shell waits until all is written
        member.process.stop(lambda: ends.append(group.now_ns))
        group.advance(0.9)
    assert (is_closing(client), ends) == (True, [])
    if takes_them:
        client.close()
        group.settle()
    else:
        group.advance(0.2)
    assert ends


def arriving(group: Group, node: str, name: str) -> ClientSession:
    """A client that has connected and is not let in yet."""
    session = group.members[node].process.clients.accept(name)
    assert session is not None
    return session


def test_who_is_arriving_and_may_have_asked_for_something_is_let_in_before_the_stop_ends() -> None:
    """They were cut off in the middle of their handshakes, or with a request that nobody had read."""
    group = Group.elected(3)
    group.converge()
    member = group.members[group.follower]
    silent, shakes, speaks = (arriving(group, member.id, name) for name in ("silent", "shakes", "speaks"))
    shakes.shakes_hands()
    member.unread.add(speaks.connection)
    ends: list[int] = []
    member.process.stop(lambda: ends.append(group.now_ns))
    group.advance(0.1)
    assert silent.connection.aborted, "nothing is under way there"
    silent.lost()
    for session in (shakes, speaks):
        assert not ends
        assert not session.connection.aborted
        session.let_in()
        if session is speaks:
            member.unread.clear()
            session.received(encode(request(REGISTER)))
        group.advance(0.1)
        assert session.connection.close_requested
        session.lost()  # the shell has written what was to be written, and closed it
        group.settle()
    assert ends


@pytest.mark.parametrize("seconds", [0.1, 0.9])
def test_a_handshake_that_does_not_end_delays_a_stop_by_a_second_at_most(seconds: float) -> None:
    group = Group.elected(3)
    group.converge()
    member = group.members[group.follower]
    shakes = arriving(group, member.id, "shakes")
    shakes.shakes_hands()
    ends: list[int] = []
    member.process.stop(lambda: ends.append(group.now_ns))
    group.advance(seconds)
    assert not ends
    if seconds == 0.1:
        shakes.lost()
        group.settle()
    else:
        group.advance(0.2)
    assert ends


@pytest.mark.parametrize(("preferred", "seconds"), [((), 25), (("n0", "n1", "n2"), 0)])
def test_nodes_linger_as_set_but_for_preferred_leaders(preferred: tuple[str, ...], seconds: int) -> None:
    """To which leadership would come back."""
    group = Group(3, node={"linger_s": 25}, start=False)
    for member in group.members.values():
        raft = msgspec.structs.replace(member.config.raft, preferred_leaders=preferred)
        member.config = msgspec.structs.replace(member.config, raft=raft)
        group.start(member.id)
    group.elect()
    group.connect(group.follower)
    ends: list[int] = []
    begins = group.now_ns
    group.members[group.follower].process.stop(lambda: ends.append(group.now_ns))
    group.run_until(lambda: bool(ends), "the stop ends", limit_s=60)
    assert (ends[0] - begins) // 10**9 == seconds
