"""The common part of `trivet.sync` and `trivet.aio`: a client that runs on Trio, with all its options, and the thread
in which it runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from broker.client.consuming.consumer import Consumer
from broker.client.producing.producer import Producer
from broker.client.threaded.handover import Handover
from broker.client.threaded.own_thread import OwnThread

Options = ParamSpec("Options")


def _with_options_of(
    constructor: Callable[Concatenate[Any, Options], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, Options], None]]:
    """Decorate a constructor that hands all its arguments on to another one: type checkers and readers see that one."""
    return lambda own: functools.update_wrapper(own, constructor)


class ThreadedProducer:
    """Has a producer and its thread."""

    @_with_options_of(Producer.__init__)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._client = Producer(*arguments, **options)
        self._thread = OwnThread(self._client, f"trivet producer {self._client.group}")


class ThreadedConsumer:
    """Has a consumer, its thread, and what is on the way from there."""

    @_with_options_of(Consumer.__init__)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._client = Consumer(*arguments, **options)
        self._thread = OwnThread(self._client, f"trivet consumer {self._client.group}")
        self._handover = Handover(self._client.hand_out)
