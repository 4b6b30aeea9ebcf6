"""Good transactions that poll one queue and send to the other, and ways to make a circle of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from spark_analysis.checking.queues.knowledge import Operation

Queues = dict[str, list[Operation]]
NAMES = ("x", "y")


def good_transactions(rng: random.Random, size: int) -> Queues:
    """Each commits at a moment of its own, and polls only what transactions sent that had committed before it."""
    queues: Queues = {name: [] for name in NAMES}
    logs: dict[str, list[tuple[int, str]]] = {name: [] for name in NAMES}
    for op in range(size):
        moment = 100 * op
        begin, end = moment - rng.randrange(500), moment + rng.randrange(500)
        polled, sent = rng.sample(NAMES, 2)
        role = rng.choice(["both", "both", "send", "poll", "unknown"])
        if role != "send" and logs[polled]:
            first = rng.randrange(len(logs[polled]))
            _poll(queues, polled, op, begin, end, logs[polled][first : first + 3])
        if role == "unknown":
            queues[sent].append(Operation(op, "append", "info", begin, None, values=(f"v{op}",)))
        if role in ("both", "send"):
            # Markers of transactions stand between messages: offsets have gaps.
            place = logs[sent][-1][0] + rng.randrange(1, 3) if logs[sent] else 0
            logs[sent].append((place, f"v{op}"))
            _send(queues, sent, op, begin, end, place)
    return queues


def _send(queues: Queues, queue: str, op: int, begin: int, end: int, place: int) -> None:
    sent = Operation(op, "append", "ok", begin, end, first_offset=place, values=(f"v{op}",), offsets=(place,))
    queues[queue].append(sent)


def _poll(queues: Queues, queue: str, op: int, begin: int, end: int, pairs: list[tuple[int, str]]) -> None:
    offsets, values = zip(*pairs, strict=True)
    queues[queue].append(
        Operation(op, "poll", "ok", begin, end, None, offsets[0], values, offsets, client=f"c{op}")
    )


def _sender(rng: random.Random, queues: Queues) -> tuple[str, Operation]:
    """A transaction that was acknowledged, and the queue to which it sent."""
    name = rng.choice([name for name in NAMES if queues[name]])
    return name, rng.choice([one for one in queues[name] if one.function == "append" and one.offsets])


def _other(name: str) -> str:
    return NAMES[1 - NAMES.index(name)]


def circle(rng: random.Random, queues: Queues) -> None:
    """A new transaction polls what another had sent, and that one polls what the new one sends."""
    name, one = _sender(rng, queues)
    assert one.complete_ns is not None
    op, place = 10**6, 10**6
    _poll(queues, name, op, one.invoke_ns, one.complete_ns, one.pairs())
    _send(queues, _other(name), op, one.invoke_ns, one.complete_ns, place)
    _poll(queues, _other(name), one.op, one.invoke_ns, one.complete_ns, [(place, f"v{op}")])


def circle_in_time(rng: random.Random, queues: Queues) -> None:
    """A transaction's message was polled before another one began, from which the first one polled."""
    name, one = _sender(rng, queues)
    begin = one.invoke_ns
    assert one.complete_ns is not None
    end = one.complete_ns + 1000
    for queue in NAMES:
        queues[queue] = [replace(two, complete_ns=end) if two.op == one.op else two for two in queues[queue]]
    op, place = 10**6, 10**6
    _poll(queues, name, op, begin + 1, begin + 2, one.pairs())
    _send(queues, _other(name), op + 1, begin + 3, begin + 4, place)
    _poll(queues, _other(name), one.op, begin, end, [(place, f"v{op + 1}")])


TRANSACTION_MUTATIONS: dict[Callable[[random.Random, Queues], None], str] = {
    circle: "G1c",
    circle_in_time: "G1c-realtime",
}
