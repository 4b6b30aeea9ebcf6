"""The clients that are connected."""

from broker.console.asking import InPart, Question, in_part
from broker.console.parameters import Nothing
from broker.console.seats import Seat
from broker.operations.clients import ConnectedClient, connected_clients


async def list_clients(seat: Seat, parameters: Nothing) -> InPart[list[ConnectedClient]]:
    """Return all clients, an element for each group that one is in."""
    return await in_part(seat, connected_clients)


ROUTES = (Question("/api/clients", Nothing, list_clients),)
