"""Allocation strategies (`AllocateMessageQueue*`): the reference's arithmetic, and that nothing is lost or shared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.consuming.strategies import (
    Strategy,
    allocate_averagely,
    allocate_by_circle,
    allocation_by_machine_room,
    allocation_nearby,
    consistent_hash_allocation,
    fixed_allocation,
)
from broker.client.message import MessageQueue


def queues(count: int, broker: str = "b", topic: str = "t") -> list[MessageQueue]:
    return [MessageQueue(topic, broker, number) for number in range(count)]


def shares(strategy: Strategy, members: Sequence[str], all_queues: Sequence[MessageQueue]) -> list[list[int]]:
    return [[queue.queue_id for queue in strategy(member, members, all_queues)] for member in members]


MEMBERS = ["c0", "c1", "c2"]

# What the Java client of RocketMQ 4.9.8 gives, and that of 5.3.1 as well (AllocationFacts.java made it).
FACTS = [json.loads(line) for line in (Path(__file__).parent / "allocation" / "facts.jsonl").open()]


def room(name: str) -> str:
    return name.partition("@")[0] if "@" in name else "elsewhere"


def strategy_named(name: str, all_queues: Sequence[MessageQueue]) -> Strategy:
    return {
        "AVG": allocate_averagely,
        "AVG_BY_CIRCLE": allocate_by_circle,
        "CONFIG": fixed_allocation(all_queues[::3]),
        "MACHINE_ROOM": allocation_by_machine_room(["east", "west"]),
        "MACHINE_ROOM_NEARBY AVG": allocation_nearby(room, room, allocate_averagely),
        "MACHINE_ROOM_NEARBY CIRCLE": allocation_nearby(room, room, allocate_by_circle),
        "CONSISTENT_HASH": consistent_hash_allocation(),
        "CONSISTENT_HASH 3": consistent_hash_allocation(3),
    }[name]


@pytest.mark.parametrize("name", list(dict.fromkeys(fact["strategy"] for fact in FACTS)))
def test_a_java_member_of_the_group_computes_the_same_shares(name: str) -> None:
    facts = [fact for fact in FACTS if fact["strategy"] == name]
    assert len(facts) == 60
    for fact in facts:
        all_queues = [
            MessageQueue("TopicTest", broker, number)
            for broker in fact["brokers"]
            for number in range(fact["queues"])
        ]
        strategy = strategy_named(name, all_queues)
        shares = [
            [all_queues.index(queue) for queue in strategy(member, fact["members"], all_queues)]
            for member in fact["members"]
        ]
        assert shares == fact["shares"], fact


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, [[], [], []]),
        (1, [[0], [], []]),
        (2, [[0], [1], []]),
        (3, [[0], [1], [2]]),
        (4, [[0, 1], [2], [3]]),
        (8, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (9, [[0, 1, 2], [3, 4, 5], [6, 7, 8]]),
    ],
)
def test_average_gives_runs(count: int, expected: list[list[int]]) -> None:
    assert shares(allocate_averagely, MEMBERS, queues(count)) == expected


def test_circle_deals() -> None:
    assert shares(allocate_by_circle, MEMBERS, queues(8)) == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_fixed_keeps_to_its_queues() -> None:
    strategy = fixed_allocation([MessageQueue("t", "b", 1), MessageQueue("t", "b", 7)])
    assert strategy("c0", MEMBERS, queues(4)) == [MessageQueue("t", "b", 1)]


def test_machine_room_takes_only_its_rooms() -> None:
    strategy = allocation_by_machine_room(["east"])
    all_queues = sorted(queues(5, "east@b") + queues(5, "west@b") + queues(5, "b"))
    parts = [strategy(member, MEMBERS, all_queues) for member in MEMBERS]
    assert [[queue.queue_id for queue in part] for part in parts] == [[0, 3], [1, 4], [2]]
    assert {queue.broker_name for part in parts for queue in part} == {"east@b"}


def test_nearby_shares_rooms_without_members() -> None:
    strategy = allocation_nearby(
        lambda name: name.split("@")[0], lambda member: member.split("-")[0], allocate_averagely
    )
    members = ["east-1", "east-2", "west-1"]
    all_queues = sorted(queues(2, "east@b") + queues(2, "west@b") + queues(3, "north@b"))
    parts = {member: strategy(member, members, all_queues) for member in members}
    assert parts["east-1"] == [MessageQueue("t", "east@b", 0), MessageQueue("t", "north@b", 0)]
    assert parts["east-2"] == [MessageQueue("t", "east@b", 1), MessageQueue("t", "north@b", 1)]
    assert parts["west-1"] == [*queues(2, "west@b"), MessageQueue("t", "north@b", 2)]


def test_consistent_hash_moves_only_the_queues_of_the_one_who_leaves() -> None:
    strategy = consistent_hash_allocation()
    all_queues = queues(64)
    before = {queue: member for member in MEMBERS for queue in strategy(member, MEMBERS, all_queues)}
    after = {queue: member for member in MEMBERS[:2] for queue in strategy(member, MEMBERS[:2], all_queues)}
    assert len(before) == len(after) == 64
    assert all(after[queue] == member for queue, member in before.items() if member != "c2")


@pytest.mark.parametrize(
    "strategy",
    [
        allocate_averagely,
        allocate_by_circle,
        consistent_hash_allocation(),
        allocation_by_machine_room(["b"]),
        allocation_nearby(lambda name: name, lambda member: member[:2], allocate_averagely),
    ],
    ids=["average", "circle", "consistent hash", "machine room", "nearby"],
)
@given(
    members=st.lists(st.text("abc123@-", min_size=1, max_size=6), min_size=1, max_size=8, unique=True).map(
        sorted
    ),
    count=st.integers(0, 40),
)
def test_every_queue_has_exactly_one_reader(strategy: Strategy, members: list[str], count: int) -> None:
    all_queues = sorted(queues(count, "b@x") + queues(count // 2, "b@y"))
    taken = [queue for member in members for queue in strategy(member, members, all_queues)]
    assert sorted(taken) == all_queues
    assert strategy("not a member", members, all_queues) == []
