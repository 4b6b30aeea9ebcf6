"""Verdicts for a terminal: the answer first, then its reasons, with an example of each kind of finding in words.

Where the output is no terminal (a log, a pipe), no line is broken, however long.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from spark_analysis.checking.verdict import (
    EXPLANATIONS,
    LINEARIZABLE,
    VIOLATED,
    Anomaly,
    Verdict,
    jepsen_name,
)
from spark_analysis.telling.stories import operations_told, place_of, story
from spark_analysis.telling.stories.words import Operation, duration, name_of, visible

_STYLES: Final = {LINEARIZABLE: "bold green", VIOLATED: "bold red"}
_UNDECIDED_STYLE: Final = "bold yellow"
EXAMPLES_SHOWN: Final = 12
LINES_SHOWN: Final = 8
UNBROKEN: Final = 1 << 20
"""Columns of an output that has none: so its lines can be searched."""


def console_for_output() -> Console:
    """Standard output, as wide as the terminal; of what is none no line is broken."""
    console = Console()
    if not console.is_terminal:
        console.width = UNBROKEN
    return console


def print_verdicts(
    verdicts: Sequence[Verdict],
    console: Console | None = None,
    around: Sequence[Mapping[int, Sequence[Operation]]] = (),
) -> None:
    """One block for each history; a summary table if there are several.

    ``around``: of each history the operations next to some of its anomalies, by their places: they are the examples.
    """
    console = console or console_for_output()
    for number, verdict in enumerate(verdicts):
        if number:
            console.print()
        _print_one(verdict, around[number] if around else {}, console)
    # Last, where it is still seen when all has scrolled by.
    if len(verdicts) > 1:
        table = Table(title="Histories", title_justify="left", box=box.SIMPLE_HEAD)
        table.add_column("history", overflow="fold")
        table.add_column("verdict", min_width=len(LINEARIZABLE))
        table.add_column("operations", justify="right", min_width=10)
        table.add_column("anomalies", justify="right", min_width=9)
        for verdict in verdicts:
            style = _STYLES.get(verdict.verdict, _UNDECIDED_STYLE)
            found = f"{sum(verdict.counts.values()):,}"
            table.add_row(
                escape(visible(verdict.path)),
                f"[{style}]{verdict.verdict}[/]",
                f"{verdict.named_operations:,}",
                found,
            )
        console.print()
        console.print(table)


def _print_one(verdict: Verdict, around: Mapping[int, Sequence[Operation]], console: Console) -> None:
    style = _STYLES.get(verdict.verdict, _UNDECIDED_STYLE)
    console.print(f"[{style}]{verdict.verdict.upper()}[/]  {escape(visible(verdict.path))}", highlight=False)
    functions = verdict.by_name
    if functions:  # a log's; a history of keys has none of these facts
        parts = ", ".join(f"{sum(outcomes.values()):,} {name}" for name, outcomes in functions.items())
        unknown = sum(outcomes.get("info", 0) for outcomes in functions.values())
        span = duration(round(verdict.facts["seconds"] * 1e9))
        _say(
            f"{_count(verdict.named_operations, 'operation')} in {span}: {parts}; "
            f"{unknown:,} of unknown outcome; {_count(verdict.facts['queues'], 'queue')}, "
            f"{_count(verdict.facts['clients'], 'client')}",
            console,
        )
        _say(f"replicas: {', '.join(verdict.facts['replica_events']) or 'none recorded'}", console)
    elif "keys" in verdict.facts:
        facts = verdict.facts
        _say(
            f"{_count(verdict.operations, 'operation')} ({facts['answered']:,} answered) on "
            f"{_count(facts['keys'], 'key')}, judged by the model {facts['model']}",
            console,
        )
    if verdict.counts:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("anomaly", no_wrap=True)
        table.add_column("count", justify="right")
        table.add_column("meaning")
        for kind, count in verdict.counts.items():
            name = jepsen_name(kind)
            known_as = f" (Jepsen: {name})" if name is not None and name != kind else ""
            table.add_row(kind, f"{count:,}", f"{EXPLANATIONS.get(kind, '')}{known_as}")
        console.print(Padding(table, (0, 0, 0, 2), expand=False))
        examples = {
            one.kind: (one, around.get(place, ())) for place, one in _least_telling_first(verdict, around)
        }
        for kind in list(verdict.counts)[:EXAMPLES_SHOWN]:
            if kind in examples:
                _print_example(*examples[kind], verdict.facts.get("first_ns") or 0, console)
    for kind, count in verdict.allowed.items():
        _say(f"allowed: {count:,} {kind} ({EXPLANATIONS.get(kind, kind)})", console)
    _say_some("undecided", verdict.undecided, len(verdict.undecided), console)
    for why in verdict.missing:
        _say(f"missing: {why}", console)
    for said in verdict.reservations if verdict.operations else ():
        _say(said, console)
    _say_some("not read", verdict.damage, verdict.facts.get("bad_lines", len(verdict.damage)), console)


def _least_telling_first(
    verdict: Verdict, around: Mapping[int, Sequence[Operation]]
) -> list[tuple[int, Anomaly]]:
    """Last come those with operations around them, and of these the first one."""
    return sorted(enumerate(verdict.anomalies), key=lambda entry: (entry[0] in around, -entry[0]))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _print_example(anomaly: Anomaly, around: Sequence[Operation], first_ns: int, console: Console) -> None:
    place = place_of(anomaly)
    _say(f"{anomaly.kind}, for example{f' in {place}' if place else ''}:", console)
    _say(" ".join(story(anomaly, first_ns, around)), console, 4)
    for operation in operations_told(anomaly, around):
        _say(describe(operation, first_ns, is_short=True), console, 6)


def _say_some(what: str, lines: Sequence[str], count: int, console: Console) -> None:
    """The first of ``count`` lines."""
    for line in lines[:LINES_SHOWN]:
        _say(f"{what}: {line}", console)
    if count > LINES_SHOWN:
        _say(f"{what}: and {count - LINES_SHOWN:,} more", console)


def _say(text: str, console: Console, indent: int = 2) -> None:
    console.print(Padding(escape(visible(text)), (0, 0, 0, indent), expand=False), highlight=False)


def describe(operation: dict[str, Any], first_ns: int = 0, *, is_short: bool = False) -> str:
    """An operation of a proof in one line; moments are seconds after ``first_ns``, or a format's own numbers.

    ``is_short``: long names of messages and clients are shown without their middles.
    """
    client = operation.get("client", "")
    if "argument" in operation:
        end = operation["complete_ns"]
        span = f"[{operation['invoke_ns']}, {'?' if end is None else end}]"
        return f"{span} {client}: {call_words(operation)}"
    begin, end = (operation["invoke_ns"] - first_ns) / 1e9, operation.get("complete_ns")
    until = "?" if end is None else f"{(end - first_ns) / 1e9:,.6f}"
    named = name_of if is_short else str
    values = " ".join(map(named, operation.get("values", ()))) or "nothing"
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
    return f"[{begin:,.6f}, {until}] s {named(client)}: {what}"


def call_words(call: dict[str, Any]) -> str:
    """A call on a model and its result; nil is an answer without a value."""
    argument, result = ("nil" if one is None else str(one) for one in (call["argument"], call["result"]))
    answer = "no answer" if call["complete_ns"] is None else result
    return f"{call['function']}({'' if call['argument'] is None else argument}) -> {answer}"
