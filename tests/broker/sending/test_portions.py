"""Portions of writers: broker/sending/portions_processor.py over a group, with the sends that belong to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.replica.inner_limits import InnerLimits
from broker.state.release import FIRST_FORMAT, THIS_RELEASE
from tests.broker.harness import Client, Group

NUMBER = 4


@pytest.fixture
def group() -> Group:
    return _with_topic(Group.elected(3))


def _with_topic(group: Group) -> Group:
    client = group.connect()
    client.create_topic("T", 2)
    client.heartbeat("g")
    group.advance(2)  # in which the group's format is raised
    group.converge()
    return group


def ask(
    client: Client, code: int, number: int = NUMBER, writer: str = "query/0", topic: str = "T"
) -> RemotingCommand:
    return client.call(code, {"topic": topic, "writer": writer, "number": number})


def begin(client: Client, number: int = NUMBER, **who: str) -> tuple[str, int]:
    """Begins a portion: how it stands, and its floor."""
    answer = ask(client, RequestCode.TRIVET_BEGIN_PORTION, number, **who)
    assert answer.code == ResponseCode.SUCCESS, f"code {answer.code}: {answer.remark}"
    return answer.fields["standing"], int(answer.fields["position"])


def end(client: Client, number: int = NUMBER, **who: str) -> None:
    assert ask(client, RequestCode.TRIVET_END_PORTION, number, **who).code == ResponseCode.SUCCESS


def send(client: Client, key: str, floor: int, **how: Any) -> RemotingCommand:
    return client.wait(client.start_send("T", key.encode(), 0, {"UNIQ_KEY": key}, once=floor, **how))


def bodies(group: Group) -> list[bytes]:
    return group.connect().pull("T", "g", 0).bodies


def test_only_the_first_asker_hears_that_a_portion_is_new_and_all_have_one_floor(group: Group) -> None:
    first, other = group.connect(), group.connect(group.follower)
    standing, floor = begin(first)
    assert standing == "new"
    assert floor <= group.node(group.leader).replica.store.log.end_position
    first.send("T", b"in between")
    assert begin(other) == ("begun", floor)
    end(other)
    assert begin(first)[0] == "done"
    assert begin(first, NUMBER + 1)[0] == "new"
    assert begin(first)[0] == "done", "the one before it has ended, or this one would not have begun"
    assert begin(first, writer="query/1")[0] == "new"


def test_a_portion_is_known_after_failovers_and_restarts(group: Group) -> None:
    _, floor = begin(group.connect())
    _, done_floor = begin(group.connect(), 7, writer="query/1")
    end(group.connect(), 7, writer="query/1")
    group.converge()
    for _ in range(2):
        old = group.leader
        group.kill(old)
        group.elect()
        assert begin(group.connect()) == ("begun", floor)
        assert begin(group.connect(), 7, writer="query/1") == ("done", done_floor)
        group.restart(old)
        group.converge()


def test_messages_of_a_repeated_portion_are_stored_once(group: Group) -> None:
    """The first attempt goes on beside the second, under the floor that both have."""
    first, second = group.connect(), group.connect(group.follower)
    _, floor = begin(first)
    assert "once" not in send(first, "K1", floor).fields
    standing, same = begin(second)
    assert (standing, same) == ("begun", floor)
    for key in ("K2", "K1"):
        send(second, key, floor, again=True)
    for key in ("K2", "K3"):
        send(first, key, floor)
    assert send(second, "K3", floor, again=True).fields["once"] == "found"
    assert bodies(group) == [b"K1", b"K2", b"K3"]


def test_what_wakes_up_when_all_is_done_and_the_log_is_gone_stores_nothing(group: Group) -> None:
    client = group.connect()
    _, floor = begin(client)
    send(client, "K1", floor)
    end(client)
    client.send("T", b"later")
    log = group.node(group.leader).replica.store.log
    log.first_position = log.position_of(log.last_index)  # as after retention
    assert send(client, "K1", floor, again=True).code == ResponseCode.ONCE_UNDECIDABLE
    assert begin(client)[0] == "done"


def test_writers_go_with_their_topic(group: Group) -> None:
    client = group.connect()
    begin(client)
    end(client)
    client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert ask(client, RequestCode.TRIVET_BEGIN_PORTION).code == ResponseCode.TOPIC_NOT_EXIST
    client.create_topic("T")
    assert begin(client)[0] == "new"


def test_a_silent_writer_is_forgotten_and_one_that_is_heard_of_is_not(group: Group) -> None:
    client = group.connect()
    begin(client, writer="silent")
    kept_ms = InnerLimits().writers_kept_ms
    group.skip(kept_ms // 2)
    begin(client, writer="heard of")
    group.skip(kept_ms // 2 + 3_600_000)
    group.advance(1300)
    group.converge()
    for member in group.alive():
        assert list(member.alive.replica.metadata.writers.portions) == [("T", "heard of")]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"writer": ""}, ResponseCode.INVALID_PARAMETER),
        ({"writer": "w" * 256}, ResponseCode.INVALID_PARAMETER),
        ({"writer": "a\nb"}, ResponseCode.INVALID_PARAMETER),
        ({"number": -1}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION),
    ],
)
def test_what_is_no_portion_is_refused(group: Group, fields: dict[str, Any], code: int) -> None:
    assert ask(group.connect(), RequestCode.TRIVET_BEGIN_PORTION, **fields).code == code
    assert not group.node(group.leader).replica.metadata.writers.portions


def test_there_is_a_limit_and_who_is_known_goes_on() -> None:
    group = _with_topic(Group.elected(1, limits={"max_writers": 2}))
    client = group.connect()
    for writer in ("a", "b"):
        begin(client, writer=writer)
    refused = ask(client, RequestCode.TRIVET_BEGIN_PORTION, writer="c")
    assert refused.remark == "there are 2 writers of portions, at most 2 may be (limits.max_writers)"
    assert begin(client, NUMBER + 1, writer="a")[0] == "new"


def test_while_the_group_is_upgraded_nothing_begins() -> None:
    group = Group(1, start=False)
    group.members["n0"].release = replace(THIS_RELEASE, newest_format=FIRST_FORMAT)
    group.start("n0")
    group.elect()
    group.connect().create_topic("T")
    group.advance(2)
    refused = ask(group.connect(), RequestCode.TRIVET_BEGIN_PORTION)
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert "upgraded" in (refused.remark or "")
