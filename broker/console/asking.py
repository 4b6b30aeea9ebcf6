"""Questions and orders: what the tables in `routes/` consist of.

    Question("/api/topics/{topic}", TopicQuestion, describe_topic)
    Order("/api/messages", TestMessage, send_message, "send a test message")

A function gets the seat of whoever asks and the checked parameters, and returns what is told in JSON; as `InPart` where
broker groups may be missing from it. It knows neither HTTP nor who may change things: that stands in `app.py`, once for
all of them.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from broker.console.parameters import Parameters
from broker.console.seats import Seat
from broker.operations.asking import Groups, Missing

Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class InPart(Generic[Content]):
    """The answer or the outcome, as far as broker groups answer. Pages name those that are ``missing``."""

    content: Content
    missing: tuple[Missing, ...]


async def in_part(seat: Seat, ask: Callable[[Groups], Awaitable[Content]]) -> InPart[Content]:
    """Do something in all broker groups that answer. Raises ClientError."""
    groups = await Groups.registered(seat.admin)
    content = await ask(groups)
    return InPart(content, groups.missing)


Function = Callable[[Seat, Any], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Question:
    """A GET that changes nothing. Parameters are those of the path and the query."""

    path: str
    parameters: type[Parameters]
    function: Function


@dataclass(frozen=True, slots=True)
class Order:
    """A POST that changes something, and is written down under the name of ``action``. Parameters are those of the
    path and the body; of those in ``unsaid`` only the length is written down.
    """

    path: str
    parameters: type[Parameters]
    function: Function
    action: str
    unsaid: frozenset[str] = frozenset()
