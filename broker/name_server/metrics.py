"""The metrics of a name server for Prometheus, and its health. It is ready as soon as it lives: it waits for nobody."""

from collections.abc import Iterator
from typing import Final

from broker.name_server.server import NameServer
from broker.remoting.codes import RequestCode
from broker.statistics.events import EventKind, Events
from broker.statistics.families import Told, counter, gauge, many, one

CONNECTIONS: Final = gauge("trivet_namesrv_connections", "Connections of clients and brokers.")
BROKERS: Final = gauge("trivet_namesrv_brokers", "Addresses that are registered.")
BROKER_NAMES: Final = gauge("trivet_namesrv_broker_names", "Groups that they belong to.")
TOPICS: Final = gauge("trivet_namesrv_topics", "Topics with a route.")
KEY_VALUES: Final = gauge("trivet_namesrv_key_values", "Keys of the key-value configuration.")
REQUESTS: Final = counter("trivet_namesrv_requests_total", "Requests, by the name of their code.", "code")
REFUSED: Final = counter(
    "trivet_namesrv_requests_refused_total",
    "Requests that were not answered with success: unknown topics are the most.",
)
FORBIDDEN: Final = counter(
    "trivet_namesrv_requests_forbidden_total",
    "Requests of those who are not allowed to make them, by the reason (security.md); in no other count.",
    "reason",
)


class NameServerMetrics:
    """The metrics of one name server."""

    def __init__(self, server: NameServer, events: Events) -> None:
        self._server = server
        self._events = events
        self.connections = 0
        """The open connections; the owner sets it before it asks."""

    def told(self) -> Iterator[Told | None]:
        """Yields every metric once."""
        server = self._server
        brokers, names, topics, key_values = server.figures()
        yield one(CONNECTIONS, self.connections)
        yield one(BROKERS, brokers)
        yield one(BROKER_NAMES, names)
        yield one(TOPICS, topics)
        yield one(KEY_VALUES, key_values)
        yield many(REQUESTS, (((_name(code),), count) for code, count in sorted(server.requests.items())))
        yield one(REFUSED, server.refused)
        refused = self._events.counts.items()
        yield many(
            FORBIDDEN,
            (((reason,), count) for (event, reason), count in refused if event is EventKind.REQUEST_REFUSED),
        )


def _name(code: int) -> str:
    return "unknown" if code < 0 else RequestCode(code).name
