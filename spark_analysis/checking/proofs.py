"""The way from findings to a verdict, for both checkers.

The DataFrames (:mod:`spark_analysis.checking.distributed`) and the plain rules (:mod:`spark_analysis.checking.small`)
share it, so that nobody can tell from a verdict which of them gave it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from spark_analysis.checking.verdict import LINEARIZABLE, UNDECIDED, VIOLATED, Anomaly, Verdict
from spark_analysis.importing.lines import CUT_LINE, LINE, OVERLAPPING_LINE, STRAY_LINE, UNREAD

if TYPE_CHECKING:
    from spark_analysis.checking.kafka.transactions import Cycle

EXAMPLES_OF_EACH_KIND: Final = 10
PROOF_OPERATIONS: Final = 6
DAMAGES_LISTED: Final = 20
REPLICA_FINDINGS_LISTED: Final = 100
UNSURE_LISTED: Final = 100
REGISTERS: Final = ("commit_offset", "fetch_offset")
VALUED: Final = ("append", "read", "poll")
"""Operations that state values at offsets."""
SHOWN: Final = (
    *("invoke_ns", "op", "client", "function", "outcome", "complete_ns", "offset", "first_offset", "values"),
    *("value", "next_offset", "end_offset", "reason"),
)
"""The fields of an operation that a proof shows."""


@dataclass
class Gathered:
    """All that a checker has found in one history. Both checkers fill one, and here it becomes a verdict;
    `corrected_for_gaps` then corrects that for what the recording lacks.

    ``counts`` has the findings by kind, ``allowed`` those that are no anomalies for these consumers, and ``anomalies``
    the first few of each kind. ``undecided`` are texts; ``damages`` are the first rows of the history's ``damage``.
    """

    facts: dict[str, Any]
    operations: int
    counts: Counter[str] = field(default_factory=Counter)
    allowed: Counter[str] = field(default_factory=Counter)
    anomalies: list[Anomaly] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    damages: Sequence[Any] = ()

    def add_unseen(self, count: int, first: Callable[[], Iterable[Anomaly]], *, drained: bool) -> None:
        """Add acknowledged values that no read returned: they are wrong only if readers have ``drained`` the queues."""
        if count:
            (self.counts if drained else self.allowed)["unseen"] = count
            self.anomalies += first() if drained else ()

    def add_circles(
        self,
        circles: Sequence[Cycle] | None,
        rows_of: Callable[[Sequence[int]], Sequence[Mapping[str, Any]]],
    ) -> None:
        """Add circles of transactions; None if there are too many transactions to know. For ``rows_of`` see
        :func:`circle_anomalies`."""
        if circles is None:
            self.undecided.append("G1c: too many transactions polled from each other")
            return
        self.counts.update(one.kind for one in circles)
        self.anomalies += circle_anomalies(circles, rows_of)

    def add_replicas(self, counts: Mapping[str, int], first: Iterable[tuple[str, str, int, str]]) -> None:
        """Add findings about replicas. ``first``: (kind, key, position, detail) of those that are listed."""
        self.counts.update(counts)
        listed = islice(first, REPLICA_FINDINGS_LISTED)
        self.anomalies += (Anomaly(kind, key, at, (), detail) for kind, key, at, detail in listed)

    def add_unsure(self, places: Iterable[tuple[str, int, str]]) -> None:
        """Add places that could not be decided, (key, position, kind) each; the first ones are listed."""
        first = sorted(places)[:UNSURE_LISTED]
        self.undecided += (f"{key}: {kind} at {position}" for key, position, kind in first)

    def verdict(self, path: str) -> Verdict:
        """The verdict on the history at ``path``: one finding is enough for a violation."""
        return Verdict(
            path,
            VIOLATED if self.counts else UNDECIDED if self.undecided else LINEARIZABLE,
            self.operations,
            dict(sorted(self.counts.items())),
            tuple(self.anomalies),
            tuple(self.undecided),
            tuple(map(_damage_line, self.damages)),
            self.facts,
            dict(sorted(self.allowed.items())),
        )


def facts_of(
    outcomes: Mapping[str, Mapping[str, int]],
    called: Mapping[str, int],
    *,
    transactions: int,
    queues: int,
    clients: int,
    first_ns: int | None,
    last_ns: int | None,
    groups: Sequence[str],
    replica_events: Mapping[str, int],
) -> dict[str, Any]:
    """Sum up in numbers what was checked: operations by function and outcome, the broker groups whose replicas
    recorded, their events by node, and the time from the first invocation to the last end.

    ``called``: how many operations have each name and outcome ("txn ok") in the history itself; empty where these are
    the ``outcomes`` of its rows."""
    by_name: dict[str, dict[str, int]] = {}
    for one, count in sorted(called.items()):
        name, _, outcome = one.rpartition(" ")
        by_name.setdefault(name, {})[outcome] = count
    return {
        "functions": {
            function: dict(sorted(counts.items())) for function, counts in sorted(outcomes.items())
        },
        **({"called": by_name} if by_name else {}),
        "transactions": transactions,
        "queues": queues,
        "clients": clients,
        "first_ns": first_ns,
        "seconds": ((last_ns or 0) - (first_ns or 0)) / 1e9,
        "groups": list(groups),
        "replica_events": dict(sorted(replica_events.items(), key=lambda item: str(item[0]))),
    }


def shown(operation: Mapping[str, Any]) -> dict[str, Any]:
    """An operation as a proof shows it: without empty fields, long batches shortened."""
    told = {name: value for name, value in operation.items() if value is not None and name != "called"}
    values = told.get("values")
    if values is not None and len(values) > 8:
        told["values"] = [*values[:8], f"... {len(values) - 8} more"]
    return told


def circle_anomalies(
    circles: Iterable[Cycle], rows_of: Callable[[Sequence[int]], Sequence[Mapping[str, Any]]]
) -> list[Anomaly]:
    """The first few circles of each kind, shortest first, with the rows of their transactions in the order of the
    circle.

    ``rows_of`` gives the operations with these ``op``, in the order of op, function and key.
    """
    chosen: list[Cycle] = []
    for one in sorted(circles, key=lambda one: (one.kind, len(one.ops))):
        if sum(other.kind == one.kind for other in chosen) < EXAMPLES_OF_EACH_KIND:
            chosen.append(one)
    ops = sorted({op for one in chosen for op in one.ops[:PROOF_OPERATIONS]})
    rows = rows_of(ops) if ops else []
    anomalies = []
    for one in chosen:
        proof = [row for op in one.ops[:PROOF_OPERATIONS] for row in rows if row["op"] == op]
        told = tuple(shown({name: row.get(name) for name in SHOWN}) for row in proof)
        detail = " -> ".join(f"operation {op}" for op in one.ops[:PROOF_OPERATIONS])
        anomalies.append(Anomaly(one.kind, proof[0]["key"], None, told, detail))
    return anomalies


def damage_facts(counts: Mapping[str, int]) -> dict[str, int]:
    """The numbers of a verdict's facts that tell of damage; ``counts`` has the damage by kind.

    A process that invokes while an operation of its own is open may have given that one up, and nothing is in doubt.
    But where completions are left over as well, several clients went by one name, and nobody knows whose they are.
    """
    return {
        "bad_lines": sum(counts.values()),
        "cut": counts.get("cut", 0) + counts.get(CUT_LINE, 0),
        "unread": counts.get(UNREAD, 0),
        "mispaired": counts.get(STRAY_LINE, 0) if counts.get(OVERLAPPING_LINE) else 0,
    }


def _damage_line(row: Mapping[str, Any]) -> str:
    """One line for one damage: the file, the place in it, and the reason."""
    unit = "line" if row["kind"].endswith(LINE) else "byte"
    return f"{row['file']}: {unit} {row['position']}: {row['reason']}"
