"""Offsets that nobody could go on from are forgotten, and no others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.node.running import RunningNode
from broker.offsets import dead_offsets
from broker.offsets.commits import OffsetCommits
from broker.offsets.dead_offsets import DeadOffsets
from broker.remoting.codes import RequestCode, ResponseCode
from broker.replica.inner_limits import InnerLimits
from broker.state.commands import CommitOffsets
from broker.state.stored_offsets import StoredOffsets
from tests.broker.harness import Client, Group
from tests.broker.retention.test_retention import fill, group_with, pass_time

LOOK_S = 60
"""Between looks, here: in ten minutes, as at a broker, the group would have very many turns."""


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    """T/0 has lost its head, T/1 is empty."""
    monkeypatch.setattr(Group, "limits", InnerLimits(unused_offsets_look_ms=LOOK_S * 1000))
    group = group_with()
    fill(group)
    pass_time(group, 2)
    fill(group, 5)
    return group


def report(client: Client, name: str, offset: int, queue_id: int = 0) -> None:
    fields = {"consumerGroup": name, "topic": "T", "queueId": queue_id, "commitOffset": offset}
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def kept(group: Group) -> list[str]:
    for member in group.alive():
        assert member.alive.replica.metadata.offsets == group.node(group.leader).replica.metadata.offsets
    return sorted(name for name, _ in group.node(group.leader).replica.metadata.offsets)


def test_a_look_takes_no_more_places_in_a_turn_than_it_looks_at(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To list a million of them takes a third of a second, in which the leader would do nothing else."""
    client = group.connect()
    names = ["a", "b", "c", "d", "e", "f", "g"]
    for name in names:
        report(client, name, 3)
    taken = [0]
    places, end_turn = StoredOffsets.__iter__, RunningNode.end_turn

    def counted(self: StoredOffsets) -> Iterator[tuple[str, str]]:
        for place in places(self):
            taken[-1] += 1
            yield place

    def ended(running: RunningNode) -> int:
        taken.append(0)
        return end_turn(running)

    monkeypatch.setattr(dead_offsets, "SLICE", 2)
    monkeypatch.setattr(StoredOffsets, "__iter__", counted)
    monkeypatch.setattr(RunningNode, "end_turn", ended)
    group.advance(2 * LOOK_S + 2)
    assert max(taken) == 2
    assert sum(taken) >= 2 * len(names), "two looks"
    group.converge()
    assert not group.node(group.leader).replica.metadata.offsets


def two_looks(group: Group) -> None:
    for _ in range(2):
        group.advance(LOOK_S + 1)
    group.converge()


def test_only_what_leads_nowhere_and_nobody_uses_is_forgotten(group: Group) -> None:
    client = group.connect(group.follower)
    least = client.offset_of(RequestCode.GET_MIN_OFFSET, "T")
    assert least > 3
    for name, offset in (("dead", 3), ("used", 3), ("behind", least), ("far", least + 9), ("partly", 3)):
        report(client, name, offset)
    report(client, "partly", 0, queue_id=1)
    for _ in range(3):
        client.heartbeat("used")
        group.advance(LOOK_S + 1)
    group.converge()
    assert kept(group) == ["behind", "far", "partly", "used"]
    client.close()
    two_looks(group)
    assert kept(group) == ["behind", "far", "partly"]
    position = {"consumerGroup": "dead", "topic": "T", "queueId": 0}
    assert (
        group.connect().call(RequestCode.QUERY_CONSUMER_OFFSET, position).code == ResponseCode.QUERY_NOT_FOUND
    )


def test_one_look_is_not_enough_and_a_new_leader_begins_to_look_anew(group: Group) -> None:
    report(group.connect(), "dead", 3)
    group.advance(LOOK_S + 1)
    group.kill(group.leader)
    group.elect()
    group.advance(LOOK_S + 1)
    assert kept(group) == ["dead"]
    group.advance(LOOK_S + 1)
    assert kept(group) == []


def test_what_is_reported_meanwhile_stays(group: Group) -> None:
    report(group.connect(), "dead", 3)
    group.advance(LOOK_S + 1)
    leader = group.node(group.leader)
    # In the log before the command that forgets, and not applied when that is decided.
    before = leader.replica.leadership.propose_command

    def late(command: object, *rest: object) -> None:
        leader.replica.leadership.propose_command = before  # type: ignore[method-assign]
        before(CommitOffsets((("dead", "T", 0, 5),)))
        before(command, *rest)  # type: ignore[arg-type]

    leader.replica.leadership.propose_command = late  # type: ignore[method-assign, assignment]
    group.advance(LOOK_S + 1)
    group.converge()
    assert leader.replica.metadata.offsets["dead", "T"] == {0: 5}


def test_offsets_of_a_group_that_was_deleted_without_them_go_in_time(group: Group, client: Client) -> None:
    report(client, "g", 3)
    client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": False})
    assert kept(group) == ["g"]
    client.close()
    two_looks(group)
    assert kept(group) == []


def test_an_order_stands_until_somebody_follows_it(group: Group) -> None:
    """A consumer group that is away was sent to the first message, which is deleted before it comes."""
    client = group.connect()
    client.heartbeat("away")
    least = client.offset_of(RequestCode.GET_MIN_OFFSET, "T")
    fields = {"topic": "T", "group": "away", "timestamp": 0, "isForce": False, "queueId": 0, "offset": least}
    client.ok(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    client.close()
    pass_time(group, 2)
    client = fill(group, 5)
    two_looks(group)
    two_looks(group)
    assert client.offset_of(RequestCode.GET_MIN_OFFSET, "T") > least
    assert kept(group) == ["away"]
    client.heartbeat("away")
    told = client.pull("T", "away", least + 40)
    assert (told.status, told.next_offset) == ("OFFSET_RESET", least)


@pytest.mark.parametrize("what", ["an order", "a report"])
def test_what_is_on_its_way_to_the_offset_that_is_stored_stays(group: Group, what: str) -> None:
    """The command that forgets came behind it in the log, and took the offset for one that nobody had named since."""
    client = group.connect()
    report(client, "dead", 3)
    group.advance(LOOK_S + 1)
    group.lose = lambda source, target, frame: bool(getattr(getattr(frame, "message", None), "spans", ()))
    dead = group.node(group.leader).part(OffsetCommits)
    lost: list[str] = []
    dead.commit_all(
        [("dead", "T", 0, 3)], lambda _: None, lambda: lost.append("lost"), until_followed=what == "an order"
    )
    looks = group.node(group.leader).part(DeadOffsets)
    looks._run()
    group.lose = lambda source, target, frame: False
    group.advance(1)
    group.converge()
    assert not lost
    assert kept(group) == ["dead"]
