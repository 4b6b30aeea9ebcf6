"""Histories that are linearizable by construction, as traces: for trying the checker, and for measuring it.

A model of the system runs the operations one by one in the order in which they take effect; every operation then gets
an interval around its effect, so that many overlap. Unknown outcomes may have taken effect or not.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from broker.trace import TraceHeader, TraceWriter


@dataclass(frozen=True, slots=True)
class Workload:
    """``operations`` over ``queues``, of which about ``unknown`` appends get no answer.

    Of the operations, about half are appends of one value, four in ten reads, the rest tails, commits and fetches.
    """

    operations: int
    queues: int = 1
    unknown: int = 0
    clients: int = 16
    seed: int = 0
    read_batch: int = 4
    topic: str = "generated"


def write_good_history(workload: Workload, write: Callable[[bytes], object]) -> None:
    """Write a linearizable history as one client trace."""
    rng = random.Random(workload.seed)
    header = TraceHeader(
        "client",
        "generator",
        f"generated-{workload.seed}",
        1_700_000_000_000_000_000,
        0,
        (("seed", str(workload.seed)),),
    )
    writer = TraceWriter(write, header)
    keys = [f"{workload.topic}/{queue}" for queue in range(workload.queues)]
    clients = [f"client-{number}" for number in range(workload.clients)]
    logs: list[list[str]] = [[] for _ in keys]
    positions = [0] * len(keys)
    committed: list[int | None] = [None] * len(keys)
    unknown_share = workload.unknown / max(1, workload.operations)
    # Completions wait here until time has passed them: (complete_ns, order, function) in a heap would be O(log n);
    # a ring of buckets is not needed at this size, so records are simply not sorted by time.
    time_ns = 1_000_000
    for number in range(workload.operations):
        time_ns += rng.randrange(1, 2_000)
        begin, end = time_ns - rng.randrange(0, 20_000), time_ns + rng.randrange(0, 20_000)
        client = clients[rng.randrange(len(clients))]
        index = rng.randrange(len(keys))
        key, log = keys[index], logs[index]
        choice = rng.random()
        if choice < 0.5:
            value = f"{number:016X}"
            operation = writer.invoke_append(begin, client, key, (value,))
            if rng.random() < unknown_share * 2:
                if rng.random() < 0.5:
                    log.append(value)
                writer.info(end, operation, "timeout")
            elif rng.random() < 0.001:
                writer.fail(end, operation, "refused")
            else:
                writer.ok_append(end, operation, len(log))
                log.append(value)
        elif choice < 0.9:
            offset = positions[index]
            values = log[offset : offset + workload.read_batch]
            operation = writer.invoke_read(begin, client, key, offset)
            writer.ok_read(end, operation, offset + len(values), offset, values)
            positions[index] = offset + len(values)
        elif choice < 0.96:
            operation = writer.invoke_tail(begin, client, key)
            writer.ok_tail(end, operation, len(log))
        elif choice < 0.98 and committed[index] != positions[index] and positions[index]:
            operation = writer.invoke_commit_offset(begin, client, key, "group", positions[index])
            committed[index] = positions[index]
            writer.ok_commit_offset(end, operation)
        else:
            operation = writer.invoke_fetch_offset(begin, client, key, "group")
            writer.ok_fetch_offset(end, operation, committed[index])
    writer.flush()
