"""Operations whose invocation and completion come in rows of their own, joined as these come; for whole histories
:func:`spark_analysis.importing.history.join_halves` does the same."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_analysis.importing.trace_rows import FILE_SHIFT

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class KeptHalves:
    """What :class:`Halves` knows, as plain data that can be written to disk."""

    open: dict[int, dict[str, bool | int | str | list[int | str] | None]]
    given_up: list[int]
    damaged_at: dict[str, int]


class Halves:
    """The invocations that are waiting for their completions. The rows of each file come in the order of their
    ``position``."""

    def __init__(self) -> None:
        self._open: dict[int, Row] = {}
        self._given_up: set[int] = set()
        self._damaged_at: dict[str, int] = {}

    @property
    def open(self) -> Iterable[Row]:
        """The invocations that nobody has answered yet."""
        return self._open.values()

    def kept(self) -> KeptHalves:
        """Return all that is known, as plain data."""
        return KeptHalves(
            {op: dict(row) for op, row in self._open.items()}, sorted(self._given_up), self._damaged_at
        )

    def go_on(self, kept: KeptHalves) -> None:
        """Take over what :meth:`kept` of other halves returned; nothing must have been taken yet."""
        self._open = dict(kept.open)
        self._given_up, self._damaged_at = set(kept.given_up), kept.damaged_at

    def take(self, row: Row) -> Iterator[dict[str, Any]]:
        """Take an invocation, a completion or damage; yields the operation that is known by it, and damage: this one,
        or what cannot be true."""
        if row["record"] == "damage":
            if row["kind"] != "cut":  # the file has grown behind the place where it was cut
                self._damaged_at[row["file"]] = row["position"]
            yield dict(row)
            return
        begun = self._open.pop(row["op"], None)
        if row["record"] == "invocation":
            self._open[row["op"]] = row
        if begun is None:
            return  # a completion alone says nothing: its invocation could not be read
        reason = self._complaint(begun, row)
        # What was given up is known as an operation of unknown outcome.
        if not self._was_given_up(begun) or reason is None:
            yield _joined(begun, row if reason is None else None)
        if reason is not None:
            place = {"file": row["file"], "position": row["position"]}
            yield {"record": "damage", **place, "kind": "bad", "detail": reason}

    def give_up(self, before_ns: float) -> list[dict[str, Any]]:
        """Return the operations that were invoked before ``before_ns`` and are still open, as ones of unknown outcome,
        each once. Should one complete after all, it follows with the same ``op``."""
        waited = [row for row in self._waiting() if row["invoke_ns"] < before_ns]
        self._given_up.update(map(_identity, waited))
        return [_joined(row, None) for row in waited]

    def oldest_open_ns(self) -> int | None:
        """The invocation of the first operation that is open and not given up."""
        return min((row["invoke_ns"] for row in self._waiting()), default=None)

    def _waiting(self) -> Iterator[Row]:
        return (row for row in self._open.values() if _identity(row) not in self._given_up)

    def _was_given_up(self, begun: Row) -> bool:
        """Tell whether an operation was given up, and forget that: to be called once, when it is not open any more."""
        is_given_up = _identity(begun) in self._given_up
        self._given_up.discard(_identity(begun))
        return is_given_up

    def _complaint(self, begun: Row, ended: Row) -> str | None:
        """Say why a row cannot be the completion of the invocation before it with its number."""
        number = int(begun["op"]) & (1 << FILE_SHIFT) - 1
        if ended["record"] == "invocation":
            return f"operation {number} is invoked again; what was open under this number was never answered"
        if ended["complete_ns"] is not None and ended["complete_ns"] < begun["invoke_ns"]:
            return f"operation {number} completes before its invocation"
        if ended["outcome"] == "ok" and not _answers(begun["function"], ended):
            return f"operation {number} completes with what is no answer to {begun['function']}"
        if ended["outcome"] == "ok" and (ended["key"] or begun["key"]).endswith("/"):
            return f"operation {number} completes without saying in which queue of {begun['key']}"
        if self._damaged_at.get(begun["file"], -1) > begun["position"]:
            return f"operation {number} completes, or another one with its number that could not be read"
        return None


def _answers(function: str, ended: Row) -> bool:
    """True if a completion states what this function's states: an offset, where to go on, or neither."""
    has_offset, has_next = ended["offset"] is not None, ended["next_offset"] is not None
    if has_offset != (function in ("append", "tail", "head")) and function not in ("read", "fetch_offset"):
        return False
    # A poll that returned nothing says nothing about where to go on.
    return has_next == (function == "read") or function == "poll"


def _identity(begun: Row) -> int:
    return int(begun["op"]) >> FILE_SHIFT << FILE_SHIFT | int(begun["position"])


_TOLD: Final = (
    *("outcome", "complete_ns", "offset", "first_offset", "offsets", "values", "next_offset", "end_offset"),
    "reason",
)


def _joined(begun: Row, ended: Row | None) -> dict[str, Any]:
    operation = {**begun, "record": "operation", "op": _identity(begun), "outcome": "info"}
    if ended is None:
        return operation
    operation |= {name: ended[name] for name in _TOLD} | {"key": ended["key"] or begun["key"]}
    # A read asks at an offset and is told values, an append brings values and is told the offset of the first one. An
    # assignment brings its keys as values.
    if begun["values"] is not None:
        operation["values"] = begun["values"]
    if begun["function"] == "append":
        operation |= {"first_offset": ended["offset"], "offset": None}
    elif begun["function"] == "read" or ended["offset"] is None:
        operation["offset"] = begun["offset"]
    return operation
