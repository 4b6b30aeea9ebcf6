"""Questions and orders: what the tables in `routes/` consist of.

    Question("/api/topics/{topic}", TopicQuestion, describe_topic)
    Order("/api/messages", TestMessage, send_message, "send a test message")

A function gets the seat of whoever asks and the checked parameters, and returns what is told in JSON. It knows neither
HTTP nor who may change things: that stands in `answer.py`, once for all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from broker.console.parameters import Parameters
from broker.console.seats import Seat

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
    path and the body; those in ``unsaid`` are not written down but for their length.
    """

    path: str
    parameters: type[Parameters]
    function: Function
    action: str
    unsaid: frozenset[str] = frozenset()
