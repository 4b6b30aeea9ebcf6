"""Checks that a client has asked for each offset that a consumer group has stored, once for each request.

The log says what was stored, and when; this module asks why. A request stores its offset at one moment between
question and answer, or at any later one if its outcome is unknown to the client, or never, if another offset took its
place at once. So each change of the stored offset needs a request of its own: of that value, not answered before.
A broker that does one request twice, or on its own account, takes back what was stored in between, and neither log nor
answers show it: what they say is true.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

NEVER: Final = 1 << 62


@dataclass(slots=True)
class OffsetRequest:
    """A request to store an offset. Answered at `until_ns`; `NEVER` while it is not, or the outcome is unknown."""

    offset: int
    since_ns: int
    until_ns: int = NEVER


def first_unasked(
    history: Sequence[tuple[int, int | None]], begin: int, requests: Iterable[OffsetRequest]
) -> tuple[int, int] | None:
    """Returns the first (time, offset) among the changes of a history from `begin` on that no request accounts for.

    `history` holds all offsets in the order of the log, None for none; `requests` all that were made until now, those
    that certainly failed left out. Which request accounts for which change is open where several could: with those of
    one value taken by their ends, the earliest first, there is an assignment if there is any.
    """
    # Only values that are newly stored can be unasked: all others were accounted for before.
    new = {value for _, value in history[begin:] if value is not None}
    asked: dict[int, list[tuple[int, int]]] = {value: [] for value in new}
    for request in requests:
        if request.offset in new:
            asked[request.offset].append((request.since_ns, request.until_ns))
    for spans in asked.values():
        spans.sort(reverse=True)  # the earliest is taken off the end
    waiting: dict[int, list[int]] = {value: [] for value in new}
    before = None
    for at, (time_ns, value) in enumerate(history):
        changed, before = value != before, value
        if not changed or value is None or value not in new:
            continue
        spans, ends = asked[value], waiting[value]
        # Requests that had left by then may account for this change, unless they were answered before it.
        while spans and spans[-1][0] <= time_ns:
            heappush(ends, spans.pop()[1])
        while ends and ends[0] < time_ns:
            heappop(ends)
        if ends:
            heappop(ends)  # the one that must be used up first
        elif at >= begin:
            return time_ns, value
    return None
