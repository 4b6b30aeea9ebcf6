"""Dead letters: counted, sent again once and at a rate, through the death of a leader, and deleted."""

from __future__ import annotations

import pytest
import trio

from broker.client.admin import AdminClient
from broker.client.consuming.consumer import Consumer
from broker.client.errors import UsageError
from broker.operations.asking import Groups
from broker.operations.consumer_groups import list_groups
from broker.operations.dead_letters import (
    DeadLetters,
    Redriven,
    count_dead_letters,
    list_dead_letters,
    purge,
    redrive,
)
from broker.operations.errors import NotThere
from broker.operations.messages import find_messages
from broker.remoting.codes import RequestCode
from broker.state.topic_rules import GROUP_LENGTH_MAX
from tests.broker.client.cluster import NAME_SERVER, Broker
from tests.broker.client.links import ClientRuntime, second_damaged


async def bury(leader: Broker, runtime: ClientRuntime, count: int) -> None:
    """Has a consumer of group g give up so many messages of topic t."""
    for number in range(count):
        leader.append("t", 0, b"%d" % number, b"TAGS\x01red\x02KEYS\x01k\x02color\x01blue\x02")
    async with Consumer(NAME_SERVER, group="g", topics="t", start="first", runtime=runtime) as consumer:
        for _ in range(count):
            await consumer.send_back(await anext(consumer), delay_level=-1)
        await consumer.commit()


async def test_dead_letters_come_again_once_and_at_a_rate(
    leaders: list[Broker], admin: AdminClient, runtime: ClientRuntime
) -> None:
    with pytest.raises(NotThere):
        await redrive(await Groups.registered(admin), "g")
    await bury(leaders[0], runtime, 20)
    (found,) = await list_dead_letters(await Groups.registered(admin))
    assert (found.group, found.kept, found.waiting) == ("g", 20, 20)

    begun_s = trio.current_time()
    assert await redrive(await Groups.registered(admin), "g", rate_per_s=2, limit=11) == Redriven(
        sent=11, left=9, passed_over=0
    )
    assert 5 <= trio.current_time() - begun_s < 6
    assert (await count_dead_letters(await Groups.registered(admin), "g")).waiting == 9
    assert await redrive(await Groups.registered(admin), "g") == Redriven(sent=9, left=0, passed_over=0)
    assert await redrive(await Groups.registered(admin), "g") == Redriven(sent=0, left=0, passed_over=0)

    async with Consumer(NAME_SERVER, group="g", topics="t", runtime=runtime) as consumer:
        again = [await anext(consumer) for _ in range(20)]
    assert sorted(int(message.body) for message in again) == list(range(20))
    for message in again:
        assert (message.topic, message.tags, message.keys) == ("t", "red", ["k"])
        assert message.properties["color"] == "blue"
        assert message.reconsume_times == 0
    assert [group.name for group in await list_groups(await Groups.registered(admin))] == ["g"], (
        "the redriver is nobody's group"
    )


async def test_those_that_cannot_be_sent_take_no_place_among_as_many_as_are_wanted(
    leaders: list[Broker], admin: AdminClient, runtime: ClientRuntime
) -> None:
    await bury(leaders[0], runtime, 1)
    for body in (b"", b"1", b"", b"2"):  # nothing that is empty can be sent
        leaders[0].append("%DLQ%g", 0, body)
    groups = await Groups.registered(admin)
    assert await redrive(groups, "g", limit=2) == Redriven(sent=2, left=2, passed_over=1)
    assert await redrive(groups, "g", limit=2) == Redriven(sent=1, left=0, passed_over=1)
    again = await find_messages(groups, "%RETRY%g")
    assert sorted(message.body or b"" for message in again) == [b"0", b"1", b"2"]


async def test_one_that_tells_nothing_keeps_no_other_from_being_told_and_sent(
    leaders: list[Broker], admin: AdminClient, runtime: ClientRuntime
) -> None:
    await bury(leaders[0], runtime, 3)
    groups = await Groups.registered(admin)
    damaging = leaders[0].instead(second_damaged)
    leaders[0].script(RequestCode.PULL_MESSAGE, damaging)
    found = await find_messages(groups, "%DLQ%g")
    assert sorted((message.offset, message.body) for message in found) == [(-1, None), (0, b"0"), (2, b"2")]
    leaders[0].script(RequestCode.PULL_MESSAGE, damaging)
    assert await redrive(groups, "g") == Redriven(sent=2, left=0, passed_over=1)


async def test_a_name_that_is_too_long_to_send_again_keeps_no_dead_letters_from_being_told_and_deleted(
    leaders: list[Broker], admin: AdminClient
) -> None:
    long = "g" * GROUP_LENGTH_MAX
    for group in ("a", long):
        leaders[0].create_topic(f"%DLQ%{group}", 1)
        leaders[0].append(f"%DLQ%{group}", 0, b"x")
    groups = await Groups.registered(admin)
    assert [(one.group, one.kept, one.waiting) for one in await list_dead_letters(groups)] == [
        ("a", 1, 1), (long, 1, 1)
    ]  # fmt: skip
    with pytest.raises(UsageError, match="too long to send its dead letters again"):
        await redrive(groups, long)
    assert await purge(groups, long) == 1


async def test_all_are_sent_though_the_leader_dies(
    leaders: list[Broker], admin: AdminClient, runtime: ClientRuntime
) -> None:
    await bury(leaders[0], runtime, 40)

    async def kill() -> None:
        await trio.sleep(1.3)
        leaders[0].kill()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill)
        found = await redrive(await Groups.registered(admin), "g", rate_per_s=10)
    assert found == Redriven(sent=40, left=0, passed_over=0)
    again = await find_messages(await Groups.registered(admin), "%RETRY%g", limit=100)
    assert sorted(int(message.body or b"") for message in again) == list(range(40))


async def test_purged_dead_letters_are_gone_and_the_next_one_is_counted_anew(
    leaders: list[Broker], admin: AdminClient, runtime: ClientRuntime
) -> None:
    await bury(leaders[0], runtime, 3)
    await redrive(await Groups.registered(admin), "g")
    assert await purge(await Groups.registered(admin), "g") == 3
    with pytest.raises(NotThere):
        await purge(await Groups.registered(admin), "g")
    assert await count_dead_letters(await Groups.registered(admin), "g") == DeadLetters(
        group="g", kept=0, waiting=0, newest_ms=None
    )
    await bury(leaders[0], runtime, 1)
    found = await count_dead_letters(await Groups.registered(admin), "g")
    assert (found.kept, found.waiting) == (1, 1)
