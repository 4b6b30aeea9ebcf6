"""The report: one HTML page without scripts or network, the answer in words first (design of the page: report.html).

Only aggregates and the operations around one violation come to the driver: at most a few thousand rows, whatever the
history's size. Plots are drawn to SVG here, so that the page shows the same everywhere and for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_analysis.console import describe
from spark_analysis.history import History
from spark_analysis.verdict import EXPLANATIONS, LINEARIZABLE, UNDECIDED, VIOLATED, Anomaly, Verdict

if TYPE_CHECKING:
    import pandas as pd

SLICES: Final = 200
TIMELINE_OPERATIONS: Final = 60
WIDTH: Final = 900
_RED, _GREY, _BLUE = "#c62828", "#90a4ae", "#1565c0"
_ROLE_COLOURS: Final = {
    "leader": "#2e7d32",
    "follower": "#b0bec5",
    "candidate": "#f9a825",
    "precandidate": "#fdd835",
    "learner": "#7e57c2",
    "down": "#424242",
}

_WORDS: Final = {
    LINEARIZABLE: "Everything the clients saw can be explained by one queue on one machine.",
    VIOLATED: "The clients saw something that no single queue on one machine can explain.",
    UNDECIDED: "No violation was found, but not everything could be decided.",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot of the page: inline SVG, with the sentence that says how to read it."""

    title: str
    reading: str
    svg: str


def write_report(verdict: Verdict, history: History | None, target: Path) -> Path:
    """Write the page for one history to the file ``target``, making its directory; returns the path."""
    import jinja2

    figures = _figures(verdict, history) if history is not None else []
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("spark_analysis", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html").render(
        verdict=verdict,
        words=_WORDS[verdict.verdict],
        explanations=EXPLANATIONS,
        checked=checked_and_not(verdict),
        anomalies=[(anomaly, [describe(one) for one in anomaly.proof]) for anomaly in verdict.anomalies[:40]],
        figures=figures,
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, encoding="utf-8")
    return target


# What is promised, the functions that it takes to judge it, and the anomalies that break it.
_PROMISES: Final = (
    (
        "acknowledged appends have offsets of their own, in real-time order, with nothing lost or invented between",
        ("append",),
        ("duplicate-offset", "append-order", "torn-append", "unexplained-offset", "duplicate-value"),
    ),
    (
        "reads agree with appends and with each other, and are never stale",
        ("read",),
        (
            *(
                "inconsistent-offset",
                "stale-read",
                "premature-read",
                "torn-read",
                "aborted-read",
                "phantom-value",
            ),
            *("unexplained-value", "duplicate-value"),
        ),
    ),
    ("queries of a queue's ends are never stale", ("tail", "head"), ("stale-tail", "backward-head")),
    (
        "committed offsets behave like registers",
        ("commit_offset", "fetch_offset"),
        ("stale-offset", "phantom-offset"),
    ),
)
_REPLICAS_PROMISE: Final = "replicas kept Raft's guarantees, and their committed prefixes are equal"
_REPLICA_ANOMALIES: Final = (
    *("two-leaders", "term-went-back", "commit-went-back", "committed-truncated", "leader-incomplete"),
    *("log-mismatch", "prefix-mismatch"),
)


def checked_and_not(verdict: Verdict) -> list[tuple[str, str]]:
    """Each promise as (holds, broken or unchecked, sentence), from what the history contains and what was found."""
    facts = verdict.facts
    functions = facts.get("functions")
    if functions is None:
        state = {LINEARIZABLE: "holds", VIOLATED: "broken"}.get(verdict.verdict, "unchecked")
        return [(state, f"every key behaves like the model {facts.get('model')}")]

    def state_of(is_recorded: bool, kinds: tuple[str, ...]) -> str:
        return "broken" if verdict.counts.keys() & set(kinds) else "holds" if is_recorded else "unchecked"

    states = [
        (state_of(bool(functions.keys() & set(needed)), kinds), text) for text, needed, kinds in _PROMISES
    ]
    states.append((state_of(bool(facts["replica_events"]), _REPLICA_ANOMALIES), _REPLICAS_PROMISE))
    return [
        (state, f"{text} (not checked: nothing of the kind was recorded)" if state == "unchecked" else text)
        for state, text in states
    ]


def _figures(verdict: Verdict, history: History) -> list[Figure]:
    import altair as alt

    alt.data_transformers.disable_max_rows()
    if not verdict.operations:
        return []
    start = verdict.facts["first_ns"]
    slice_ns = max(1, int(verdict.facts["seconds"] * 1e9 / SLICES) + 1)
    events = _events(history, start)
    figures = []
    culprit = next((one for one in verdict.anomalies if len(one.proof) > 0), None)
    if culprit is not None:
        figures.append(_timeline(culprit, history, events))
    figures += _activity(history, events, start, slice_ns)
    if not events.empty and events["node"].nunique():
        figures += _replicas(history, events, start, slice_ns, verdict.facts["seconds"])
    return figures


def _events(history: History, start: int) -> pd.DataFrame:
    """Roles, starts, stops and faults in order, at seconds since the first operation."""
    rows = history.events.where("kind IN ('role', 'start', 'stop', 'fault')").orderBy("time_ns").limit(5000)
    frame = rows.select("node", "kind", "time_ns", "role", "term", "detail", "targets").toPandas()
    frame["second"] = (frame["time_ns"] - start) / 1e9
    return frame


def _fault_marks(events: pd.DataFrame) -> Any:
    import altair as alt

    faults = events[events["kind"] == "fault"].copy()
    if faults.empty:
        return None
    faults["what"] = [
        f"{detail} {' '.join(targets if targets is not None else [])}"
        for detail, targets in zip(faults["detail"], faults["targets"], strict=True)
    ]
    base = alt.Chart(faults[["second", "what"]])
    lines = base.mark_rule(color=_RED, strokeDash=[4, 3]).encode(x="second:Q")
    texts = base.mark_text(
        color=_RED, align="left", angle=270, dx=-50, dy=-6, fontSize=9, baseline="bottom"
    ).encode(x="second:Q", y=alt.value(0), text="what:N")
    return lines + texts


def _svg(chart: Any) -> str:
    import vl_convert

    return str(vl_convert.vegalite_to_svg(chart.to_dict()))


def _activity(history: History, events: pd.DataFrame, start: int, slice_ns: int) -> list[Figure]:
    import altair as alt
    import pandas as pd
    from pyspark.sql import functions as sf

    finished = history.operations.where("outcome = 'ok' AND function IN ('append', 'read')")
    rows = (
        finished.withColumn("slice", sf.floor((sf.col("complete_ns") - start) / slice_ns))
        .groupBy("slice", "function")
        .agg(
            sf.count(sf.lit(1)).alias("count"),
            sf.percentile_approx((sf.col("complete_ns") - sf.col("invoke_ns")) / 1e6, 0.99).alias("latency"),
        )
        .toPandas()
    )
    if rows.empty:
        return []
    # A moment without completions is a zero, not a gap to be bridged by a line.
    every = pd.MultiIndex.from_product(
        [range(int(rows["slice"].min()), int(rows["slice"].max()) + 1), sorted(rows["function"].unique())]
    )
    rows = rows.set_index(["slice", "function"]).reindex(every.set_names(["slice", "function"])).reset_index()
    rows["count"] = rows["count"].fillna(0)
    rows["second"] = rows["slice"] * slice_ns / 1e9
    rows["per_second"] = rows["count"] / (slice_ns / 1e9)
    rows["worst"] = rows["latency"]
    marks = _fault_marks(events)
    time = alt.X("second:Q", title="seconds since the first operation")
    colour = alt.Color("function:N", scale=alt.Scale(range=[_BLUE, "#ef6c00"]), title=None)
    data = rows[["second", "function", "per_second", "worst"]]
    throughput: Any = (
        alt.Chart(data)
        .mark_line(interpolate="step-after")
        .encode(x=time, y=alt.Y("per_second:Q", title="completed per second"), color=colour)
    )
    latency: Any = (
        alt.Chart(data)
        .mark_line()
        .encode(
            x=time,
            y=alt.Y("worst:Q", title="99th percentile, ms", scale=alt.Scale(type="symlog")),
            color=colour,
        )
    )
    if marks is not None:
        throughput, latency = throughput + marks, latency + marks
    return [
        Figure(
            "Throughput",
            "Operations that completed, second by second. Red: faults.",
            _svg(throughput.properties(width=WIDTH, height=180)),
        ),
        Figure(
            "Latency",
            "The slowest hundredth of the operations of each moment.",
            _svg(latency.properties(width=WIDTH, height=180)),
        ),
    ]


def _replicas(
    history: History, events: pd.DataFrame, start: int, slice_ns: int, seconds: float
) -> list[Figure]:
    import altair as alt
    from pyspark.sql import functions as sf

    figures: list[Figure] = []
    bands = role_bands(events, seconds)
    marks = _fault_marks(events)
    time = alt.X("second:Q", title="seconds since the first operation")
    if not bands.empty:
        chart: Any = (
            alt.Chart(bands)
            .mark_bar(height=14)
            .encode(
                x=time,
                x2="until",
                y=alt.Y("node:N", title=None),
                color=alt.Color(
                    "role:N",
                    title=None,
                    scale=alt.Scale(domain=[*_ROLE_COLOURS], range=[*_ROLE_COLOURS.values()]),
                ),
            )
        )
        leaders = bands[bands["role"] == "leader"]
        terms = (
            alt.Chart(leaders)
            .mark_text(align="left", dx=3, color="white", fontSize=10)
            .encode(x="second:Q", y="node:N", text="label:N")
        )
        chart = chart + terms if marks is None else chart + terms + marks
        figures.append(
            Figure(
                "Roles",
                "Who led when; the number is the term. Red: faults.",
                _svg(chart.properties(width=WIDTH, height=28 * bands["node"].nunique())),
            )
        )
    lag = (
        history.events.where("kind = 'commit'")
        .withColumn("slice", sf.floor((sf.col("time_ns") - start) / slice_ns))
        .groupBy("slice", "node")
        .agg(sf.max("last_index").alias("committed"))
        .orderBy("slice")
        .toPandas()
    )
    if not lag.empty:
        wide = lag.pivot(index="slice", columns="node", values="committed").ffill().fillna(0)
        behind = (
            wide.rsub(wide.max(axis=1), axis=0)
            .reset_index()
            .melt("slice", var_name="node", value_name="behind")
        )
        behind["second"] = behind["slice"] * slice_ns / 1e9
        chart = (
            alt.Chart(behind)
            .mark_line(interpolate="step-after")
            .encode(
                x=time,
                y=alt.Y("behind:Q", title="entries behind", scale=alt.Scale(type="symlog")),
                color=alt.Color("node:N", title=None),
            )
        )
        if marks is not None:
            chart = chart + marks
        figures.append(
            Figure(
                "Replica lag",
                "How far each node's commit index is behind the furthest one.",
                _svg(chart.properties(width=WIDTH, height=160)),
            )
        )
    return figures


def role_bands(events: pd.DataFrame, seconds: float) -> pd.DataFrame:
    """Intervals (node, role, second, until, label):

    a node is down between its end (or its kill) and its next start.
    """
    import pandas as pd

    bands: list[dict[str, Any]] = []
    current: dict[str, dict[str, Any]] = {}

    def change(node: str, second: float, role: str | None, label: str = "") -> None:
        begun = current.pop(node, None)
        if begun is not None and second > begun["second"]:
            bands.append(begun | {"until": second})
        if role is not None:
            current[node] = {"node": node, "role": role, "second": second, "label": label}

    for row in events.to_dict("records"):
        if row["kind"] == "role":
            change(row["node"], row["second"], row["role"], f"{row['term']:.0f}")
        elif row["kind"] == "start":
            change(row["node"], row["second"], "follower")
        elif row["kind"] == "stop":
            change(row["node"], row["second"], "down")
        elif row["kind"] == "fault" and str(row["detail"]).startswith("kill"):
            for target in row["targets"] if row["targets"] is not None else []:
                change(target, row["second"], "down")
    for node in list(current):
        change(node, max(seconds, current[node]["second"]), None)
    frame = pd.DataFrame(bands, columns=["node", "role", "second", "until", "label"])
    return frame.astype({"second": float, "until": float})


def _timeline(culprit: Anomaly, history: History, events: pd.DataFrame) -> Figure:
    """The operations of the proof, and what went on around them on the same queue."""
    import altair as alt
    import pandas as pd
    from pyspark.sql import functions as sf

    begin = min(one["invoke_ns"] for one in culprit.proof)
    end = max(one.get("complete_ns") or one["invoke_ns"] for one in culprit.proof)
    margin = max(1, (end - begin) // 4)
    guilty = {one["op"] for one in culprit.proof}
    around = (
        history.operations.where(sf.col("key") == culprit.key.split(" ")[0])
        .where(
            (sf.col("invoke_ns") <= end + margin)
            & (sf.coalesce("complete_ns", "invoke_ns") >= begin - margin)
        )
        .orderBy(sf.when(sf.col("op").isin(*guilty), 0).otherwise(1), "invoke_ns")
        .limit(TIMELINE_OPERATIONS)
        .select(
            "op",
            "client",
            "function",
            "outcome",
            "invoke_ns",
            "complete_ns",
            "offset",
            "first_offset",
            "values",
            "next_offset",
        )
        .collect()
    )
    rows = []
    for row in around:
        operation = {name: value for name, value in row.asDict().items() if value is not None}
        rows.append(
            {
                "client": row["client"],
                "from": (max(row["invoke_ns"], begin - margin) - begin) / 1e6,
                "to": (min(row["complete_ns"] or end + margin, end + margin) - begin) / 1e6,
                "label": short_label(operation),
                "part": "proves it" if row["op"] in guilty else "others",
            }
        )
    data = pd.DataFrame(rows)
    time = alt.X("from:Q", title="milliseconds since the first operation of the proof")
    base = alt.Chart(data).encode(y=alt.Y("client:N", title=None))
    colour = alt.Color(
        "part:N", title=None, scale=alt.Scale(domain=["proves it", "others"], range=[_RED, _GREY])
    )
    chart = base.mark_bar(height=16, opacity=0.75, stroke="white").encode(
        x=time, x2="to", color=colour
    ) + base.mark_text(align="left", dx=3, fontSize=10).encode(x="from:Q", text="label:N")
    height = 24 * max(2, data["client"].nunique())
    lanes = chart.properties(width=WIDTH, height=height)
    bands = role_bands(events, float("inf")) if not events.empty else None
    if bands is not None and not bands.empty and not events.empty:
        zero = (begin - events["time_ns"].iloc[0]) / 1e9 + events["second"].iloc[0]
        window = bands.assign(
            second=((bands["second"] - zero) * 1e3).clip(-margin / 1e6, (end - begin + margin) / 1e6),
            until=((bands["until"] - zero) * 1e3).clip(-margin / 1e6, (end - begin + margin) / 1e6),
        )
        window = window[window["until"] > window["second"]]
        if not window.empty:
            roles = (
                alt.Chart(window)
                .mark_bar(height=10)
                .encode(
                    x=alt.X("second:Q", title=None),
                    x2="until",
                    y=alt.Y("node:N", title=None),
                    color=alt.Color(
                        "role:N",
                        title=None,
                        scale=alt.Scale(domain=[*_ROLE_COLOURS], range=[*_ROLE_COLOURS.values()]),
                    ),
                )
            )
            lanes = alt.vconcat(
                lanes, roles.properties(width=WIDTH, height=16 * window["node"].nunique())
            ).resolve_scale(x="shared", color="independent")
    where = "" if culprit.position is None else f" at offset {culprit.position}"
    return Figure(
        f"The smallest proof: {culprit.kind} in {culprit.key}{where}",
        "A lane for each client, a bar from invocation to completion. Red bars together are the contradiction: "
        f"{culprit.explanation}.",
        _svg(lanes),
    )


def short_label(operation: dict[str, Any]) -> str:
    """What fits on a bar: the function and the offset it is about."""
    function = operation["function"]
    if function == "append":
        return (
            f"append @{operation['first_offset']}"
            if "first_offset" in operation
            else f"append ({operation['outcome']})"
        )
    if function == "read":
        count = len(operation.get("values", ()))
        return f"read @{operation.get('offset')}: {count or 'nothing'}"
    return f"{function} = {operation.get('offset', operation['outcome'])}"
