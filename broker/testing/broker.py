"""`broker`, which starts the servers in a thread, and what it gives."""

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, Self, TypeVar

import structlog
import trio

from broker.client.threaded.own_thread import OwnThread, waited
from broker.testing.servers import Flush, Servers, serving

Result = TypeVar("Result")

_MEMORY: Final = Path("/dev/shm")
_MEMORY_WANTED_BYTES: Final = 512 << 20
"""The bytes that must be free in memory; containers often have 64 MiB."""


class RunningBroker(str):
    """The name server's address ``host:port``, as clients take it, with what can be done to the brokers behind it.

    All methods may be called from any thread or event loop; they take milliseconds, but for `wait_leader`.
    """

    __slots__ = ("_servers", "_thread")
    _thread: OwnThread[Servers]
    _servers: Servers

    @classmethod
    def of(cls, thread: OwnThread[Servers], servers: Servers) -> Self:
        """The servers that run in that thread."""
        made = cls(servers.name_server)
        made._thread, made._servers = thread, servers
        return made

    @property
    def leader(self) -> str | None:
        """The node that leads: "n0", "n1", ...; None while none does."""
        return self._servers.leader

    def wait_leader(self) -> str:
        """Wait until a node leads and clients find it; returns it. A new one is elected in a second or two."""
        return self._thread.call(self._servers.wait_leader)

    def kill_leader(self) -> str:
        """Kill the node that leads, as ``kill -9`` would; returns it. Of three nodes another one takes over."""
        return self._thread.call(self._servers.kill_leader)

    def kill(self, node: str) -> None:
        """Kill a node, as ``kill -9`` would. Raises ValueError for one that does not run."""
        self._thread.call(self._servers.kill, node)

    def start(self, *nodes: str) -> None:
        """Start these nodes again, or all that do not run. Raises ValueError for one that runs."""

        async def start() -> None:
            self._servers.start(*nodes)

        self._thread.call(start)

    def lose_power(self, *nodes: str) -> None:
        """End these nodes, or all, as if their machines lost power at once: what was not flushed is gone.

        Start them again with `start`. Raises ValueError for one that there is not.
        """
        self._thread.call(self._servers.lose_power, *nodes)

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """Create a topic. Topics that are sent to come into being by themselves, with 4 queues, too."""
        self._thread.call(self._servers.create_topic, topic, queues)


class broker:  # noqa: N801 - it is used as a function
    """A name server and brokers in this process: ``with`` and ``async with`` (Trio, asyncio) give a `RunningBroker`.

        async with trivet.testing.broker() as namesrv:
            async with Producer(namesrv, group="g") as producer:
                await producer.send(Message("orders", b"17"))

    ``nodes`` are the nodes of the group: with 3 it goes on when one is killed. Its files are in memory where Linux has
    room for that, else in a temporary directory, and are gone at the end; in ``directory`` they stay, and are there for
    the next one. ``flush`` says when a message is acknowledged (docs/configuration.md). It listens on free ports of the
    loopback interface. All of them are known to this process only.
    """

    def __init__(
        self, *, nodes: int = 1, directory: str | os.PathLike[str] | None = None, flush: Flush = "async"
    ) -> None:
        self._nodes = nodes
        self._flush = flush
        self._directory = directory
        self._files = ExitStack()
        self._thread: OwnThread[Servers] | None = None

    def _open(self) -> Future[Servers]:
        if not structlog.is_configured():
            _log_to_logging()
        directory = Path(self._directory or self._files.enter_context(_temporary_directory()))
        # A thread with Trio's loop of its own: a test may run on asyncio, or on none.
        servers = serving(directory, self._nodes, flush=self._flush, keep=self._directory is not None)
        self._thread = OwnThread(servers, "trivet.testing")
        return self._thread.open()

    def _running(self, servers: Servers) -> RunningBroker:
        assert self._thread is not None, "`_open` has set it"
        return RunningBroker.of(self._thread, servers)

    def __enter__(self) -> RunningBroker:
        try:
            return self._running(waited(self._open()))
        except BaseException:
            self._files.close()
            raise

    def __exit__(self, *_error: object) -> None:
        assert self._thread is not None, "entered"
        with self._files:
            waited(self._thread.close())

    async def __aenter__(self) -> RunningBroker:
        return await _in_a_thread(self.__enter__)

    async def __aexit__(self, *_error: object) -> None:
        await _in_a_thread(self.__exit__)


@contextmanager
def _temporary_directory() -> Iterator[str]:
    """A directory in memory if there is room for it, else where temporary files go."""
    place = None
    with suppress(OSError):
        if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _MEMORY_WANTED_BYTES:
            place = _MEMORY
    with tempfile.TemporaryDirectory(prefix="trivet-", dir=place, ignore_cleanup_errors=True) as made:
        yield made


async def _in_a_thread(call: Callable[[], Result]) -> Result:
    """Call what waits, from Trio or asyncio."""
    if trio.lowlevel.in_trio_run():
        return await trio.to_thread.run_sync(call)
    return await asyncio.to_thread(call)


def _log_to_logging() -> None:
    """Have servers log by the library's module `logging`, whose lines pytest shows with a test that fails."""
    logging.getLogger("trivet").addHandler(logging.NullHandler())  # and who has not set it up sees none
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
