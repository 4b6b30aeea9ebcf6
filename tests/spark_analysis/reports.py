"""Verdicts and small tables for tests of the report, made by hand: one example of each kind of anomaly."""

from __future__ import annotations

from typing import Any, Final

from spark_analysis.checking.verdict import LINEARIZABLE, UNDECIDED, VIOLATED, Anomaly, Verdict
from spark_analysis.telling.report.run_figure import Panel, Series
from spark_analysis.telling.report.tables import ReportData, TracedEvent, Window
from spark_analysis.telling.report.windows import places_to_draw, window_around
from spark_analysis.telling.stories import decisive

QUEUE = "orders/broker-a:2"
MILLISECOND = 1_000_000


def operation(
    op: int, client: str, function: str, invoke_ms: float, complete_ms: float | None, **fields: Any
) -> dict[str, Any]:
    """An operation as a proof shows it."""
    shown = {
        "invoke_ns": int(invoke_ms * MILLISECOND),
        "op": op,
        "client": client,
        "function": function,
        "outcome": "ok" if complete_ms is not None else "info",
        **fields,
    }
    return shown | ({} if complete_ms is None else {"complete_ns": int(complete_ms * MILLISECOND)})


def append(
    op: int, client: str, invoke_ms: float, complete_ms: float, offset: int, value: str
) -> dict[str, Any]:
    """An acknowledged one."""
    return operation(
        op, client, "append", invoke_ms, complete_ms, first_offset=offset, values=[value], value=value
    )


def read(
    op: int, client: str, invoke_ms: float, complete_ms: float, offset: int, *values: str
) -> dict[str, Any]:
    """An answered one."""
    fields: dict[str, Any] = {"offset": offset, "values": list(values), "next_offset": offset + len(values)}
    if values:
        fields |= {"first_offset": offset, "value": values[0]}
    return operation(op, client, "read", invoke_ms, complete_ms, **fields)


_APPEND = append(1, "producer-1", 1000, 1002, 17, "message-a")
_OTHER = append(2, "producer-2", 1001, 1003, 17, "message-b")
_LATE = append(3, "producer-1", 1010, 1011, 9, "message-c")
_NOTHING = read(4, "consumer-1", 1005, 1006, 17)
_GOT = read(5, "consumer-2", 990, 995, 17, "message-a")
_TAIL = operation(6, "auditor", "tail", 1005, 1006, offset=17)
_HEADS = (
    operation(7, "auditor", "head", 1005, 1006, offset=9),
    operation(8, "auditor", "head", 1010, 1011, offset=3),
)
_POLLS = (
    operation(9, "consumer-1", "poll", 1005, 1006, first_offset=4, values=["v4"]),
    operation(10, "consumer-1", "poll", 1010, 1011, first_offset=9, values=["v9"]),
)
_FETCH = operation(11, "consumer-1", "fetch_offset", 1010, 1011, offset=5)

EXAMPLES: dict[str, Anomaly] = {
    one.kind: one
    for one in (
        Anomaly("duplicate-offset", QUEUE, 17, (_APPEND, _OTHER)),
        Anomaly("inconsistent-offset", QUEUE, 17, (_OTHER, _GOT)),
        Anomaly("append-order", QUEUE, 9, (_APPEND, _LATE)),
        Anomaly("stale-read", QUEUE, 17, (_APPEND, _NOTHING)),
        Anomaly("stale-tail", QUEUE, 17, (_APPEND, _TAIL)),
        Anomaly("premature-read", QUEUE, 17, (_APPEND, _GOT)),
        Anomaly("torn-read", QUEUE, 17, (_GOT,)),
        Anomaly("torn-append", QUEUE, 17, (_APPEND,)),
        Anomaly("aborted-read", QUEUE, 17, (_GOT,)),
        Anomaly("duplicate-value", QUEUE, 17, (_APPEND, _GOT)),
        Anomaly("phantom-value", QUEUE, 17, (_GOT,)),
        Anomaly("unexplained-value", QUEUE, 17, (_GOT,)),
        Anomaly("unexplained-offset", QUEUE, 17, (_TAIL,)),
        Anomaly("backward-head", QUEUE, 3, _HEADS),
        Anomaly("stale-offset", f"{QUEUE} readers", 5, (_FETCH,)),
        Anomaly("phantom-offset", f"{QUEUE} readers", 5, (_FETCH,)),
        Anomaly("poll-skip", QUEUE, 9, _POLLS),
        Anomaly("nonmonotonic-poll", QUEUE, 9, _POLLS),
        Anomaly("int-poll-skip", QUEUE, 9, _POLLS[:1]),
        Anomaly("int-nonmonotonic-poll", QUEUE, 9, _POLLS[:1]),
        Anomaly("lost-write", QUEUE, 17, (_APPEND,)),
        Anomaly("nonmonotonic-send", QUEUE, 9, (_APPEND, _LATE)),
        Anomaly("unseen", QUEUE, 17, (_APPEND,)),
        Anomaly("int-send-skip", QUEUE, 17, (_APPEND,)),
        Anomaly("int-nonmonotonic-send", QUEUE, 17, (_APPEND,)),
        Anomaly("precommitted-read", QUEUE, 9, _POLLS[1:]),
        Anomaly("G1c", QUEUE, None, _POLLS, "operation 9 -> operation 10"),
        Anomaly("G1c-realtime", QUEUE, None, _POLLS, "operation 9 -> operation 10"),
        Anomaly(
            "not-linearizable",
            "k1",
            None,
            (
                {
                    "client": "1",
                    "function": "write",
                    "invoke_ns": 3,
                    "complete_ns": 4,
                    "argument": 2,
                    "result": None,
                },
                {
                    "client": "2",
                    "function": "read",
                    "invoke_ns": 5,
                    "complete_ns": 6,
                    "argument": None,
                    "result": 1,
                },
            ),
            "after 1 of 2 operations nothing could follow: the last one, and what was tried",
        ),
        Anomaly("two-leaders", "term 4", 4, (), "n0 and n2"),
        Anomaly("term-went-back", "n1", 3, (), "from term 7"),
        Anomaly("commit-went-back", "n1", 80, (), "from index 90"),
        Anomaly("committed-truncated", "n1", 81, (), "committed up to 90"),
        Anomaly("leader-incomplete", "n2", 74, (), "leader of term 5; committed before: 88"),
        Anomaly("log-mismatch", "n0 and n1", 12, (), "entries of term 3"),
        Anomaly("prefix-mismatch", "n0 and n1", 1024, (), "CRC-32 of the committed bytes differ"),
    )
}

FACTS: dict[str, Any] = {
    "functions": {"append": {"ok": 30, "info": 2}, "read": {"ok": 50, "fail": 1}, "tail": {"ok": 5}},
    "transactions": 0,
    "queues": 3,
    "clients": 6,
    "first_ns": 980 * MILLISECOND,
    "seconds": 10.0,
    "replica_events": {"n0": 100, "n1": 110, "n2": 90},
}


TRANSACTIONAL: Final = ("int-send-skip", "int-nonmonotonic-send", "precommitted-read", "G1c", "G1c-realtime")


def verdict_of(*kinds: str, **changed: Any) -> Verdict:
    """A verdict with the example of each kind; linearizable without any."""
    anomalies = tuple(EXAMPLES[kind] for kind in kinds)
    fields: dict[str, Any] = {
        "path": "traces/run-1",
        "verdict": VIOLATED if kinds else LINEARIZABLE,
        "operations": 88,
        "counts": dict.fromkeys(kinds, 1),
        "anomalies": anomalies,
        "facts": FACTS | {"transactions": int(any(kind in TRANSACTIONAL for kind in kinds))},
    }
    return Verdict(**fields | changed)


UNDECIDED_VERDICT = verdict_of(
    verdict=UNDECIDED,
    undecided=(f"{QUEUE}: unexplained-offset at 12",),
    damage=("n0.trace: byte 77: cut in the middle",),
)


def events_of_a_failover() -> list[TracedEvent]:
    """n0 leads, is killed, and n1 takes over."""
    second = 1_000 * MILLISECOND
    return [
        *(
            TracedEvent(f"n{number}", "start", 900 * MILLISECOND, term=0, last_index=-1)
            for number in range(3)
        ),
        TracedEvent("n0", "role", second, "leader", 1, last_index=-1),
        TracedEvent("driver", "fault", 4 * second, detail="kill: SIGKILL", targets=("n0",)),
        TracedEvent("n1", "role", 5 * second, "candidate", 2, last_index=60),
        TracedEvent("n1", "role", 6 * second, "leader", 2, last_index=60),
        TracedEvent("n0", "start", 7 * second, term=1, last_index=58),
    ]


def data_for(verdict: Verdict) -> ReportData:
    """The small tables that a report of this verdict has, as Spark would give them."""
    evidence = [TracedEvent("n0", "role", 2_000 * MILLISECOND, "leader", 4, last_index=3)]
    evidence.append(TracedEvent("n2", "role", 2_500 * MILLISECOND, "leader", 4, last_index=2))
    windows: dict[int, Window] = {}
    for place in places_to_draw(verdict.anomalies):
        window = window_around(decisive(verdict.anomalies[place]))
        around = operation(99, "bystander", "read", 1001, None, offset=3)
        windows[place] = Window(
            window.begin_ns,
            window.end_ns,
            window.low_ns,
            window.high_ns,
            window.proof,
            (*verdict.anomalies[place].proof, around),
        )
    times = [float(number) for number in range(11)]
    return ReportData(
        tuple(events_of_a_failover()),
        (
            Panel(
                "Throughput",
                "operations completed per second",
                (Series("append", [(at, at * 10) for at in times]),),
            ),
            Panel(
                "Latency",
                "milliseconds",
                (Series("append", [(at, None if at == 4 else 2.5) for at in times]),),
                True,
            ),
            Panel("Replica lag", "entries", (Series("n0", [(at, 0.0) for at in times]),)),
        ),
        windows,
        {place: tuple(evidence) for place, one in enumerate(verdict.anomalies) if not one.proof},
    )
