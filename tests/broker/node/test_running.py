"""A node that runs: answers leave and flushes begin within its turns; name servers are told what is in force."""

from __future__ import annotations

import pytest

from broker.node.running import RunningNode
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand, encode, request, response
from broker.remoting.frame import FrameDecoder
from broker.remoting.register_body import RegisterBrokerBody
from broker.replica.jobs import Job
from broker.requests.client_sessions import WORK_AT_ONCE, ClientSession
from broker.requests.connection import Connection
from broker.requests.line import Line
from log.dispatching.dispatch import Dispatch
from log.store import Store
from tests.broker.harness import Group, Member
from tests.broker.lines import let_in

NAME_SERVER = "ns:9876"
INTERVAL_MS = 10_000


class NameServerEnd:
    """The end of a node's connection that a name server has, which says yes to all; `said` is what has come."""

    def __init__(self) -> None:
        self.line: Line
        self.said: list[RemotingCommand] = []
        self.answers = True
        self._decoder = FrameDecoder()

    def dialled(self, member: Member, line: Line) -> None:
        self.line = line
        member.clients[line.connection] = self
        line.opened(line.connection)

    def receive(self, data: bytes) -> None:
        for command in self._decoder.feed(data):
            self.said.append(command)
            if self.answers:
                self.line.received(encode(response(command, 0)))

    def close(self) -> None:
        self.lost()
        self.line.lost(self.line.connection, "closed here")

    def lost(self) -> None:
        pass

    def permission(self) -> int:
        """What clients may do with the topic T, as the newest registration says."""
        command = self.said[-1]
        assert command.code == RequestCode.REGISTER_BROKER
        body = RegisterBrokerBody.decode(command.body, compressed=False, version=command.version)
        return body.topics.topic_config_table["T"].perm


def registered(end: NameServerEnd) -> Group:
    """A node alone with a topic T, registered with the end."""
    group = Group.elected(
        1,
        node={"name_servers": (NAME_SERVER,)},
        broker={"register_interval_ms": INTERVAL_MS},
        dial_name_server=end.dialled,
    )
    group.connect().create_topic("T")
    group.settle()
    assert end.permission() == 6
    return group


def permit(group: Group, permission: int) -> None:
    group.connect().ok(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=%d" % permission)


def test_a_registration_says_what_is_in_force_and_not_what_was_at_the_start() -> None:
    end = NameServerEnd()
    group = registered(end)
    permit(group, 4)
    assert end.permission() == 4, "at once"
    end.said.clear()
    group.advance(INTERVAL_MS / 1000)
    assert [command.code for command in end.said] == [RequestCode.REGISTER_BROKER]
    assert end.permission() == 4, "and at each interval"


def test_a_registration_behind_another_s_response_says_what_is_in_force_then() -> None:
    end = NameServerEnd()
    group = registered(end)
    end.answers = False
    permit(group, 4)
    permit(group, 2)
    assert end.permission() == 4
    end.answers = True
    end.line.received(encode(response(end.said[-1], 0)))
    group.settle()
    assert end.permission() == 2


def test_a_registration_on_a_new_connection_says_what_is_in_force() -> None:
    end = NameServerEnd()
    group = registered(end)
    member = group.members["n0"]
    del member.clients[end.line.connection]
    end.line.lost(end.line.connection, "its name server fell")
    permit(group, 2)
    end.said.clear()
    group.advance(1)
    assert end.permission() == 2


class Rig:
    """A node alone that runs, with `sync` flushes; `happened` is what its surroundings are asked for, in order."""

    def __init__(self) -> None:
        self.group = Group(1, flush="sync")
        self.group.elect()
        self.group.connect().create_topic("T")
        member = self.group.members["n0"]
        self.node = member.alive
        self.happened: list[object] = []
        self.turns_wanted = 0
        self.jobs: list[Job] = []
        self.running = RunningNode(
            self.node,
            self,
            address="127.0.0.1:1",
            nonce=bytes,
            begin_job=self.begin_job,
            begin_flush=self.flush,
        )

    def refuse_clients(self) -> None:
        self.happened.append("clients refused")

    def has_unread(self, connection: Connection) -> bool:
        return False

    def begin(self) -> None:
        self.node.begin(self.group.now_ns, self.group.wall_ms)

    def wake(self) -> None:
        self.turns_wanted += 1

    def dial_peer(self, line: Line) -> None:
        raise AssertionError("it is alone")

    dial_name_server = dial_peer

    def hand_out(self) -> None:
        for connection in self.node.outgoing.take():
            self.happened.append(("writes", connection.name, codes(connection)))

    def begin_job(self, job: Job) -> None:
        self.happened.append("begins another job")
        self.jobs.append(job)

    def flush(self, job: Job) -> None:
        self.happened.append("begins a flush")
        self.jobs.append(job)

    def connect(self, name: str) -> ClientSession:
        return let_in(self.running.clients, name)

    def turn(self) -> list[object]:
        """What happens in a turn."""
        self.happened = []
        self.running.turn(self.group.now_ns, self.group.wall_ms)
        self.running.end_turn()
        return self.happened

    def comes_to_rest(self) -> None:
        """What the start has left to do is done."""
        while self.turn():
            while self.jobs:
                self.job_ends()
        self.turns_wanted = 0

    def job_ends(self) -> None:
        job = self.jobs.pop(0)
        job.run()
        self.running.job_done(job)


def codes(connection: Connection) -> list[tuple[int, int]]:
    """The opaque and the code of each response that a connection has queued."""
    return [(command.opaque, command.code) for command in FrameDecoder().feed(b"".join(connection.take()))]


def question(opaque: int) -> bytes:
    return encode(request(RequestCode.GET_BROKER_CONFIG, opaque=opaque))


def send(opaque: int) -> bytes:
    fields = {
        "producerGroup": "P",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "1",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "0",
        "flag": "0",
        "properties": "",
    }
    return encode(request(RequestCode.SEND_MESSAGE, fields, b"body", opaque=opaque))


def test_answers_leave_in_the_turn_behind_their_requests_each_client_s_at_once() -> None:
    rig = Rig()
    rig.comes_to_rest()
    one, other = rig.connect("one"), rig.connect("other")
    one.received(question(1) + question(2))
    other.received(question(3))
    one.received(question(4))
    assert rig.happened == [], "only a turn writes"
    assert rig.turns_wanted
    assert rig.turn() == [
        ("writes", "one", [(1, 0), (2, 0), (4, 0)]),
        ("writes", "other", [(3, 0)]),
    ]
    assert rig.turn() == [], "nothing is left for another turn"


def test_a_flush_begins_within_the_turn_before_what_can_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.comes_to_rest()
    client = rig.connect("client")
    other = rig.connect("other")
    dispatch = Store.dispatch

    def dispatched(self: Store, *arguments: object, **options: object) -> Dispatch:
        rig.happened.append("dispatches")
        return dispatch(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "dispatch", dispatched)
    client.received(send(1))
    assert rig.turn() == ["begins a flush"]
    client.received(send(2))
    other.received(question(3))
    assert rig.turn() == [("writes", "other", [(3, 0)])], "one flush at a time; questions wait for none"
    turns = rig.turns_wanted
    rig.job_ends()
    assert rig.turns_wanted > turns, "a send waits for its flush"
    assert rig.turn() == [("writes", "client", [(1, 0)]), "begins a flush", "dispatches"]
    rig.job_ends()
    assert rig.turn() == [("writes", "client", [(2, 0)]), "dispatches"]


def test_what_comes_behind_requests_that_wait_is_read_when_these_are_handled() -> None:
    group = Group(1)
    group.elect()
    client = group.connect()
    many = 2 * WORK_AT_ONCE
    client._send(b"".join(question(1000 + number) for number in range(many)))
    assert client.connection.has_unhandled
    client._send(question(1))
    assert group.members["n0"].unread == {client.connection}
    client.wait(1)
    assert list(client.answers) == [1000 + number for number in range(many)], (
        "in their order, the last one behind"
    )
    assert not group.members["n0"].unread


def test_nothing_leaves_on_an_aborted_connection() -> None:
    group = Group(1)
    group.elect()
    client = group.connect()
    client.connection.abort()
    client.connection.send(b"late")
    group.hand_out(group.members["n0"])
    assert client.closed
