"""Dead letters: listed, sent again, deleted. They are looked at as messages of their topic."""

from typing import Annotated, Final

import msgspec

from broker.client.errors import UsageError
from broker.console.asking import InPart, Order, Question, in_part
from broker.console.parameters import GroupName, Nothing, Parameters
from broker.console.seats import Seat
from broker.operations.dead_letters import (
    DeadLetters,
    Redriven,
    count_dead_letters,
    list_dead_letters,
    purge,
    redrive,
)

REDRIVE_S_MAX: Final = 15.0
"""An order sends no more than fits into this time. The page gives one after another, so that nothing more is sent once
it is closed."""


class OneGroup(Parameters, frozen=True):
    """A consumer group by its name."""

    group: GroupName


class Again(OneGroup, frozen=True):
    """How many dead letters to send again, and how many in a second; with ``again`` also those sent again before: as
    `redrive` takes them."""

    limit: Annotated[int, msgspec.Meta(ge=1)]
    rate_per_s: Annotated[float, msgspec.Meta(gt=0, le=100_000)]
    again: bool = False


async def list_all(seat: Seat, parameters: Nothing) -> InPart[list[DeadLetters]]:
    """The consumer groups that have dead letters."""
    return await in_part(seat, list_dead_letters)


async def count(seat: Seat, parameters: OneGroup) -> InPart[DeadLetters]:
    """Return how many dead letters a consumer group has. Raises ClientError."""
    return await in_part(seat, lambda groups: count_dead_letters(groups, parameters.group))


async def send_again(seat: Seat, parameters: Again) -> InPart[Redriven]:
    """Send dead letters again. Raises ClientError; UsageError for more than can be sent within the time of an order."""
    if parameters.limit > parameters.rate_per_s * REDRIVE_S_MAX:
        raise UsageError(
            f"{parameters.limit} at {parameters.rate_per_s:g} a second take more than {REDRIVE_S_MAX:g} s"
        )
    return await in_part(seat, lambda groups: redrive(groups, **msgspec.structs.asdict(parameters)))


async def delete(seat: Seat, parameters: OneGroup) -> InPart[int]:
    """Delete all of one consumer group; returns how many there were."""
    return await in_part(seat, lambda groups: purge(groups, parameters.group))


ROUTES = (
    Question("/api/dead-letters", Nothing, list_all),
    Question("/api/dead-letters/{group}", OneGroup, count),
    Order("/api/dead-letters/{group}/redrive", Again, send_again, "send dead letters again"),
    Order("/api/dead-letters/{group}/purge", OneGroup, delete, "delete dead letters"),
)
