"""Settings in force and where each is from; the few that change while a node runs."""

from typing import Annotated

import msgspec

from broker.console.asking import InPart, Order, Question
from broker.console.parameters import BrokerName, Nothing, Parameters
from broker.console.seats import Seat
from broker.operations.asking import Missing
from broker.operations.settings import NodeSettings, change_settings, settings_in_force


class Changed(Parameters, frozen=True):
    """A setting's new value, at one node or at all."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"\A[\w.]+\Z")]
    value: Annotated[str, msgspec.Meta(max_length=4096, pattern=r"\A[^\r\n]*\Z")]
    address: BrokerName | None = None


async def list_settings(seat: Seat, parameters: Nothing) -> InPart[list[NodeSettings]]:
    """The settings of every node that tells."""
    nodes = await settings_in_force(seat.admin)
    return InPart(
        [one for one in nodes if one.failure is None],
        tuple(Missing(group=one.broker, why=one.failure) for one in nodes if one.failure is not None),
    )


async def change(seat: Seat, parameters: Changed) -> list[str]:
    """Change a setting; returns the addresses of the nodes that have changed it. Raises ClientError."""
    return await change_settings(seat.admin, {parameters.name: parameters.value}, address=parameters.address)


ROUTES = (
    Question("/api/settings", Nothing, list_settings),
    Order("/api/settings/change", Changed, change, "change a setting"),
)
