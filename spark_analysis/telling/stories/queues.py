"""Findings about one place of a queue, one stored consumer offset, one transaction: what was there, and who said so."""

from collections.abc import Callable, Sequence
from typing import Final

from spark_analysis.checking.register_names import queue_and_group
from spark_analysis.checking.verdict import Anomaly
from spark_analysis.telling.stories.culprits import decisive, last_stored, left_out, refused
from spark_analysis.telling.stories.words import (
    Operation,
    began,
    client_of,
    duration,
    ended,
    messages,
    moment,
    name_of,
    stand,
    value_at,
)

_NAMED_AT_ONCE: Final = 3


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


def _dispute(anomaly: Anomaly, _around: Sequence[Operation], first_ns: int) -> list[str]:
    """Tell one after the other which client was told that which message stands in one place."""
    sides = sorted(decisive(anomaly), key=lambda one: one.get("complete_ns") or one["invoke_ns"])
    if anomaly.position is None or len(sides) < 2:
        return [f"Several messages stand at {_at(anomaly)}.", "One place holds one message."]
    # In the order of time, each with the gap to the one before: which of them came too late, the reader sees himself.
    said = []
    for before, one in zip((None, *sides), sides[:_NAMED_AT_ONCE], strict=False):
        begin, end = one["invoke_ns"], one.get("complete_ns") or one["invoke_ns"]
        if before is None:
            said.append(f"{moment(end, first_ns)}, {_says(one, anomaly)}.")
        elif (gap := end - (before.get("complete_ns") or begin)) > 0:
            said.append(f"Then, {duration(gap)} later, {_says(one, anomaly)}.")
        else:
            said.append(f"At the same time {_says(one, anomaly)}.")
    is_duplicate = anomaly.kind == "duplicate-offset"
    return [
        *said,
        "One place holds one message." if is_duplicate else "What stands at an offset never changes.",
    ]


def _says(one: Operation, anomaly: Anomaly) -> str:
    """The message that an operation says is in the place of a finding."""
    assert anomaly.position is not None
    count = len(one.get("values", ()))
    message = f"message {name_of(value_at(one, anomaly.position))}{f', one of {count},' if count > 1 else ''}"
    if one.get("function") == "append":
        return f"{client_of(one)} was told that {message} stands at offset {anomaly.position}"
    return f"{client_of(one)} was given {message} at offset {anomaly.position}"


def _readers(anomaly: Anomaly) -> list[str]:
    readers = [one for one in anomaly.proof if one.get("function") in ("read", "poll")]
    return list(dict.fromkeys(map(client_of, readers))) or ["a reader"]


def _message(anomaly: Anomaly) -> str:
    value = next(iter(_by_value(anomaly)), None)
    return f"message {name_of(value)}" if value is not None else "a message"


def _given(anomaly: Anomaly) -> str:
    """Tell which client was given which message, and where."""
    readers = _readers(anomaly)
    return f"{_joined(readers)} {'were' if len(readers) > 1 else 'was'} given {_message(anomaly)} at {_at(anomaly)}."


def _duplicate_value(anomaly: Anomaly) -> list[str]:
    return [
        f"{_message(anomaly).replace('m', 'M', 1)} stands at {_at(anomaly)} and at another offset.",
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


def _aborted_read(anomaly: Anomaly, around: Sequence[Operation], _first_ns: int) -> list[str]:
    sender = "".join(f", {client_of(one)}," for one in refused(anomaly, around))
    return [_given(anomaly), f"Its sender{sender} had been told that the append certainly failed."]


def _phantom_value(anomaly: Anomaly) -> list[str]:
    return [_given(anomaly), "No client of this recording ever sent it."]


def _unexplained_value(anomaly: Anomaly) -> list[str]:
    return [
        _given(anomaly),
        "Whoever tried to append it began too late for that, or its other attempts stand elsewhere.",
    ]


def _unexplained_offset(anomaly: Anomaly) -> list[str]:
    longer = [ended(one) for one in anomaly.proof[:1]]
    return [
        f"Something stands at {_at(anomaly)}: {longer[0] if longer else 'the queue was seen to be longer'}.",
        "Every append is accounted for elsewhere: none can have filled that place.",
    ]


def _torn_read(anomaly: Anomaly, around: Sequence[Operation], _first_ns: int) -> list[str]:
    asked = [began(one) for one in anomaly.proof[:1]]
    return [
        f"{asked[0] if asked else 'A read was answered'}.",
        _torn(anomaly.proof[0] if anomaly.proof else {}),
        *(f"{client_of(one)}'s {messages(one)} {stand(one)} there." for one in left_out(anomaly, around)),
    ]


def _torn(read: Operation) -> str:
    """Say how a response contradicts itself, as far as a proof shows it."""
    asked, first = read.get("offset"), read.get("first_offset")
    if asked is not None and first is not None and first > asked:
        left_out = f"offset {asked}" if first == asked + 1 else f"offsets {asked} to {first - 1}"
        return f"The answer leaves out {left_out}, although nothing was to be left out."
    if asked is not None and first is not None and first < asked:
        return "The answer begins before the offset that was asked for."
    return (
        "The answer contradicts itself: it leaves out offsets, repeats some, or ends elsewhere than it says."
    )


def _torn_append(anomaly: Anomaly) -> list[str]:
    return [
        f"A batch around {_at(anomaly)} was torn apart.",
        "Messages that are appended at once stand at consecutive offsets.",
    ]


def _told(anomaly: Anomaly) -> str:
    """Tell who asked for a consumer group's offset and was told one."""
    key, group = queue_and_group(anomaly.key)
    readers = [one for one in anomaly.proof if one.get("function") == "fetch_offset"]
    names = list(dict.fromkeys(map(client_of, readers)))
    return (
        f"{_joined(names) or 'A client'} asked for the offset of consumer group {group} in {key} and "
        f"{'were' if len(names) > 1 else 'was'} told {anomaly.position or 0}."
    )


def _stale_offset(anomaly: Anomaly) -> list[str]:
    if not any(one.get("function") == "fetch_offset" for one in anomaly.proof):
        key, group = queue_and_group(anomaly.key)
        return [
            f"{anomaly.position or 0} was stored as the offset of consumer group {group} in {key}.",
            "What others were told before or afterwards fits no order of the commits.",
        ]
    return [
        _told(anomaly),
        "It had been replaced before, or was stored only afterwards: no order of the commits explains the answer.",
    ]


def _phantom_offset(anomaly: Anomaly, around: Sequence[Operation], _first_ns: int) -> list[str]:
    stored = last_stored(decisive(anomaly)[:1], around)
    return [
        _told(anomaly),
        "Nobody had ever stored that.",
        *(f"What {client_of(one)} had stored last was {one.get('offset')}." for one in stored),
    ]


def _inside_poll(anomaly: Anomaly) -> list[str]:
    wrong = (
        "passes over messages"
        if anomaly.kind == "int-poll-skip"
        else "returns messages out of order, or twice"
    )
    return [f"One answer to a poll of {_joined(_readers(anomaly))} around {_at(anomaly)} {wrong}."]


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


QUEUE_STORIES: Final[dict[str, Callable[[Anomaly], list[str]]]] = {
    "duplicate-value": _duplicate_value,
    "lost-write": _lost_write,
    "unseen": _unseen,
    "phantom-value": _phantom_value,
    "unexplained-value": _unexplained_value,
    "unexplained-offset": _unexplained_offset,
    "torn-append": _torn_append,
    "stale-offset": _stale_offset,
    "int-poll-skip": _inside_poll,
    "int-nonmonotonic-poll": _inside_poll,
    "int-send-skip": _transactions,
    "int-nonmonotonic-send": _transactions,
    "precommitted-read": _transactions,
    "G1c": _transactions,
    "G1c-realtime": _transactions,
    "not-linearizable": _not_linearizable,
}

DETAILED_STORIES: Final[dict[str, Callable[[Anomaly, Sequence[Operation], int], list[str]]]] = {
    "duplicate-offset": _dispute,
    "inconsistent-offset": _dispute,
    "aborted-read": _aborted_read,
    "torn-read": _torn_read,
    "phantom-offset": _phantom_offset,
}
"""Stories that look at other operations, too, or name moments counted from the first operation."""
