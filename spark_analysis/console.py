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


def describe(operation: dict[str, Any]) -> str:
    """An operation of a proof in one line."""
    if "argument" in operation:
        span = f"[{operation['invoke_ns']}, {operation['complete_ns'] or '?'}]"
        called = f"{operation['function']}({operation['argument']})"
        return f"{operation['client']} {span} {called} -> {operation['result']}"
    begin, end = operation["invoke_ns"] / 1e6, operation.get("complete_ns")
    until = f"{end / 1e6:.3f}" if end is not None else "?"
    values = " ".join(operation.get("values", ()))
    match operation["function"]:
        case "append":
            what = f"append {values} -> {operation.get('first_offset', operation['outcome'])}"
        case "read":
            what = f"read at {operation.get('offset')} -> {values or 'nothing'}"
        case "poll":
            what = f"poll -> {values or 'nothing'} from {operation.get('first_offset', '?')}"
        case function:
            what = f"{function} -> {operation.get('offset')}"
    return f"{operation.get('client', '')} [{begin:.3f}, {until}] ms {what}"
