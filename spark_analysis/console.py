"""Verdicts for a terminal: the answer first, then what speaks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from spark_analysis.verdict import EXPLANATIONS, LINEARIZABLE, VIOLATED, Anomaly, Verdict, jepsen_name

_STYLES: Final = {LINEARIZABLE: "bold green", VIOLATED: "bold red"}
SHOWN_ANOMALIES: Final = 8


def print_verdicts(verdicts: Sequence[Verdict], console: Console | None = None) -> None:
    """One block for each history; a summary table if there are several."""
    console = console or Console()
    for verdict in verdicts:
        _print_one(verdict, console)
    if len(verdicts) > 1:
        table = Table(title="Histories")
        table.add_column("history")
        table.add_column("verdict")
        table.add_column("operations", justify="right")
        table.add_column("anomalies", justify="right")
        for verdict in verdicts:
            style = _STYLES.get(verdict.verdict, "bold yellow")
            found = f"{sum(verdict.counts.values()):,}"
            table.add_row(verdict.path, f"[{style}]{verdict.verdict}[/]", f"{verdict.operations:,}", found)
        console.print(table)


def _print_one(verdict: Verdict, console: Console) -> None:
    style = _STYLES.get(verdict.verdict, "bold yellow")
    console.print(f"[{style}]{verdict.verdict.upper()}[/]  {verdict.path}", highlight=False)
    functions = verdict.facts.get("functions", {})
    if functions:
        parts = [f"{sum(outcomes.values()):,} {name}" for name, outcomes in functions.items()]
        replicas = ", ".join(verdict.facts["replica_events"]) or "none recorded"
        unknown = sum(outcomes.get("info", 0) for outcomes in functions.values())
        console.print(
            f"  {verdict.operations:,} operations ({', '.join(parts)}), {unknown:,} of unknown outcome, "
            f"{verdict.facts['queues']:,} queues, {verdict.facts['clients']:,} clients, "
            f"{verdict.facts['seconds']:.1f} s; replicas: {replicas}",
            highlight=False,
        )
    if verdict.counts:
        table = Table()
        table.add_column("anomaly")
        table.add_column("count", justify="right")
        table.add_column("meaning")
        table.add_column("Jepsen's name")
        for kind, count in verdict.counts.items():
            table.add_row(kind, f"{count:,}", EXPLANATIONS.get(kind, ""), jepsen_name(kind) or "")
        console.print(table)
        for anomaly in verdict.anomalies[:SHOWN_ANOMALIES]:
            _print_anomaly(anomaly, console)
    for kind, count in verdict.allowed.items():
        console.print(
            f"  allowed: {count:,} {kind} ({EXPLANATIONS.get(kind, kind)})", highlight=False, markup=False
        )
    for line in verdict.undecided[:SHOWN_ANOMALIES]:
        console.print(f"  undecided: {line}", highlight=False, markup=False)
    for line in verdict.damage:
        console.print(f"  not read: {line}", highlight=False, markup=False)


def _print_anomaly(anomaly: Anomaly, console: Console) -> None:
    where = "" if anomaly.position is None else f" at {anomaly.position}"
    detail = f" ({anomaly.detail})" if anomaly.detail else ""
    console.print(f"  {anomaly.kind}: {anomaly.key}{where}{detail}", highlight=False, markup=False)
    for operation in anomaly.proof:
        console.print(f"    {describe(operation)}", highlight=False, markup=False)


def describe(operation: dict[str, Any], first_ns: int = 0) -> str:
    """An operation of a proof in one line; moments are seconds after ``first_ns``, or a format's own numbers."""
    client = operation.get("client", "")
    if "argument" in operation:
        end = operation["complete_ns"]
        span = f"[{operation['invoke_ns']}, {'?' if end is None else end}]"
        return f"{span} {client}: {call_words(operation)}"
    begin, end = (operation["invoke_ns"] - first_ns) / 1e9, operation.get("complete_ns")
    until = "?" if end is None else f"{(end - first_ns) / 1e9:,.6f}"
    values = " ".join(operation.get("values", ())) or "nothing"
    answer = operation.get("first_offset", "outcome unknown" if operation["outcome"] == "info" else "refused")
    match operation["function"]:
        case "append":
            what = f"append {values} -> {answer if isinstance(answer, str) else f'offset {answer}'}"
        case "read":
            what = f"read at {operation.get('offset')} -> {values}"
        case "poll":
            what = f"poll -> {values} from {operation.get('first_offset', '?')}"
        case function:
            what = f"{function} -> {operation.get('offset', 'none')}"
    return f"[{begin:,.6f}, {until}] s {client}: {what}"


def call_words(call: dict[str, Any]) -> str:
    """A call on a model and its result; nil is an answer without a value."""
    argument, result = ("nil" if one is None else str(one) for one in (call["argument"], call["result"]))
    answer = "no answer" if call["complete_ns"] is None else result
    return f"{call['function']}({'' if call['argument'] is None else argument}) -> {answer}"
