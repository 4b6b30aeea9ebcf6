"""The report brings the right rows to the driver, and no more than the stated number of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spark_analysis.checking.verdict import Anomaly, Verdict
from spark_analysis.importing import schema
from spark_analysis.importing.history import History
from spark_analysis.telling.report import render
from spark_analysis.telling.report.data import EVENTS_MAX, collect_report
from spark_analysis.telling.report.run_data import FUNCTIONS_SHOWN, NODES_SHOWN, SLICES_MAX
from spark_analysis.telling.report.windows import TIMELINE_OPERATIONS, WINDOWS
from tests.spark_analysis.reports import MILLISECOND, QUEUE, append, operation, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CLIENTS = 5000
NODES = 9
GROUP = f"{QUEUE} readers"


def _row(one: dict[str, Any], key: str = QUEUE, group: str | None = None) -> tuple[Any, ...]:
    placed = one | {"key": key, "group": group}
    return tuple(placed.get(name) for name in schema.OPERATION_NAMES)


def _event(position: int, **fields: Any) -> tuple[Any, ...]:
    return ("n.trace", position, None, *(fields.get(name) for name in schema.EVENT_NAMES))


def test_a_bounded_part_of_the_history(spark: SparkSession) -> None:
    """A crowd on one queue, a stale read among it, a stored position read too late, and replicas without rest."""
    acknowledged, stale = append(1, "p", 10_000, 10_002, 17, "a"), read(2, "c", 10_005, 10_006, 17)
    old = operation(3, "c", "commit_offset", 1, 2, offset=5)
    newer = operation(4, "c", "commit_offset", 8_000, 8_001, offset=9)
    late = operation(5, "d", "fetch_offset", 9_500, 9_501, offset=5)
    silent = operation(6, "e", "read", 10_003, None, offset=3)
    crowd = [
        read(
            100 + number,
            f"client-{number}",
            10_000 + number / 999,
            10_001 + number / 999,
            number,
            f"v{number}",
        )
        for number in range(CLIENTS)
    ]
    functions = [operation(9000 + n, "x", f"function-{n}", n, n + 1) for n in range(FUNCTIONS_SHOWN + 3)]
    rows = [_row(one) for one in (acknowledged, stale, silent, *crowd, *functions)]
    rows += [_row(one, group="readers") for one in (old, newer, late)]
    rows += [_row(operation(7, "f", "fetch_offset", 9_499, 9_500, offset=9), group="others")]
    roles = [
        _event(
            n, node=f"n{n % NODES}", kind="role", time_ns=n * MILLISECOND, role="leader", term=n, last_index=n
        )
        for n in range(EVENTS_MAX + 500)
    ]
    commits = [
        _event(10_000 + n, node=f"n{n % NODES}", kind="commit", time_ns=n * MILLISECOND, last_index=n, term=1)
        for n in range(2000)
    ]
    history = History(
        "run",
        spark.createDataFrame(rows, schema.OPERATIONS),
        spark.createDataFrame([*roles, *commits], schema.EVENT_TABLE),
        spark.createDataFrame([], "file STRING, position BIGINT, kind STRING, reason STRING"),
        spark.createDataFrame(
            [
                ("p", "producer0", 1),
                ("d", "crowd", 9),
                ("c", "crowd", 4),
                ("c", "crowd", 11),
                ("x", "crowd", 1),
            ],
            "client STRING, recorder STRING, invoke_ns BIGINT",
        ),
    )
    anomalies = (
        *(Anomaly("stale-read", QUEUE, 17, (acknowledged, stale)) for _ in range(WINDOWS + 4)),
        Anomaly("stale-offset", GROUP, 5, (old, late)),
        Anomaly("two-leaders", "term 77", 77, (), "n5 and n6"),
        Anomaly("commit-went-back", "n3", 12, (), "from index 30"),
    )
    facts = {
        "functions": {"read": {"ok": CLIENTS}},
        "queues": 1,
        "clients": CLIENTS,
        "first_ns": 0,
        "seconds": 20.0,
        "replica_events": {"n0": 1},
    }
    verdict = Verdict("run", "violated", len(rows), {"stale-read": WINDOWS + 4}, anomalies, facts=facts)
    data = collect_report(verdict, history)

    assert len(data.events) == EVENTS_MAX
    assert [event.time_ns for event in data.events[:3]] == [0, MILLISECOND, 2 * MILLISECOND]

    assert set(data.windows) == {0, WINDOWS + 4}  # one of each kind
    operations = data.windows[0].operations
    assert len(operations) == TIMELINE_OPERATIONS
    assert {one["op"] for one in operations[:2]} == {1, 2}
    assert all(abs(one["invoke_ns"] - 10_003 * MILLISECOND) < 100 * MILLISECOND for one in operations)
    assert 6 not in {one["op"] for one in operations}  # a question without an answer says nothing
    assert sorted(one["op"] for one in data.windows[WINDOWS + 4].operations) == [3, 4, 5]

    assert [event.term for event in data.evidence[WINDOWS + 5]] == [77]
    assert [event.last_index for event in data.evidence[WINDOWS + 6]] == [12, 30]

    rate, latency, lag = data.panels
    assert [series.name for series in rate.series] == ["read"]  # of the others there are too few for a line
    assert len(lag.series) <= NODES_SHOWN
    for panel in (rate, latency, lag):
        assert all(len(series.points) <= SLICES_MAX + 1 for series in panel.series)
    assert sum(value or 0 for _, value in rate.series[0].points[:-1]) * 20.0 / SLICES_MAX == pytest.approx(
        CLIENTS + 1, rel=0.01
    )

    assert data.names == {"p": "producer0", "c": "crowd #2", "d": "crowd #3"}

    page = render(verdict, data)
    assert len(page.encode()) < 3_000_000
    assert "offset 9 is stored" in page
