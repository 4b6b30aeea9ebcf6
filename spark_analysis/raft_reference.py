"""The rules of :mod:`spark_analysis.raft_invariants` in plain Python, for one group: to be read, and compared with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from spark_analysis.unknown import Finding

NO_INDEX: Final = -1


@dataclass(frozen=True, slots=True)
class ReplicaEvent:
    """One record of a replica (docs/trace-format.md); the columns of schema.EVENTS that the invariants look at."""

    node: str
    kind: str
    term: int | None = None
    role: str | None = None
    first_index: int | None = None
    last_index: int = NO_INDEX
    digest: int | None = None


def replica_findings(events: Sequence[ReplicaEvent]) -> list[Finding]:
    """Every violated invariant; the events of each node are in the order in which they happened.

    A finding's position is a term for ``two-leaders`` and ``term-went-back``, a log index for the others.
    """
    findings = [*_two_leaders(events), *_incomplete_leaders(events)]
    by_node: dict[str, list[ReplicaEvent]] = defaultdict(list)
    for event in events:
        by_node[event.node].append(event)
    for node_events in by_node.values():
        findings += _along_a_node(node_events)
    findings += _mismatches(
        "log-mismatch",
        (
            ((event.term, event.first_index, event.last_index), event.first_index or 0, event.digest)
            for event in events
            if event.kind == "append" and event.digest is not None
        ),
    )
    findings += _mismatches(
        "prefix-mismatch",
        ((event.last_index, event.last_index, event.digest) for event in events if event.kind == "digest"),
    )
    return findings


def _two_leaders(events: Iterable[ReplicaEvent]) -> Iterable[Finding]:
    nodes: dict[int, set[str]] = defaultdict(set)
    for event in events:
        if event.kind == "role" and event.role == "leader":
            assert event.term is not None
            nodes[event.term].add(event.node)
    return [Finding("two-leaders", term) for term, leaders in nodes.items() if len(leaders) > 1]


def _along_a_node(events: Iterable[ReplicaEvent]) -> Iterable[Finding]:
    """Terms and truncations of what was known committed over all lives with one disk, commit indices within a life.

    A start without a term and without an entry is of a new disk.
    """
    term = committed = committed_in_life = NO_INDEX
    for event in events:
        if event.kind == "start":
            committed_in_life = NO_INDEX
            if event.term == 0 and event.last_index == NO_INDEX:
                term = committed = NO_INDEX
        if event.kind in ("start", "role"):
            assert event.term is not None
            if event.term < term:
                yield Finding("term-went-back", event.term)
            term = max(term, event.term)
        elif event.kind == "commit":
            if event.last_index < committed_in_life:
                yield Finding("commit-went-back", event.last_index)
            committed_in_life = max(committed_in_life, event.last_index)
            committed = max(committed, event.last_index)
        elif event.kind == "truncate" and event.last_index < committed:
            yield Finding("committed-truncated", event.last_index + 1)


def _incomplete_leaders(events: Iterable[ReplicaEvent]) -> Iterable[Finding]:
    """A leader lacks what some node knew committed in an earlier term."""
    events = list(events)
    committed: dict[int, int] = {}
    for event in events:
        if event.kind == "commit":
            assert event.term is not None
            committed[event.term] = max(event.last_index, committed.get(event.term, NO_INDEX))
    found: dict[tuple[str, int, int], None] = {}
    for event in events:
        if event.kind == "role" and event.role == "leader":
            assert event.term is not None
            before = (index for term, index in committed.items() if term < event.term)
            if event.last_index < max(before, default=NO_INDEX):
                found[event.node, event.term, event.last_index] = None
    return [Finding("leader-incomplete", last_index + 1) for _, _, last_index in found]


def _mismatches(kind: str, told: Iterable[tuple[Hashable, int, int | None]]) -> Iterable[Finding]:
    """``told``: (what the digest is of, position, digest). One finding for all digests of one thing that differ."""
    digests: dict[Hashable, tuple[int, set[int | None]]] = {}
    for thing, position, digest in told:
        digests.setdefault(thing, (position, set()))[1].add(digest)
    return [Finding(kind, position) for position, values in digests.values() if len(values) > 1]
