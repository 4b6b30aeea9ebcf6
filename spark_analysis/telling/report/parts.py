"""Rows of a history as parts of the report's drawings and lists: bars, bands, marks, sentences. Pure functions."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from spark_analysis.telling.console import call_words
from spark_analysis.telling.report.lanes import Band, Mark
from spark_analysis.telling.report.tables import TracedEvent
from spark_analysis.telling.report.timeline import Bar

FAULTS_MAX: Final = 400
ENDS_PROCESSES: Final = frozenset({"kill", "kill all", "power", "power of all", "new disk"})
"""Faults after which their targets run no more, until they start."""
ROLE_WORDS: Final = {"candidate": "asks for votes", "precandidate": "asks for votes"}
_CALL_MAX: Final = 40


def role_bands(events: Iterable[TracedEvent], until_s: float, first_ns: int) -> list[Band]:
    """The roles of each node over time, in seconds after ``first_ns``. A node is down between its end (or its kill) and
    its next start. A fault may name it as its group does, without the group."""
    bands: list[Band] = []
    current: dict[str, tuple[float, str, str]] = {}
    groups: dict[str, str] = {}

    def change(node: str, second: float, role: str | None, label: str = "") -> None:
        begun = current.pop(node, None)
        if begun is not None and second > begun[0]:
            bands.append(Band(node, begun[1], begun[0], second, begun[2], groups[node]))
        if role is not None:
            current[node] = (second, role, label)

    for event in events:
        second = (event.time_ns - first_ns) / 1e9
        groups.setdefault(event.node, event.group or "")
        if event.kind == "role":
            assert event.role is not None
            label = f"term {event.term}" if event.role == "leader" else ""
            # A follower of another leader, or in another term, is a follower still.
            if current.get(event.node, (0.0, "", ""))[1:] != (event.role, label):
                change(event.node, second, event.role, label)
        elif event.kind == "start":
            change(event.node, second, "follower")
        elif event.kind == "stop":
            change(event.node, second, "down")
        elif event.kind == "fault" and (event.detail or "").partition(":")[0] in ENDS_PROCESSES:
            for node in list(current):
                if not {"group", node, node.removeprefix(f"{groups[node]}/")}.isdisjoint(event.targets):
                    change(node, second, "down")
    for node, (begun, _, _) in sorted(current.items()):
        change(node, max(until_s, begun), None)
    return bands


def fault_marks(events: Iterable[TracedEvent], first_ns: int) -> list[Mark]:
    """The faults in order, numbered from 1, in seconds after ``first_ns``; the first `FAULTS_MAX`."""
    faults = [event for event in events if event.kind == "fault"][:FAULTS_MAX]
    return [
        Mark((fault.time_ns - first_ns) / 1e9, number, fault_words(fault))
        for number, fault in enumerate(faults, 1)
    ]


def fault_words(fault: TracedEvent) -> str:
    """A fault and its targets in words, such as "kill n0" or "slow disk n1 (25 ms a flush)"."""
    name, _, more = (fault.detail or "fault").partition(": ")
    return f"{name} {' '.join(fault.targets)}".rstrip() + (f" ({more})" if more else "")


# ---- operations ----------------------------------------------------------------------------------------------------


def bar_of(
    operation: dict[str, Any], is_proof: bool, scale: Callable[[float], float], low_ns: int, high_ns: int
) -> Bar:
    """An operation's bar, cut at the drawing's borders."""
    end = operation.get("complete_ns")
    return Bar(
        operation.get("client") or "?",
        scale(max(operation["invoke_ns"], low_ns)),
        None if end is None else scale(min(end, high_ns)),
        short_label(operation),
        is_proof,
        _tooltip(operation),
    )


def bar_of_event(event: TracedEvent, scale: Callable[[float], float]) -> Bar:
    """A replica's event: a mark without length."""
    at = scale(event.time_ns)
    return Bar(event.node, at, at, _event_label(event), True, sentence(event, 0))


def bar_of_call(call: dict[str, Any], is_proof: bool) -> Bar:
    """An operation on a model, of a history judged by search."""
    end, label = call["complete_ns"], call_words(call)
    short = label if len(label) <= _CALL_MAX else f"{label[: _CALL_MAX - 1]}…"
    return Bar(str(call["client"]), call["invoke_ns"], end, short, is_proof, label)


def short_label(operation: dict[str, Any]) -> str:
    """The label of a bar: the function and its offset."""
    function, first = operation["function"], operation.get("first_offset")
    count = len(operation.get("values", ()))
    if function == "append":
        if first is None:
            return "append, outcome unknown" if operation["outcome"] == "info" else "append refused"
        return f"append @{first}" if count < 2 else f"append @{first}-{first + count - 1}"
    if function in ("read", "poll"):
        asked = operation.get("offset", first)
        answer = "nothing" if not count else f"{count} message{'s' if count > 1 else ''}"
        if count and first != asked:
            answer += f" from {first} on"
        if operation["outcome"] != "ok":
            answer = "no answer"
        return f"{function} @{asked}: {answer}" if asked is not None else f"{function}: {answer}"
    return f"{function} = {operation.get('offset', 'none' if operation['outcome'] == 'ok' else 'unknown')}"


def _tooltip(operation: dict[str, Any]) -> str:
    end, values = operation.get("complete_ns"), list(operation.get("values", ()))
    took = "no answer" if end is None else f"took {(end - operation['invoke_ns']) / 1e6:.3f} ms"
    named = ", ".join(str(value) for value in values[:3])
    more = f", {len(values) - 3} more" if values[3:] else ""
    identity = f" ({operation['identity']})" if "identity" in operation else ""
    return f"{operation.get('client')}{identity}: {short_label(operation)}; {took}; {named}{more}".rstrip(
        "; "
    )


# ---- what replicas recorded ----------------------------------------------------------------------------------------


def _event_label(event: TracedEvent) -> str:
    match event.kind:
        case "role":
            return f"{event.role}, term {event.term}"
        case "start":
            return f"started in term {event.term}"
        case "commit":
            return f"commit index {event.last_index}"
        case "truncate":
            return f"removed from {(event.last_index or 0) + 1} on"
        case "append":
            return f"entries {event.first_index}-{event.last_index}, digest {_hex(event.digest)}"
        case _:
            return f"digest {_hex(event.digest)} up to {event.last_index}"


def sentence(event: TracedEvent, first_ns: int) -> str:
    """An event in one line."""
    at = f"{(event.time_ns - first_ns) / 1e9:,.6f} s  {event.node}"
    log = (
        "its log empty" if event.last_index in (None, -1) else f"its log ending with entry {event.last_index}"
    )
    match event.kind:
        case "role":
            return f"{at} became {event.role} in term {event.term}, {log}"
        case "start":
            return f"{at} started in term {event.term}, {log}"
        case "commit":
            return f"{at} knew entries up to {event.last_index} as committed"
        case "truncate":
            return f"{at} removed everything after entry {event.last_index}"
        case "append":
            return (
                f"{at} appended entries {event.first_index} to {event.last_index} of term {event.term}, "
                f"CRC-32 {_hex(event.digest)}"
            )
        case _:
            return f"{at} stated CRC-32 {_hex(event.digest)} for entries up to {event.last_index}"


def _hex(digest: int | None) -> str:
    return "none" if digest is None else f"{digest:08x}"
