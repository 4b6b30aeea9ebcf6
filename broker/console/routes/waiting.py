"""Messages that wait for a time or a decision."""

import dataclasses

import msgspec

from broker.console.asking import InPart, Question, in_part
from broker.console.parameters import Limit, Parameters
from broker.console.routes.messages import PREVIEW_BYTES, MessageShown, shown
from broker.console.seats import Seat
from broker.operations.waiting_messages import WaitingMessage, waiting_messages


class Wanted(Parameters, frozen=True):
    """The number of messages of each kind that are to be shown at most."""

    limit: Limit = 100


class WaitingShown(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits, with the beginning of its body."""

    kind: str
    home: str
    due_ms: int | None
    level: int | None
    producer_group: str | None
    shown: MessageShown


class WaitingList(msgspec.Struct, frozen=True, kw_only=True):
    """The number of those that wait, and the first of them."""

    by_level: dict[int, int]
    timed: int
    half: int
    delayed_messages: list[WaitingShown]
    half_messages: list[WaitingShown]


async def list_waiting(seat: Seat, wanted: Wanted) -> InPart[WaitingList]:
    """List the delayed, timed and half messages that wait. Raises ClientError."""
    part = await in_part(seat, lambda groups: waiting_messages(groups, limit=wanted.limit))
    found = part.content
    told = WaitingList(
        by_level=found.by_level,
        timed=found.timed,
        half=found.half,
        delayed_messages=[_shown(waiting) for waiting in found.delayed_messages],
        half_messages=[_shown(waiting) for waiting in found.half_messages],
    )
    return InPart(told, part.missing)


def _shown(waiting: WaitingMessage) -> WaitingShown:
    fields = {field.name: getattr(waiting, field.name) for field in dataclasses.fields(waiting)}
    return WaitingShown(shown=shown(fields.pop("message"), PREVIEW_BYTES), **fields)


ROUTES = (Question("/api/waiting", Wanted, list_waiting),)
