"""What a name server tells Prometheus, and whether it is well. It is ready as soon as it lives: it waits for nobody."""

from collections.abc import Iterator
from typing import Final

from broker.name_server.server import NameServer
from broker.remoting.codes import RequestCode
from broker.statistics.events import Event, Events
from broker.statistics.families import Told, family, many, one

CONNECTIONS: Final = family(
    "trivet_namesrv_connections", "gauge", "Connections of clients and brokers.", of_name_server=True
)
BROKERS: Final = family(
    "trivet_namesrv_brokers", "gauge", "Addresses that are registered.", of_name_server=True
)
BROKER_NAMES: Final = family(
    "trivet_namesrv_broker_names", "gauge", "Groups that they belong to.", of_name_server=True
)
TOPICS: Final = family("trivet_namesrv_topics", "gauge", "Topics with a route.", of_name_server=True)
KEY_VALUES: Final = family(
    "trivet_namesrv_key_values", "gauge", "Keys of the key-value configuration.", of_name_server=True
)
REQUESTS: Final = family(
    "trivet_namesrv_requests_total",
    "counter",
    "Requests, by the name of their code.",
    "code",
    of_name_server=True,
)
REFUSED: Final = family(
    "trivet_namesrv_requests_refused_total",
    "counter",
    "Requests that were not answered with success: unknown topics are the most.",
    of_name_server=True,
)
FORBIDDEN: Final = family(
    "trivet_namesrv_requests_forbidden_total",
    "counter",
    "Requests of those who are not allowed to make them, by the reason (security.md); in no other count.",
    "reason",
    of_name_server=True,
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
            (((reason,), count) for (event, reason), count in refused if event is Event.REQUEST_REFUSED),
        )


def _name(code: int) -> str:
    return "unknown" if code < 0 else RequestCode(code).name
