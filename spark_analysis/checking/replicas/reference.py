"""The rules of :mod:`spark_analysis.checking.replicas.invariants` in plain Python.

They are here to be read, to be compared with the DataFrames, and to judge histories that one task holds
(:mod:`spark_analysis.checking.small`).
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

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
    last_term: int | None = None
    group: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaFinding:
    """A violated invariant: ``key`` is a node, several, or a term.

    ``position`` is a term for ``two-leaders`` and ``term-went-back``, a log index for the others.
    """

    kind: str
    key: str
    position: int
    detail: str


def replica_findings(events: Iterable[ReplicaEvent]) -> list[ReplicaFinding]:
    """Every violated invariant of each group; the events of each node are in the order in which they happened."""
    by_group: dict[str, list[ReplicaEvent]] = defaultdict(list)
    for event in events:
        by_group[event.group].append(event)
    return [finding for listed in by_group.values() for finding in _findings(listed)]


def _findings(events: Sequence[ReplicaEvent]) -> list[ReplicaFinding]:
    findings = [*_two_leaders(events), *_incomplete_leaders(events)]
    by_node: dict[str, list[ReplicaEvent]] = defaultdict(list)
    for event in events:
        by_node[event.node].append(event)
    for node, node_events in by_node.items():
        findings += _along_a_node(node, node_events)
    findings += _mismatches(
        (one, "log-mismatch", (one.term, one.first_index, one.last_index), f"entries of term {one.term}")
        for one in events
        if one.kind == "append" and one.digest is not None
    )
    findings += _mismatches(
        (one, "prefix-mismatch", one.last_index, "CRC-32 of the committed bytes differ")
        for one in events
        if one.kind == "digest"
    )
    return findings


def _two_leaders(events: Iterable[ReplicaEvent]) -> Iterable[ReplicaFinding]:
    nodes: dict[int, set[str]] = defaultdict(set)
    for event in events:
        if event.kind == "role" and event.role == "leader":
            assert event.term is not None
            nodes[event.term].add(event.node)
    return [
        ReplicaFinding("two-leaders", f"term {term}", term, " and ".join(sorted(leaders)))
        for term, leaders in nodes.items()
        if len(leaders) > 1
    ]


def _along_a_node(node: str, events: Iterable[ReplicaEvent]) -> Iterable[ReplicaFinding]:
    """Terms and truncations of what was known committed over all lives with one disk, commit indices within a life.

    A start without a term and without an entry is of a new disk.
    """
    term = committed = committed_in_life = NO_INDEX
    for event in events:
        if event.kind == "start":
            committed_in_life = NO_INDEX  # the commit index is volatile (figure 2): a start may know of less
            if event.term == 0 and event.last_index == NO_INDEX:
                term = committed = NO_INDEX
        if event.kind in ("start", "role"):
            assert event.term is not None
            if event.term < term:
                yield ReplicaFinding("term-went-back", node, event.term, f"from term {term}")
            term = max(term, event.term)
        elif event.kind == "commit":
            if event.last_index < committed_in_life:
                detail = f"from index {committed_in_life}"
                yield ReplicaFinding("commit-went-back", node, event.last_index, detail)
            committed_in_life = max(committed_in_life, event.last_index)
            committed = max(committed, event.last_index)
        elif event.kind == "truncate" and event.last_index < committed:
            detail = f"committed up to {committed}"
            yield ReplicaFinding("committed-truncated", node, event.last_index + 1, detail)


def _incomplete_leaders(events: Sequence[ReplicaEvent]) -> Iterable[ReplicaFinding]:
    """A leader lacks what some node knew committed in an earlier term.

    Its log is too short; or it ends in a term before one whose leader had committed an entry of its own: terms never
    decrease along a log. Entries behind a leader's log at its election are its own.
    """
    # The highest index known committed in each term, and where each leader's log ended at its election.
    committed: dict[int, int] = {}
    elected_at: dict[tuple[str, int], int] = {}
    for event in events:
        if event.kind == "commit":
            assert event.term is not None
            committed[event.term] = max(event.last_index, committed.get(event.term, NO_INDEX))
        elif event.kind == "role" and event.role == "leader":
            assert event.term is not None
            at = (event.node, event.term)
            elected_at[at] = min(event.last_index, elected_at.get(at, event.last_index))
    # Terms whose leader committed an entry of its own term (Raft, 5.4.2): a later leader's log ends in that
    # term or a later one (5.4.3).
    own: dict[int, int] = {}
    for event in events:
        if event.kind == "commit" and event.term is not None:
            begin = elected_at.get((event.node, event.term))
            if begin is not None and event.last_index > begin:
                own[event.term] = max(event.last_index, own.get(event.term, NO_INDEX))
    terms, own_terms = sorted(committed), sorted(own)
    greatest = list(accumulate((committed[term] for term in terms), max, initial=NO_INDEX))
    found: dict[ReplicaFinding, None] = {}
    for event in events:
        if event.kind == "role" and event.role == "leader":
            assert event.term is not None
            # Of earlier terms only: what is committed in its own a leader appends after its election.
            before = greatest[bisect_left(terms, event.term)]
            latest = own_terms[place - 1] if (place := bisect_left(own_terms, event.term)) else NO_INDEX
            if event.last_index < before:
                detail = f"leader of term {event.term}; committed before: {before}"
                found[ReplicaFinding("leader-incomplete", event.node, event.last_index + 1, detail)] = None
            elif event.last_term is not None and event.last_term < latest:
                detail = (
                    f"leader of term {event.term}; its log ends with entry {event.last_index} of term "
                    f"{event.last_term}; committed before, in term {latest}: {own[latest]}"
                )
                found[ReplicaFinding("leader-incomplete", event.node, own[latest], detail)] = None
    return found


def _mismatches(told: Iterable[tuple[ReplicaEvent, str, Hashable, str]]) -> Iterable[ReplicaFinding]:
    """``told``: (event, kind of finding, what its digest is of, detail). One finding for each thing with several."""
    things: dict[Hashable, tuple[str, str, list[ReplicaEvent]]] = {}
    for event, kind, thing, detail in told:
        things.setdefault(thing, (kind, detail, []))[2].append(event)
    for kind, detail, events in things.values():
        if len({event.digest for event in events}) > 1:
            position = events[0].last_index if events[0].first_index is None else events[0].first_index
            nodes = sorted({event.node for event in events})
            yield ReplicaFinding(kind, " and ".join(nodes), position, detail)
