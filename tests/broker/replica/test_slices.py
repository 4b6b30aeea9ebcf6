"""Long work is done in slices: a turn dispatches so many entries, and between two of them others have their turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.node.running import RunningNode
from broker.remoting.codes import RequestCode
from log.batch import BatchItem, encode_batch
from tests.broker.harness import SMALL_STORE, Client, Group

SLICE = 10


def start_batch(client: Client, count: int) -> int:
    fields = {"a": "PG", "b": "T", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 0, "h": 0, "m": True}
    items = [BatchItem(0, b"%d" % number, b"") for number in range(count)]
    return client.start_call(RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch(items))


@pytest.mark.parametrize("size", [1, 3])
def test_a_large_run_is_dispatched_in_slices(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    group = Group(size, options=replace(SMALL_STORE, dispatch_entries=SLICE))
    group.elect()
    client, other = group.connect(), group.connect()
    client.create_topic("T")
    steps: dict[str, list[int]] = {node_id: [] for node_id in group.members}
    turn = RunningNode.turn
    answered_between = []

    def watched(running: RunningNode, now_ns: int, wall_ms: int) -> None:
        replica = running.node.replica
        before = replica.applied_index
        turn(running, now_ns, wall_ms)
        steps[replica.node_id].append(replica.applied_index - before)
        if replica.is_behind and replica.serving:
            other.tell(RequestCode.GET_BROKER_CONFIG)
            opaque = other.start_call(RequestCode.GET_BROKER_CONFIG)
            answered_between.append(opaque)

    monkeypatch.setattr(RunningNode, "turn", watched)
    opaque = start_batch(client, 95)
    answer = client.wait(opaque)
    group.converge()
    assert answer.code == 0
    for node_id, taken in steps.items():
        assert max(taken) <= SLICE, node_id
        assert sum(taken) >= 95
    assert len(answered_between) >= 9, "the leader was behind in so many turns"
    assert all(other.answers[asked].code == 0 for asked in answered_between)
    pulled = [body for at in range(0, 95, 32) for body in client.pull("T", "G", at).bodies]
    assert pulled == [b"%d" % number for number in range(95)]


def test_a_new_leader_serves_when_the_last_slice_is_applied() -> None:
    """What it has not dispatched when it is elected counts for the ends of its queues."""
    group = Group(3, options=replace(SMALL_STORE, dispatch_entries=SLICE))
    first = group.elect()
    client = group.connect()
    client.create_topic("T")
    start_batch(client, 95)
    for _ in range(12):
        group.step_at_random(group.random)
    group.kill(first)
    group.elect()
    client = group.connect()
    receipt = client.send("T", b"behind them")
    assert client.offset_of(RequestCode.GET_MAX_OFFSET, "T") == receipt.queue_offset + 1
    assert client.pull("T", "G", receipt.queue_offset).bodies == [b"behind them"]
