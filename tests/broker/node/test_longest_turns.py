"""No turn does all of a large table's work: held by counting lines of Python, as a busy machine's clock is no measure.

The operations are those of `benchmarks.longest_turns`, the tables smaller. Where all is done in one call it takes lines
for each row; a call that does a part has a bound, however large the tables are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

import pytest

from benchmarks import full_state
from benchmarks.longest_turns import ENTRANCES, FULL, begin_anew
from broker.remoting.codes import RequestCode, ResponseCode
from broker.state.commands import CommitOffsets
from tests.broker.harness import SMALL_STORE, Client, Group

pytestmark = pytest.mark.slow

ROWS = 12_000
LINES_MAX = 45_000
"""Some 5 ms."""
LINES_MAX_OF_WIDE: Final = 100_000
"""A step of one answer, and the first of another."""
LINES_MAX_OF_READING: Final = 80_000
"""They are short: some 5 ms."""
MORE_LINES: Final = {
    "groups of a topic": 60_000,
    "members": 75_000,
    "consumers' connections": 80_000,
    "consumers' own status": 160_000,
    "copy of offsets": 100_000,
    "reset": 150_000,
}
"""What takes more, up to 10 ms."""


class Lines:
    """The most lines of Python that a call from a node's surroundings has run."""

    def __init__(self) -> None:
        self.most = 0
        self._count = 0

    def _trace(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        self._count += event == "line"
        return self._trace

    def counted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._count = 0
            sys.settrace(self._trace)
            try:
                return original(*arguments)
            finally:
                sys.settrace(None)
                self.most = max(self.most, self._count)

        return call


@pytest.fixture(scope="module")
def full_group() -> Iterator[tuple[Group, Client]]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TOPICS", "MEMBERS", "OFFSETS_OF_WIDE", "LOCKS"):
            patch.setattr(full_state, name, ROWS)
        patch.setattr(full_state, "GROUPS", ROWS)
        limits = {"max_topics": 10**6, "max_groups": 10**6, "max_connections": 10**6}
        group = Group.elected(3, options=SMALL_STORE, limits=limits)
        for member in group.alive():
            full_state.fill_tables(member.alive.replica.metadata, group.wall_ms)
            for number in range(ROWS):
                member.alive.replica.store.queues.make(full_state.topic_name(number), 0)
        full_state.fill_registry(group)
        client = group.connect()
        group.advance(1)
        yield group, client


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    counted = Lines()
    for kind, name in ENTRANCES:
        monkeypatch.setattr(kind, name, counted.counted(getattr(kind, name)))
    return counted


@pytest.mark.parametrize("what", FULL)
def test_a_request_s_work_is_cut(what: str, full_group: tuple[Group, Client], lines: Lines) -> None:
    group, client = full_group
    code, fields = FULL[what]
    client.call(code, fields)
    group.advance(0.5)
    assert lines.most <= MORE_LINES.get(what, LINES_MAX)


def test_a_snapshot_s_work_is_cut(full_group: tuple[Group, Client], lines: Lines) -> None:
    group, _ = full_group
    replica = group.node(group.leader).replica
    replica.applied.save()
    group.advance(0.5)
    assert not replica.applied.writing.under_way
    assert lines.most <= LINES_MAX


def test_the_work_of_a_leader_s_state_is_cut(full_group: tuple[Group, Client], lines: Lines) -> None:
    group, _ = full_group
    begin_anew(group)
    assert lines.most <= LINES_MAX_OF_READING


def test_what_a_follower_forwards_at_once_is_not_handled_in_one_turn(lines: Lines) -> None:
    """A stranger's small requests, of which one read of the link brought thousands."""
    group = Group.elected(3)
    client = group.connect(group.follower)
    group.settle()
    lines.most = 0
    opaques = [client.start_call(RequestCode.SEND_MESSAGE_V2) for _ in range(2_000)]
    assert {client.wait(opaque).code for opaque in opaques} == {ResponseCode.SYSTEM_ERROR}
    assert lines.most <= LINES_MAX


MANY: Final = {
    "a key": (
        RequestCode.QUERY_MESSAGE,
        {"topic": "T", "key": "hot", "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 1 << 62},
    ),
    "a time": (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": "T", "queueId": 0, "timestamp": 5}),
    "an end": (RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}),
}


@pytest.mark.parametrize("what", MANY)
def test_reads_that_come_at_once_are_not_answered_in_one_turn(what: str, lines: Lines) -> None:
    group = Group.elected(3)
    client = group.connect()
    client.create_topic("T")
    for _ in range(100):
        last = client.start_send("T", b"x", properties={"KEYS": "hot"})
    client.wait(last)
    group.advance(1)
    code, fields = MANY[what]
    lines.most = 0
    opaques = [client.start_call(code, fields) for _ in range(600)]
    assert {client.wait(opaque).code for opaque in opaques} == {0}
    assert lines.most <= LINES_MAX


WIDE_QUEUES: Final = 8_000
OF_WIDE: Final[dict[str, tuple[RequestCode, dict[str, object]]]] = {
    "messages": (RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "W"}),
    "ranges": (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "W"}),
    "progress": (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": "W"}),
    "progress of all": (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False}),
    "corrections": (RequestCode.QUERY_CORRECTION_OFFSET, {"topic": "W", "compareGroup": "g"}),
    "time spans": (RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "W", "group": "g"}),
}


@pytest.fixture(scope="module")
def wide_topic() -> Client:
    """A client of a group with a topic of thousands of queues, in which a consumer group has offsets."""
    group = Group.elected(1, options=SMALL_STORE)
    client = group.connect()
    client.create_topic("W", WIDE_QUEUES)
    replica = group.node(group.leader).replica
    for queue_id in range(WIDE_QUEUES):
        replica.store.queues.make("W", queue_id)
    replica.metadata.apply(CommitOffsets(tuple(("g", "W", queue_id, 0) for queue_id in range(WIDE_QUEUES))))
    return client


@pytest.mark.parametrize("what", OF_WIDE)
def test_questions_about_a_wide_topic_that_come_at_once_are_cut(
    what: str, wide_topic: Client, lines: Lines
) -> None:
    """Of each a turn may have done the first step: thousands of queues' worth."""
    code, fields = OF_WIDE[what]
    lines.most = 0
    opaques = [wide_topic.start_call(code, fields) for _ in range(6)]
    assert {wide_topic.wait(opaque).code for opaque in opaques} == {0}
    assert lines.most <= LINES_MAX_OF_WIDE
