"""The questions of :mod:`broker.tools.cluster.asking`, for callers in Trio: each is asked by a thread."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import ParamSpec, TypeVar

import trio

from broker.tools.cluster import asking

_Asked = ParamSpec("_Asked")
_Answer = TypeVar("_Answer")


def _by_a_thread(question: Callable[_Asked, _Answer]) -> Callable[_Asked, Awaitable[_Answer]]:
    async def ask(*arguments: _Asked.args, **options: _Asked.kwargs) -> _Answer:
        # A caller that is cancelled leaves the thread to the question's own time limit.
        return await trio.to_thread.run_sync(partial(question, *arguments, **options), abandon_on_cancel=True)

    return ask


ask = _by_a_thread(asking.ask)
node_status = _by_a_thread(asking.node_status)
cluster_info = _by_a_thread(asking.cluster_info)
registered_brokers = _by_a_thread(asking.registered_brokers)
