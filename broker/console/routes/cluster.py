"""The cluster's health."""

from __future__ import annotations

from broker.console.asking import Question
from broker.console.parameters import Nothing
from broker.console.seats import Seat
from broker.console.snapshot import Snapshot


async def cluster(seat: Seat, parameters: Nothing) -> Snapshot:
    """The cluster now."""
    return await seat.live.refresh()


ROUTES = (Question("/api/cluster", Nothing, cluster),)
