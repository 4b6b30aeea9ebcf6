"""Mistakes about the places for connections, each put into the real code by a patch; `planted_bugs` lists them."""

from __future__ import annotations

import pytest

from broker.requests.connection import Connection
from broker.requests.connection_places import ConnectionPlaces
from broker.requests.crowd import Crowd
from tests.simulation.planting import planted


@planted("places: kept when a connection ends", "a counter of what is open that only rises", actor="stranger")
def kept_when_a_connection_ends(patch: pytest.MonkeyPatch) -> None:
    """Given back only by a connection that has asked for nothing, which the next one takes it from, too."""
    original = ConnectionPlaces.free

    def free(self: ConnectionPlaces, connection: Connection) -> None:
        if self._crowds.get(connection) is not None:
            original(self, connection)

    patch.setattr(ConnectionPlaces, "free", free)


@planted(
    "places: the oldest of all goes", "nginx: the connections that were used least recently", actor="stranger"
)
def the_oldest_of_all_goes(patch: pytest.MonkeyPatch) -> None:
    """Whoever comes in numbers has everybody sent away who is slower than he is."""

    def first_to_go(self: Crowd[Connection]) -> Connection:
        return next(iter(self._by_share[next(iter(self._by_share))]))

    patch.setattr(Crowd, "first_to_go", first_to_go)
