"""Resets: what was shown is what is ordered, in every queue, whatever the target is."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from broker.client.admin import AdminClient
from broker.client.errors import NoGroup
from broker.operations.asking import Groups
from broker.operations.errors import NotThere
from broker.operations.resets import QueueReset, Target, planned_reset, preview_reset, reset
from tests.broker.client.cluster import Broker


def ends(resets: list[QueueReset]) -> list[tuple[str, int, int, int]]:
    return [(one.broker, one.queue, one.from_offset, one.to_offset) for one in resets]


async def test_every_target_in_every_queue(leaders: list[Broker], admin: AdminClient) -> None:
    a, b = leaders
    for number in range(6):
        a.append("t", 0, b"%d" % number)
    await trio.sleep(10)
    middle_ms = admin.core.runtime.wall_ms() - 5_000
    for number in range(3):
        b.append("t", 1, b"%d" % number)
    a.commit("g", "t", 0, 4)
    b.commit("g", "t", 1, 1)

    async def to(target: Target) -> list[tuple[int, int, int]]:
        found = await preview_reset(await Groups.registered(admin), "g", "t", target)
        return [(one.to_offset, one.skipped, one.repeated) for one in found]

    assert await to(Target(kind="earliest")) == [(0, 0, 4), (0, 0, 0), (0, 0, 0), (0, 0, 1)]
    assert await to(Target(kind="latest")) == [(6, 2, 0), (0, 0, 0), (0, 0, 0), (3, 2, 0)]
    assert await to(Target(kind="time", value=middle_ms)) == [(6, 2, 0), (0, 0, 0), (0, 0, 0), (0, 0, 1)]
    assert await to(Target(kind="by", value=-2)) == [(2, 0, 2), (0, 0, 0), (0, 0, 0), (0, 0, 1)]
    assert await to(Target(kind="offset", value=5, broker="a", queue=0)) == [(5, 1, 0)]
    with pytest.raises(NoGroup, match="group 'z': no such group is registered; there are: a, b"):
        await to(Target(kind="latest", broker="z"))

    chosen = await preview_reset(await Groups.registered(admin), "g", "t", Target(kind="by", value=-2))
    with a.client() as client:
        client.heartbeat("g", ["t"])  # it was never at b, and has positions there
    await reset(await Groups.registered(admin), "g", chosen)
    assert (a.offset("g"), b.offset("g", queue_id=1)) == (2, 0)
    after = await preview_reset(await Groups.registered(admin), "g", "t", Target(kind="by", value=-2))
    assert ends(after) == [("a", 0, 2, 0), ("a", 1, 0, 0), ("b", 0, 0, 0), ("b", 1, 0, 0)]


async def test_what_is_not_there(leaders: list[Broker], admin: AdminClient) -> None:
    with pytest.raises(NotThere, match="no broker knows the consumer group 'typo'"):
        await preview_reset(await Groups.registered(admin), "typo", "t", Target(kind="latest"))
    with pytest.raises(NotThere, match="no topic 'x'"):
        await preview_reset(await Groups.registered(admin), "g", "x", Target(kind="latest"))
    with pytest.raises(NotThere, match="with a queue 7"):
        await preview_reset(await Groups.registered(admin), "g", "t", Target(kind="latest", queue=7))


@given(
    kept=st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: (pair[0], sum(pair))),
    position=st.integers(0, 120),
    wanted=st.integers(-200, 200),
)
def test_a_reset_stays_in_the_queue_and_counts_what_it_passes(
    kept: tuple[int, int], position: int, wanted: int
) -> None:
    begin, end = kept
    found = planned_reset("a", "t", 0, position, begin, end, wanted)
    assert begin <= found.to_offset <= end
    assert not (found.skipped and found.repeated)
    here = min(max(position, begin), end)
    assert here + found.skipped - found.repeated == found.to_offset
