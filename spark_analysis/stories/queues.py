"""Findings about one place of a queue, one stored position, one transaction: what was there, and who said so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from spark_analysis.stories.culprits import decisive, last_stored, refused
from spark_analysis.stories.words import (
    Operation,
    began,
    client_of,
    ended,
    messages,
    name_of,
    stand,
    value_at,
)
from spark_analysis.verdict import Anomaly

_NAMED_AT_ONCE: Final = 3


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
    whose = _joined([f"{client_of(one)}'s {messages(one)}" for one in appends]) or "several appends"
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
        _torn(anomaly.proof[0] if anomaly.proof else {}),
    ]


def _torn(read: Operation) -> str:
    """In which way an answer contradicts itself, as far as a proof shows it."""
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
    """Who asked for a group's position and was told one."""
    key, _, group = anomaly.key.partition(" ")
    readers = [one for one in anomaly.proof if one.get("function") == "fetch_offset"]
    names = list(dict.fromkeys(map(client_of, readers)))
    return (
        f"{_joined(names) or 'A client'} asked for the position of group {group} in {key} and "
        f"{'were' if len(names) > 1 else 'was'} told {anomaly.position or 0}."
    )


def _stale_offset(anomaly: Anomaly) -> list[str]:
    if not any(one.get("function") == "fetch_offset" for one in anomaly.proof):
        key, _, group = anomaly.key.partition(" ")
        return [
            f"{anomaly.position or 0} was stored as the position of group {group} in {key}.",
            "What others were told before or afterwards fits no order of the commits.",
        ]
    return [
        _told(anomaly),
        "It had been replaced before, or was stored only afterwards: no order of the commits explains the answer.",
    ]


def _phantom_offset(anomaly: Anomaly) -> list[str]:
    return [_told(anomaly), "Nobody had ever stored that."]


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


QUEUE_STORIES: Final[dict[str, Callable[[Anomaly], list[str]]]] = {
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
}


def more_of(anomaly: Anomaly, around: Sequence[Operation]) -> list[str]:
    """What operations beside the proof add to a story; nothing where they do not matter."""
    match anomaly.kind:
        case "aborted-read":
            return [f"That was {client_of(one)}." for one in refused(anomaly, around)]
        case "phantom-offset":
            told = decisive(anomaly)[:1]
            return [
                f"What {client_of(one)} had stored last was {one.get('offset')}."
                for one in last_stored(told, around)
            ]
        case "torn-read":
            read = anomaly.proof[0] if anomaly.proof else {}
            asked, first = read.get("offset"), read.get("first_offset")
            if asked is None or first is None or first <= asked:
                return []
            appends = [
                one for one in around if one["function"] == "append" and value_at(one, asked) is not None
            ]
            return [f"{client_of(one)}'s {messages(one)} {stand(one)} there." for one in appends[:1]]
    return []
