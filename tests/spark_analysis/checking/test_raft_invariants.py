"""Raft's invariants: the plain rules on pairs of histories, and Spark's sweeps against the plain rules."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.trace import TraceHeader, TraceWriter
from spark_analysis.checking.replicas.files import place_of_file
from spark_analysis.checking.replicas.reference import ReplicaEvent, replica_findings
from spark_analysis.checking.small import check_rows
from spark_analysis.importing import schema
from spark_analysis.light import judge_log
from tests.spark_analysis.raft_mutations import RAFT_MUTATIONS, Events, good_events


def as_rows(events: Events) -> list[tuple[Any, ...]]:
    """Rows of schema.EVENT_TABLE: an event every 40 bytes, ten in each file of a node."""
    rows = []
    ends: Counter[str] = Counter()
    for time_ns, one in enumerate(events):
        ends[one.node] += 40
        number = ends[one.node] // 400
        file = f"{one.node}.{number}.trace" if number else f"{one.node}.trace"
        named = {"node": one.node, "kind": one.kind, "time_ns": time_ns, "role": one.role, "term": one.term}
        named |= {"first_index": one.first_index, "last_index": one.last_index, "digest": one.digest}
        named["last_term"] = one.last_term
        named |= {"file": file, "position": ends[one.node] % 400, "group": one.group}
        rows.append(tuple(named.get(name) for name in schema.EVENT_TABLE_NAMES))
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


def test_the_files_of_a_node_are_in_the_order_in_which_they_were_begun() -> None:
    """A node begins another file when its machine was started anew: n0.trace, n0.1.trace, up to n0.10.trace and on."""
    rows = [
        dict.fromkeys((*schema.OPERATION_NAMES, *schema.EVENT_NAMES))
        | {"record": "event"}
        | dict(zip(schema.EVENT_TABLE_NAMES, row, strict=True))
        for row in as_rows(good_events(random.Random(3), 200))
    ]
    assert len({row["file"] for row in rows if row["node"] == "n0"}) > 10
    assert check_rows("", sorted(rows, key=lambda row: (row["file"], row["position"]))).counts == {}
    assert place_of_file("/a/n0.2.trace") == ("/a/n0", 2)
    assert place_of_file("/a/n0.2.1.trace") == ("/a/n0.2", 1)
    assert place_of_file("a.log") == ("a.log", 0)


def test_groups_are_judged_apart(tmp_path: Path) -> None:
    """Terms and indexes are a group's own: each has a leader of its first term, whose log is not the other's."""
    for node, group in (("n0", "g0"), ("n3", "g1")):
        with (tmp_path / f"{node}.trace").open("wb") as file:
            writer = TraceWriter(
                file.write, TraceHeader("replica", node, "boot", 0, attributes=(("group", group),))
            )
            writer.start(1, 0, -1, -1)
            writer.role(2, "leader", 1, node, -1, 0)
            writer.append(3, 0, 5, 1, len(group + node) + int(node[1]))
            writer.commit(4, 5, 1)
            writer.flush()
    judged = judge_log(tmp_path, "trace")
    assert judged is not None
    assert judged[0].counts == {}
    assert {row["group"] for row in judged[1].events} == {"g0", "g1"}
    events = [
        replace(one, group=group) for group in "ab" for one in good_events(random.Random(ord(group)), 60)
    ]
    assert replica_findings(events) == []
    assert replica_findings([replace(one, group="") for one in events])
