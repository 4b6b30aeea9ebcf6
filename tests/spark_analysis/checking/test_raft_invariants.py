"""Raft's invariants: the plain rules on pairs of histories, and Spark's sweeps against the plain rules."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from spark_analysis.checking.replicas.reference import ReplicaEvent, replica_findings
from spark_analysis.importing import schema
from tests.spark_analysis.raft_mutations import RAFT_MUTATIONS, Events, good_events

if TYPE_CHECKING:
    pass

COLUMNS = f"file STRING, position BIGINT, {schema.EVENTS}"


def as_rows(events: Events) -> list[tuple[Any, ...]]:
    """Rows of schema.EVENTS: one file for each node, an event every 40 bytes."""
    rows = []
    ends: Counter[str] = Counter()
    for time_ns, one in enumerate(events):
        ends[one.node] += 40
        named = {"node": one.node, "kind": one.kind, "time_ns": time_ns, "role": one.role, "term": one.term}
        named |= {"first_index": one.first_index, "last_index": one.last_index, "digest": one.digest}
        named["last_term"] = one.last_term
        rows.append((f"{one.node}.trace", ends[one.node], *(named.get(name) for name in schema.EVENT_NAMES)))
    return rows


@pytest.mark.parametrize(("mutation", "kind"), RAFT_MUTATIONS.items())
def test_one_broken_invariant_is_named(mutation: Callable[..., None], kind: str) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        events = good_events(rng, 100)
        assert replica_findings(events) == []
        mutation(rng, events)
        assert kind in {one.kind for one in replica_findings(events)}


def test_a_restart_may_forget_the_commit_index() -> None:
    """Good neighbours of what is forbidden."""
    events = [
        ReplicaEvent("n0", "start", 1),
        ReplicaEvent("n0", "commit", 1, last_index=5),
        ReplicaEvent("n0", "start", 1, last_index=5),
        ReplicaEvent("n0", "commit", 1, last_index=3),
        ReplicaEvent("n0", "truncate", last_index=5),
        ReplicaEvent("n0", "start", 0),  # with a new disk
        ReplicaEvent("n0", "role", 1, "follower"),
        ReplicaEvent("n0", "truncate", last_index=2),
        ReplicaEvent("n1", "role", 2, "leader", last_index=5),
        ReplicaEvent("n1", "role", 2, "leader", last_index=6),
    ]
    assert replica_findings(events) == []
