"""Rows of schema.OPERATIONS from two JSON lines, the invocation and the completion of an operation of the log model.

An operation is one row, with two exceptions. A poll has a row for each queue that it returned messages of. An operation
that lists *micro-operations*, as Jepsen's Kafka workload does for transactions, has one row for each queue that it sent
to and one for each that it polled; all rows of an operation have its ``op``. The messages that it sent stand at offsets
of their own (other clients' messages may stand between), so these rows state ``offsets``, even for one value.

The messages that a transaction polled are a fact whether or not it committed. If it did not, its consumer goes back:
that is a read, which proves what it returned, and no poll, which would say where the consumer stands.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from spark_analysis.importing import schema
from spark_analysis.importing.arrow import Row
from spark_analysis.importing.lines import LARGEST, BadLine, Line

Pairs = list[tuple[int, str]]

MICRO_OPERATIONS: Final = ("txn", "send", "poll")
ASSIGNMENTS: Final = ("assign", "subscribe", "seek")


def log_rows(number: int, begun: Line, ended: Line | None) -> Iterator[Row | BadLine]:
    """The rows of one operation; ``ended`` is None if nobody ever answered it.

    An operation whose invocation cannot be understood is left out; one whose completion cannot is of unknown outcome.
    """
    told = None if ended is None else ended.value
    what = f"{begun.function} with {begun.value!r:.60} -> {told!r:.60}"
    try:
        rows = _rows(number, begun, ended)
    except _NOT_UNDERSTOOD as error:
        bad = BadLine(begun.number, f"{what}: {error}")
        try:
            rows = _rows(number, begun, None) if ended is not None else []
        except _NOT_UNDERSTOOD:
            rows = []
        if rows and ended is not None:
            bad = replace(bad, number=ended.number, completes=True)
        yield bad
    yield from rows


_NOT_UNDERSTOOD: Final = (KeyError, TypeError, ValueError, IndexError)


def _rows(number: int, begun: Line, ended: Line | None) -> list[Row]:
    outcome = "info" if ended is None else ended.kind
    row: dict[str, Any] = dict.fromkeys(schema.OPERATION_NAMES)
    row |= {"op": number, "client": begun.process, "function": begun.function, "outcome": outcome}
    row |= {"key": (ended.key if ended is not None else "") or begun.key}
    row |= {"group": begun.group, "invoke_ns": begun.time_ns, "filtered": False}
    row["complete_ns"] = ended.time_ns if ended is not None and outcome != "info" else None
    told = ended.value if ended is not None else None
    if _has_micro_operations(begun, told):
        return [*_micro_rows(row, begun.value, ended)]
    if begun.function == "poll":
        return [*_poll_rows(row, told if outcome == "ok" else None)]
    if begun.function not in _FILLERS:
        known = ", ".join((*_FILLERS, *MICRO_OPERATIONS))
        raise ValueError(f"no such function; the log model has {known}")
    if not row["key"] and begun.function not in ASSIGNMENTS:
        raise ValueError("no key")
    if row["key"].endswith("/") and begun.function not in ASSIGNMENTS:
        if begun.function != "append":
            raise ValueError(f"{row['key']} names no queue")
        if outcome == "ok":
            raise ValueError(f"the completion does not say in which queue of {row['key']}")
    _FILLERS[begun.function](row, begun.value, told if outcome == "ok" else None, outcome == "ok")
    return [tuple(row.values())]


def _text(value: Any) -> str:
    """A message's value; of what is no text, its JSON, with one form for ``1`` and ``1.0``."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _integer(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError(f"{value!r:.40} is no offset")
    return value


def _pairs(told: Any) -> Pairs:
    if not isinstance(told, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in told):
        raise ValueError("what was returned is no list of [offset, text]")
    return [(_integer(offset), _text(value)) for offset, value in told]


def _fill_append(row: dict[str, Any], asked: Any, told: Any, is_ok: bool) -> None:
    if asked is None or asked == []:
        raise ValueError("nothing is appended")
    row["values"] = [_text(value) for value in (asked if isinstance(asked, list) else [asked])]
    if is_ok:
        row["first_offset"] = _integer(told)


def _fill_read(row: dict[str, Any], asked: Any, told: Any, is_ok: bool) -> None:
    row["offset"] = _integer(asked)
    if is_ok:
        _fill_seen(row, _pairs(told))
        row["next_offset"] = asked if row["first_offset"] is None else row["next_offset"]


def _fill_seen(row: dict[str, Any], pairs: Pairs) -> None:
    offsets = [offset for offset, _ in pairs]
    row["values"] = [value for _, value in pairs]
    row["first_offset"] = offsets[0] if offsets else None
    row["next_offset"] = offsets[-1] + 1 if offsets else None
    if any(offset != offsets[0] + index for index, offset in enumerate(offsets)):
        row["offsets"] = offsets


def _fill_assignment(row: dict[str, Any], asked: Any, _told: Any, _is_ok: bool) -> None:
    if not isinstance(asked, list):
        raise TypeError("the value is not a list of keys")
    row["key"] = ""
    row["values"] = [str(key) for key in asked]


def _fill_statement(row: dict[str, Any], _asked: Any, told: Any, is_ok: bool) -> None:
    row["offset"] = _integer(told) if is_ok else None


def _fill_commit(row: dict[str, Any], asked: Any, _told: Any, _is_ok: bool) -> None:
    row["offset"] = _integer(asked)
    row["group"] = row["group"] or ""


def _fill_fetch(row: dict[str, Any], _asked: Any, told: Any, is_ok: bool) -> None:
    row["offset"] = _integer(told) if is_ok and told is not None else None
    row["group"] = row["group"] or ""


_FILLERS: Final[dict[str, Callable[[dict[str, Any], Any, Any, bool], None]]] = {
    "append": _fill_append,
    "read": _fill_read,
    "assign": _fill_assignment,
    "subscribe": _fill_assignment,
    "seek": _fill_assignment,
    "tail": _fill_statement,
    "head": _fill_statement,
    "commit_offset": _fill_commit,
    "fetch_offset": _fill_fetch,
}


def _poll_rows(row: dict[str, Any], told: Any) -> Iterator[Row]:
    """``told``: messages by queue, or those of the operation's own key."""
    for key, pairs in (told if isinstance(told, dict) else {row["key"]: told or []}).items():
        one = row | {"key": str(key)}
        if row["outcome"] == "ok":
            _fill_seen(one, _pairs(pairs))
        yield tuple(one.values())


def _has_micro_operations(begun: Line, told: Any) -> bool:
    if begun.function in ("txn", "send"):
        return True
    return begun.function == "poll" and any(
        isinstance(value, list) and any(isinstance(one, list) and one[:1] == ["poll"] for one in value)
        for value in (begun.value, told)
    )


def _micro_rows(row: dict[str, Any], asked: Any, ended: Line | None) -> Iterator[Row]:
    """``asked`` and the value of ``ended``: lists of ["send", key, value or [offset or null, value]] and of ["poll"] or
    ["poll", {key: [[offset, value], ...]}]."""
    # A completion lists offsets and messages. Where the operation may have failed and its completion lists nothing
    # that fits, the invocation says what was attempted.
    told = ended.value if ended is not None and isinstance(ended.value, list) else asked
    listed = asked if row["outcome"] != "ok" and not _fits(told, asked) else told
    if not _fits(listed, asked):
        raise ValueError("the completion lists other micro-operations than the invocation")
    sent: dict[str, list[tuple[int | None, str]]] = {}
    polled: dict[str, Pairs] = {}
    for place, micro in enumerate(listed):
        match micro:
            case ["send", key, [offset, value]]:
                sent.setdefault(str(key), []).append(
                    (None if offset is None else _integer(offset), _text(value))
                )
            case ["send", key, value] if not isinstance(value, list):
                sent.setdefault(str(key), []).append((None, _text(value)))
            case ["poll"] | ["poll", None]:
                pass
            case ["poll", dict(queues)]:
                for key, pairs in queues.items():
                    polled.setdefault(str(key), []).extend(_pairs(pairs))
            case _:
                raise ValueError(f"micro-operation {place}, {micro!r:.60}, is no send to a key and no poll")
    if any(key.endswith("/") for key in (*sent, *polled)):
        raise ValueError("a micro-operation names no queue: its key ends with a slash")
    for key, pairs in sent.items():
        yield from _send_rows(row | {"key": key, "function": "append"}, pairs)
    rebalanced = {str(key) for key in ended.rebalanced} if ended is not None else set()
    for key, messages in polled.items():
        # A poll tells where its consumer stands only if it committed and the queue stayed with the consumer.
        if row["outcome"] == "ok" and key not in rebalanced:
            one = row | {"key": key, "function": "poll"}
            _fill_seen(one, messages)
            yield tuple(one.values())
        elif ended is not None:
            yield from _evidence(row | {"key": key, "function": "read", "filtered": True}, messages, ended)
    # A poll that returned nothing is an operation all the same, and is counted.
    if not sent and not polled:
        yield tuple((row | {"function": "poll"}).values())


def _fits(told: Any, asked: Any) -> bool:
    """True if a completion lists the micro-operations of its invocation."""
    if not isinstance(asked, list) or not isinstance(told, list) or len(asked) != len(told):
        return False
    return all(
        isinstance(one, list) and isinstance(other, list) and one[:1] == other[:1]
        for one, other in zip(asked, told, strict=True)
    )


def _send_rows(row: dict[str, Any], sent: list[tuple[int | None, str]]) -> Iterator[Row]:
    """One row for messages that are known to stand somewhere, and one for each that may stand anywhere, or nowhere."""
    placed = [pair for pair in sent if pair[0] is not None and row["outcome"] == "ok"]
    if placed:
        offsets = [offset for offset, _ in placed]
        values = [value for _, value in placed]
        yield tuple((row | {"values": values, "offsets": offsets, "first_offset": offsets[0]}).values())
    outcome = "fail" if row["outcome"] == "fail" else "info"
    complete_ns = row["complete_ns"] if outcome == "fail" else None
    for pair in sent:
        if pair not in placed:
            yield tuple(
                (row | {"values": [pair[1]], "outcome": outcome, "complete_ns": complete_ns}).values()
            )


def _evidence(row: dict[str, Any], messages: Pairs, ended: Line) -> Iterator[Row]:
    """The messages that a consumer got while it was moved, or in a transaction that did not commit, as reads of
    ascending runs."""
    run: Pairs = []
    for offset, value in [*messages, (-1, "")]:
        if run and offset <= run[-1][0]:
            one = row | {"outcome": "ok", "complete_ns": ended.time_ns, "offset": run[0][0]}
            _fill_seen(one, run)
            yield tuple(one.values())
            run = []
        run.append((offset, value))
