"""The end of a client costs its node as much as that client had under way, however many others there are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from broker.remoting.codes import RequestCode
from tests.broker.harness import Client, Group


def opcodes_of(act: Callable[[], object]) -> int:
    """Returns the number of Python's byte codes that an act takes, which does not depend on the machine's load."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


def busy(group: Group, node: str, number: int) -> Client:
    """A client in groups of its own that pulls, is asked by an administrator, and waits for answers."""
    client = group.connect(node, name=f"client-{number}")
    client.heartbeat(f"g{number}", producer_group=f"p{number}")
    client.start_pull("T", f"g{number}", 0, suspend_ms=30_000)
    asking = group.connect(group.leader, name=f"asks-{number}")
    for _ in range(3):
        asking.start_call(
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            {"consumerGroup": f"g{number}", "clientId": client.client_id, "jstackEnable": False},
        )
    return client


def test_a_disconnect_while_requests_are_held() -> None:
    """The leader is handing over to a node that is cut off: it holds what other nodes' clients ask."""
    work = []
    for others in (3, 60):
        group = Group.elected(3)
        group.connect().create_topic("T")
        leader, node = group.leader, group.follower
        (heir,) = (other for other in group.members if other not in {leader, node})
        holding = [busy(group, node, number) for number in range(others)]
        leaving = busy(group, node, others)
        group.settle()
        group.partition(heir)
        group.node(leader).begin(group.now_ns, group.wall_ms)
        group.node(leader).replica.group_changes.transfer(heir)
        for client in holding:
            client.start_send("T", b"held")
        group.settle()
        assert group.node(leader).held_count == others

        def leave(leaving: Client = leaving, group: Group = group) -> None:
            leaving.close()
            group.settle()

        work.append(opcodes_of(leave))
        assert group.node(leader).held_count == others
        holding[0].close()
        group.settle()
        assert group.node(leader).held_count == others - 1
    few, many = work
    assert many < 1.1 * few + 200, f"{few} byte codes beside 3 others, {many} beside 60"


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_a_disconnect_costs_what_its_client_had(place: str) -> None:
    work = []
    for others in (3, 60):
        group = Group.elected(3)
        group.connect().create_topic("T")
        node = getattr(group, place)
        for number in range(others):
            busy(group, node, number)
        leaving = busy(group, node, others)
        group.settle()
        assert len(leaving.notices) >= 3, "it was asked, and has not answered"

        def leave(leaving: Client = leaving, group: Group = group) -> None:
            leaving.close()
            group.settle()

        work.append(opcodes_of(leave))
    few, many = work
    assert many < 1.1 * few + 200, f"{few} byte codes beside 3 others, {many} beside 60"
