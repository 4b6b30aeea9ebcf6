"""What a broker's shell does, as spans of the machine's monotonic clock, which all processes share.

    python -m benchmarks.timing_points broker --config FILE     (started by benchmarks/time_line.py)

This runs `trivet` with its arguments, and wraps the few places through which everything goes: waits, reads, turns,
writes, flushes. The broker itself has no part in it. A span costs it half a microsecond; the newest are kept, and
written to `SPANS_DIRECTORY` when the process ends in order.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns
from types import SimpleNamespace
from typing import Any, Final

import trio

SPANS_DIRECTORY: Final = "TRIVET_BENCHMARK_SPANS"
"""The environment variable that says where spans go."""
KEPT: Final = 400_000

Span = tuple[int, int, str]
"""Begin and end in nanoseconds, and what it was."""

TRIO_WAITS: Final = "Trio waits"
WAITS: Final = "waits among its sockets"
READS: Final = "a pass of reads"
REQUEST: Final = "bytes of the client"
PEER: Final = "bytes of a peer"
TURN: Final = "turn"
WRITE: Final = "write"
FLUSH: Final = "flush, in its thread"
SEND: Final = "send"


class Points:
    """The spans of this process."""

    def __init__(self) -> None:
        self.spans: deque[Span] = deque(maxlen=KEPT)

    def wrap(self, owner: Any, name: str, kind: str) -> None:
        """Has every call of a method leave a span."""
        setattr(owner, name, self.timed(getattr(owner, name), kind))

    def timed(self, call: Callable[..., Any], kind: str) -> Callable[..., Any]:
        """Returns a function that does the same, and leaves a span."""
        add = self.spans.append

        def timed(*arguments: Any, **named: Any) -> Any:
            began = monotonic_ns()
            try:
                return call(*arguments, **named)
            finally:
                add((began, monotonic_ns(), kind))

        return timed

    def save(self, path: Path) -> None:
        """Writes the spans, in the order of their ends."""
        path.write_text(json.dumps(list(self.spans)))


def load(path: Path) -> list[Span]:
    """Reads what `Points.save` wrote, in the order of their beginnings."""
    return sorted((begin, end, kind) for begin, end, kind in json.loads(path.read_text()))


class TrioWaits(trio.abc.Instrument):
    """Spans of Trio's waits; what lies between two of them is a pass of its scheduler."""

    def __init__(self, points: Points) -> None:
        self._add = points.spans.append
        self._began = 0

    def before_io_wait(self, timeout: float) -> None:
        self._began = monotonic_ns()

    def after_io_wait(self, timeout: float) -> None:
        self._add((self._began, monotonic_ns(), TRIO_WAITS))


class _TimedEpoll:
    """An epoll set that leaves a span for each wait."""

    def __init__(self, points: Points) -> None:
        self._epoll = select.epoll()
        self._waits = points.timed(self._epoll.poll, WAITS)
        for name in ("register", "unregister", "fileno", "close"):
            setattr(self, name, getattr(self._epoll, name))

    def poll(self, timeout: float = -1, most: int = -1) -> Any:
        return self._waits(timeout, most) if timeout else self._epoll.poll(timeout, most)

    @property
    def closed(self) -> bool:
        return self._epoll.closed


def install(points: Points) -> None:
    """Wraps what brokers do in this process."""
    import outcome

    from broker.node.links import AcceptedLink
    from broker.requests.client_sessions import ClientSession
    from broker.shell import socket_reading, worker
    from broker.shell.broker_server import BrokerServer
    from broker.shell.sockets import SocketConnection

    timed_select = SimpleNamespace(epoll=lambda: _TimedEpoll(points), EPOLLIN=select.EPOLLIN)
    setattr(socket_reading, "select", timed_select)  # noqa: B010 - a module that is none
    points.wrap(socket_reading.Reading, "_read_all", READS)
    points.wrap(ClientSession, "received", REQUEST)
    points.wrap(AcceptedLink, "received", PEER)
    points.wrap(BrokerServer, "_turn", TURN)
    points.wrap(SocketConnection, "_try", WRITE)
    setattr(worker, "outcome", SimpleNamespace(capture=points.timed(outcome.capture, FLUSH)))  # noqa: B010
    serve = BrokerServer.serve

    async def watched(self: BrokerServer) -> None:
        trio.lowlevel.add_instrument(TrioWaits(points))
        await serve(self)

    BrokerServer.serve = watched  # type: ignore[method-assign]


def main() -> None:
    """Runs `trivet` with the arguments of this process."""
    import trivet

    if sys.argv[1] == "broker":
        points = Points()
        install(points)
        name = Path(sys.argv[-1]).parent.name
        atexit.register(points.save, Path(os.environ[SPANS_DIRECTORY]) / f"{name}.json")
    trivet.main()


if __name__ == "__main__":
    main()
