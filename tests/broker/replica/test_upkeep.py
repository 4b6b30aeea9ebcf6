"""Checkpoints are due as long as there is something to note, and no longer."""

from __future__ import annotations

import pytest

from broker.requests.deadline import NEVER
from log.notes.checkpoint import CheckpointJob, read_notes
from tests.broker.harness import Group


def test_what_is_dispatched_while_a_checkpoint_is_out_is_noted_by_the_next_one() -> None:
    group = Group.elected(1, flush="sync")
    client = group.connect()
    client.send("T", b"first")
    replica = group.node("n0").replica
    upkeep, store = replica.upkeep, replica.store

    def checkpoint() -> CheckpointJob | None:
        return upkeep.checkpoint_job(upkeep.due_ns())

    slow = checkpoint()
    assert slow is not None
    client.send("T", b"second")
    assert checkpoint() is None, "one at a time"
    slow.run()
    upkeep.checkpointed(slow, group.now_ns)
    last = checkpoint()
    assert last is not None
    last.run()
    upkeep.checkpointed(last, group.now_ns)
    notes = read_notes(group.members["n0"].disk, store.log.epoch)
    assert notes is not None
    assert notes.dispatched_index == store.dispatched_index
    assert upkeep.due_ns() == NEVER


def test_an_idle_node_writes_no_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = 0
    run = CheckpointJob.run

    def counted(job: CheckpointJob) -> None:
        nonlocal runs
        runs += 1
        run(job)

    monkeypatch.setattr(CheckpointJob, "run", counted)
    group = Group.elected(3)
    group.connect().send("T", b"last")
    group.advance(10)
    assert runs >= 3
    runs = 0
    group.advance(60)
    assert runs == 0
