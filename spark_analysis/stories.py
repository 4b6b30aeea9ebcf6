"""Findings in plain sentences, for a reader who has never seen the tool: who did what, when, and why it cannot be.

Pure functions of an :class:`Anomaly`. Most findings are a pair: one operation had ended before another began, and the
offsets say the opposite. The rest are about one place of a queue, or about what replicas recorded of themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from spark_analysis.verdict import REPLICA_ANOMALIES, Anomaly

Operation = dict[str, Any]

PAIRS: Final = {
    "stale-read": "By then the message was there; the answer is older than the question.",
    "stale-tail": "By then the queue was longer; the answer is older than the question.",
    "premature-read": "So it was seen before anybody had begun to append it.",
    "append-order": "What is appended later must stand behind what was there before.",
    "nonmonotonic-send": "Both are the same client's; what it appends later must stand behind what it appended before.",
    "backward-head": "The first offset that a queue keeps never goes back.",
    "poll-skip": "Messages that follow the first answer were passed over.",
    "nonmonotonic-poll": "The second answer does not follow the first one, it goes back.",
    "stale-offset": "That position had been replaced before the question was asked.",
}
"""Kinds that two operations prove, one of which had ended before the other began; and what is wrong with that."""

_NAMED_AT_ONCE: Final = 3
_NAME_MAX: Final = 22


def story(anomaly: Anomaly, first_ns: int = 0, around: Sequence[Operation] = ()) -> list[str]:
    """The finding in one to three sentences; moments count from ``first_ns``. Never empty.

    ``around``: other operations on the same key, for findings whose proof does not name its other side.
    """
    pair = contradiction(anomaly, around)
    if pair is not None:
        earlier, later = pair
        gap = duration(later["invoke_ns"] - earlier["complete_ns"])
        at = moment(earlier["complete_ns"], first_ns)
        return [
            f"{at}, {ended(earlier)}.",
            f"Then, {gap} later, {began(later)}.",
            PAIRS[anomaly.kind],
        ]
    tell = _PLACES.get(anomaly.kind)
    return [*(tell(anomaly) if tell is not None else ()), *_explained(anomaly, told=tell is not None)]


def _explained(anomaly: Anomaly, *, told: bool) -> list[str]:
    if told:
        return []
    detail = f" ({anomaly.detail})" if anomaly.detail else ""
    return [f"{place_of(anomaly)}: {anomaly.explanation}{detail}."]


def contradiction(anomaly: Anomaly, around: Sequence[Operation] = ()) -> tuple[Operation, Operation] | None:
    """The two operations of a proof about an order: the one that had ended, and the one that began afterwards."""
    if anomaly.kind == "stale-offset":
        return _replaced(anomaly, (*anomaly.proof, *around))
    if anomaly.kind not in PAIRS:
        return None
    proof = [one for one in anomaly.proof if "invoke_ns" in one]
    pairs = [(earlier, later) for earlier in proof for later in proof if _precedes(earlier, later)]
    # What decides stands first in a proof.
    return min(pairs, key=lambda pair: proof.index(pair[0]) + proof.index(pair[1]), default=None)


def _precedes(earlier: Operation, later: Operation) -> bool:
    end = earlier.get("complete_ns")
    return end is not None and end < later["invoke_ns"]


def _replaced(anomaly: Anomaly, operations: Sequence[Operation]) -> tuple[Operation, Operation] | None:
    """Of stored positions: who knew of a newer one, and who was told an older one afterwards."""
    stored = {one.get("offset"): one for one in operations if one["function"] == "commit_offset"}
    this = stored.get(anomaly.position)
    if this is None:
        return None

    def is_older(offset: int | None, than: Operation) -> bool:
        # A group that has stored nothing begins at 0, or is told that there is none.
        return _precedes(stored[offset], than) if offset in stored else offset in (None, 0)

    answers = [one for one in operations if one["function"] == "fetch_offset" and one["outcome"] == "ok"]
    known = [
        one for one in (*stored.values(), *answers) if one["outcome"] == "ok" and one.get("offset") in stored
    ]
    pairs = [
        (knew, told)
        for knew in known
        for told in answers
        if anomaly.position in (knew.get("offset"), told.get("offset"))
        and _precedes(knew, told)
        and is_older(told.get("offset"), stored[knew.get("offset")])
    ]
    return min(pairs, key=lambda pair: pair[1]["invoke_ns"] - pair[0]["complete_ns"], default=None)


def place_of(anomaly: Anomaly) -> str:
    """Where it is: of a queue the offset, of a replica the entry."""
    if anomaly.position is None or anomaly.kind == "two-leaders":
        return anomaly.key
    if anomaly.kind == "term-went-back":
        return f"{anomaly.key}, term {anomaly.position}"
    if anomaly.kind in REPLICA_ANOMALIES:
        return f"{anomaly.key}, entry {anomaly.position}"
    if anomaly.kind in ("stale-offset", "phantom-offset"):
        return f"{anomaly.key}, position {anomaly.position}"
    return f"{anomaly.key}, offset {anomaly.position}"


# ---- operations ----------------------------------------------------------------------------------------------------


def ended(operation: Operation) -> str:
    """What somebody knew when the operation had ended."""
    client = client_of(operation)
    match operation["function"]:
        case "append":
            return (
                f"{client} was told that {_messages(operation)} {_stand(operation)} at {_offsets(operation)}"
            )
        case "read" | "poll" if operation.get("values"):
            return f"{client} had been given {_offsets(operation)}"
        case "read" | "poll":
            return f"{client} had been told that nothing is at offset {operation.get('offset')}"
        case "tail":
            return f"{client} had been told that the queue ends before offset {operation.get('offset')}"
        case "head":
            return f"{client} had been told that the queue begins at offset {operation.get('offset')}"
        case "commit_offset":
            return f"{client} had been told that the group's position {operation.get('offset')} is stored"
        case "fetch_offset":
            return f"{client} had been told that the group's position is {operation.get('offset', 'unknown')}"
        case function:
            return f"{client}'s {function} had ended"


def began(operation: Operation) -> str:
    """What somebody asked then, and what came of it."""
    client = client_of(operation)
    match operation["function"]:
        case "append":
            return f"{client} began to append {_messages(operation)}, which came to {_offsets(operation)}"
        case "read" if operation.get("values"):
            return f"{client} read from offset {operation.get('offset')} on and got {_offsets(operation)}"
        case "read":
            return f"{client} asked for offset {operation.get('offset')} and was told that nothing is there"
        case "poll" if operation.get("values"):
            return f"{client} polled and got {_offsets(operation)}"
        case "tail":
            return (
                f"{client} asked where the queue ends and was told: before offset {operation.get('offset')}"
            )
        case "head":
            return f"{client} asked where the queue begins and was told: at offset {operation.get('offset')}"
        case "commit_offset":
            return f"{client} stored the group's position {operation.get('offset')}"
        case "fetch_offset":
            position = operation.get("offset", "that there is none")
            return f"{client} asked for the group's position and was told {position}"
        case function:
            return f"{client} called {function}"


def _messages(operation: Operation) -> str:
    values = operation.get("values", ())
    return f"message {name_of(values[0])}" if len(values) == 1 else f"{len(values)} messages"


def _stand(operation: Operation) -> str:
    return "stands" if len(operation.get("values", ())) == 1 else "stand"


def _offsets(operation: Operation) -> str:
    first, count = operation.get("first_offset"), len(operation.get("values", ()))
    if first is None:
        return f"{count} messages" if count else "nothing"
    if any(str(value).startswith("... ") for value in operation["values"]) or count < 2:
        return f"offset {first}" + (" and more" if count > 1 else "")
    return f"offsets {first} to {first + count - 1}"


def value_at(operation: Operation, position: int) -> str | None:
    """Which message an operation says is at ``position``; None if it does not say."""
    values, first = operation.get("values", ()), operation.get("first_offset")
    if "value" in operation:
        return str(operation["value"])
    if first is None or not 0 <= position - first < len(values):
        return None
    return str(values[position - first])


def name_of(value: object) -> str:
    """A message's name, its middle left out if it is long."""
    text = str(value)
    return text if len(text) <= _NAME_MAX else f"{text[:8]}…{text[-8:]}"


def client_of(operation: Operation) -> str:
    """Who did it."""
    return name_of(operation.get("client") or "a client")


def duration(nanoseconds: int) -> str:
    """A span of time in the unit that suits it, three digits."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size:
            count = nanoseconds / size
            return f"{count:.{0 if count >= 100 else 1 if count >= 10 else 2}f} {unit}"
    return f"{nanoseconds} ns"


def moment(at_ns: int, first_ns: int) -> str:
    """A moment of the run."""
    return f"At {(at_ns - first_ns) / 1e9:,.3f} s"


# ---- one place of a queue ------------------------------------------------------------------------------------------


def _who(operations: Iterable[Operation]) -> str:
    said = dict.fromkeys(f"{client_of(one)} ({one['function']})" for one in operations if "function" in one)
    return _joined(list(said))


def _joined(parts: Sequence[str]) -> str:
    shown = list(parts[:_NAMED_AT_ONCE])
    if len(parts) > _NAMED_AT_ONCE:
        shown.append(f"{len(parts) - _NAMED_AT_ONCE} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}" if shown else ""


def _at(anomaly: Anomaly) -> str:
    return f"offset {anomaly.position} of {anomaly.key}"


def _by_value(anomaly: Anomaly) -> dict[str, list[Operation]]:
    found: dict[str, list[Operation]] = {}
    for one in anomaly.proof:
        value = None if anomaly.position is None else value_at(one, anomaly.position)
        if value is not None:
            found.setdefault(value, []).append(one)
    return found


def _versions(anomaly: Anomaly) -> str:
    return "; ".join(f"{name_of(value)}, said {_who(by)}" for value, by in _by_value(anomaly).items())


def _duplicate_offset(anomaly: Anomaly) -> list[str]:
    appends = [one for one in anomaly.proof if one.get("function") == "append" and one.get("outcome") == "ok"]
    whose = _joined([f"{client_of(one)}'s {_messages(one)}" for one in appends]) or "several appends"
    return [
        f"{_at(anomaly).capitalize()} was given to {whose}.",
        "All of them were told that their message stands there; one place holds one message.",
    ]


def _inconsistent_offset(anomaly: Anomaly) -> list[str]:
    versions = _versions(anomaly)
    return [
        f"At {_at(anomaly)} different messages were seen{': ' + versions if versions else ''}.",
        "What stands at an offset never changes.",
    ]


def _seen(anomaly: Anomaly) -> tuple[str, str]:
    """The message concerned and who was given it."""
    versions = _by_value(anomaly)
    value = next(iter(versions), None)
    readers = [one for one in anomaly.proof if one.get("function") in ("read", "poll")]
    message = f"message {name_of(value)}" if value is not None else "a message"
    return message, _joined(list(dict.fromkeys(map(client_of, readers)))) or "a reader"


def _duplicate_value(anomaly: Anomaly) -> list[str]:
    message, _ = _seen(anomaly)
    return [
        f"{message.capitalize()} stands at {_at(anomaly)} and at another offset.",
        "Nobody tried to append it that often: the system has doubled it.",
    ]


def _lost_write(anomaly: Anomaly) -> list[str]:
    appends = [one for one in anomaly.proof if one.get("function") == "append"]
    who = client_of(appends[0]) if appends else "a client"
    return [
        f"{who} was told that its message stands at {_at(anomaly)}.",
        "Readers went beyond that place and none of them was ever given it: an acknowledged message is lost.",
    ]


def _unseen(anomaly: Anomaly) -> list[str]:
    return [
        f"A message was acknowledged at {_at(anomaly)}.",
        "All queues were read to their ends afterwards, and nobody was given it.",
    ]


def _aborted_read(anomaly: Anomaly) -> list[str]:
    message, reader = _seen(anomaly)
    return [
        f"{reader} was given {message} at {_at(anomaly)}.",
        "Its sender had been told that the append certainly failed.",
    ]


def _phantom_value(anomaly: Anomaly) -> list[str]:
    message, reader = _seen(anomaly)
    return [f"{reader} was given {message} at {_at(anomaly)}.", "No client of this recording ever sent it."]


def _unexplained_value(anomaly: Anomaly) -> list[str]:
    message, reader = _seen(anomaly)
    return [
        f"{reader} was given {message} at {_at(anomaly)}.",
        "Whoever tried to append it began too late for that, or its other attempts stand elsewhere.",
    ]


def _unexplained_offset(anomaly: Anomaly) -> list[str]:
    longer = [ended(one) for one in anomaly.proof[:1]]
    return [
        f"Something stands at {_at(anomaly)}: {longer[0] if longer else 'the queue was seen to be longer'}.",
        "Every append is accounted for elsewhere: none can have filled that place.",
    ]


def _torn_read(anomaly: Anomaly) -> list[str]:
    asked = [f"{began(one)}" for one in anomaly.proof[:1]]
    return [
        f"{asked[0] if asked else 'A read was answered'}.",
        "The answer contradicts itself: it leaves out offsets, repeats some, or ends elsewhere than it says.",
    ]


def _torn_append(anomaly: Anomaly) -> list[str]:
    return [
        f"A batch around {_at(anomaly)} was torn apart.",
        "Messages that are appended at once stand at consecutive offsets.",
    ]


def _stored(anomaly: Anomaly) -> tuple[str, str]:
    key, _, group = anomaly.key.partition(" ")
    readers = [one for one in anomaly.proof if one.get("function") == "fetch_offset"]
    who = _joined(list(dict.fromkeys(map(client_of, readers)))) or "A client"
    return who, f"the position of group {group} in {key}"


def _stale_offset(anomaly: Anomaly) -> list[str]:
    who, where = _stored(anomaly)
    if not any(one.get("function") == "fetch_offset" for one in anomaly.proof):
        return [
            f"{anomaly.position} was stored as {where}.",
            "What others were told before or afterwards fits no order of the commits.",
        ]
    return [
        f"{who} asked for {where} and was told {anomaly.position}.",
        "It had been replaced before, or was stored only afterwards: no order of the commits explains the answer.",
    ]


def _phantom_offset(anomaly: Anomaly) -> list[str]:
    who, where = _stored(anomaly)
    return [f"{who} asked for {where} and was told {anomaly.position}.", "Nobody had ever stored that."]


def _inside_poll(anomaly: Anomaly) -> list[str]:
    _, reader = _seen(anomaly)
    wrong = (
        "passes over messages"
        if anomaly.kind == "int-poll-skip"
        else "returns messages out of order, or twice"
    )
    return [f"One answer to a poll of {reader} around {_at(anomaly)} {wrong}."]


def _transactions(anomaly: Anomaly) -> list[str]:
    who = _joined(list(dict.fromkeys(map(client_of, anomaly.proof)))) or "clients"
    where = f" ({anomaly.detail})" if anomaly.detail else ""
    match anomaly.kind:
        case "precommitted-read":
            return [
                f"A transaction of {who} polled at {_at(anomaly)} what it had sent itself and not yet committed."
            ]
        case "G1c":
            return [
                f"Transactions of {who} each polled what the one before had sent, in a circle{where}.",
                "Each must have committed before the next: none can have been the first.",
            ]
        case "G1c-realtime":
            return [
                f"Transactions of {who} each polled what the one before had sent{where}.",
                "So the first committed before the last; but the last had ended before the first began.",
            ]
    wrong = (
        "stand others" if anomaly.kind == "int-send-skip" else "the order is not that in which it sent them"
    )
    return [f"Between the messages that one transaction of {who} sent around {_at(anomaly)} {wrong}."]


def _not_linearizable(anomaly: Anomaly) -> list[str]:
    place = f"On key {anomaly.key} no" if anomaly.key else "No"
    return [f"{place} order of the operations exists that the model allows; {anomaly.detail}."]


# ---- replicas ------------------------------------------------------------------------------------------------------


def numbers_in(detail: str) -> list[int]:
    """The numbers of a finding's detail, in their order."""
    return [int(found) for found in re.findall(r"-?\d+", detail)]


def number_in(detail: str) -> int | None:
    """The last one: what stood against the finding's position."""
    return next(reversed(numbers_in(detail)), None)


def _two_leaders(anomaly: Anomaly) -> list[str]:
    return [
        f"{anomaly.detail} were both leader in term {anomaly.position}.",
        "A majority elects one leader a term; two of them can acknowledge different messages for one place.",
    ]


def _term_went_back(anomaly: Anomaly) -> list[str]:
    return [
        f"{anomaly.key} had been in term {number_in(anomaly.detail)} and was in term {anomaly.position} afterwards.",
        "A node that forgets its term forgets its vote, and can help to elect two leaders.",
    ]


def _commit_went_back(anomaly: Anomaly) -> list[str]:
    return [
        f"{anomaly.key} knew entries up to {number_in(anomaly.detail)} as committed.",
        f"Then, without a restart between, it knew only those up to {anomaly.position}.",
    ]


def _committed_truncated(anomaly: Anomaly) -> list[str]:
    return [
        f"{anomaly.key} knew entries up to {number_in(anomaly.detail)} as committed.",
        f"Then it removed all from {anomaly.position} on.",
        "What is committed may have been acknowledged, and must stay.",
    ]


def _leader_incomplete(anomaly: Anomaly) -> list[str]:
    assert anomaly.position is not None
    return [
        f"{anomaly.key} became {anomaly.detail.split(';', maxsplit=1)[0]}.",
        f"Its log ended before entry {anomaly.position}.",
        f"Entries up to {number_in(anomaly.detail)} had been committed in an earlier term.",
        "A leader makes all others agree with its own log: what it lacks is lost.",
    ]


def _log_mismatch(anomaly: Anomaly) -> list[str]:
    return [
        f"{anomaly.key} hold different bytes at entry {anomaly.position}, under the same term.",
        "An index and a term name one entry.",
    ]


def _prefix_mismatch(anomaly: Anomaly) -> list[str]:
    return [
        f"{anomaly.key} have committed different bytes somewhere up to entry {anomaly.position}.",
        "The replicas are no copies of each other any more.",
    ]


_PLACES: Final[dict[str, Callable[[Anomaly], list[str]]]] = {
    "duplicate-offset": _duplicate_offset,
    "inconsistent-offset": _inconsistent_offset,
    "duplicate-value": _duplicate_value,
    "lost-write": _lost_write,
    "unseen": _unseen,
    "aborted-read": _aborted_read,
    "phantom-value": _phantom_value,
    "unexplained-value": _unexplained_value,
    "unexplained-offset": _unexplained_offset,
    "torn-read": _torn_read,
    "torn-append": _torn_append,
    "stale-offset": _stale_offset,
    "phantom-offset": _phantom_offset,
    "int-poll-skip": _inside_poll,
    "int-nonmonotonic-poll": _inside_poll,
    "int-send-skip": _transactions,
    "int-nonmonotonic-send": _transactions,
    "precommitted-read": _transactions,
    "G1c": _transactions,
    "G1c-realtime": _transactions,
    "not-linearizable": _not_linearizable,
    "two-leaders": _two_leaders,
    "term-went-back": _term_went_back,
    "commit-went-back": _commit_went_back,
    "committed-truncated": _committed_truncated,
    "leader-incomplete": _leader_incomplete,
    "log-mismatch": _log_mismatch,
    "prefix-mismatch": _prefix_mismatch,
}
