"""A node's figures for Prometheus, at ``observe.metrics``.

The thread of the metrics server reads them from the node at each request. They are plain numbers, and each is read in
one step, so that no lock is needed and the node does nothing for them between requests.
"""

from collections.abc import Callable, Iterator
from types import TracebackType

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from broker.node.node import Node
from broker.remoting.addresses import split_address


class NodeCollector(Collector):
    """Reads one node. Every metric has the labels ``group`` and ``node``."""

    def __init__(self, node: Node, certificate_expires_s: Callable[[], float | None]) -> None:
        """`certificate_expires_s` returns a Unix time, or None where no certificate is shown."""
        self._node = node
        self._certificate_expires_s = certificate_expires_s

    def collect(self) -> Iterator[Metric]:
        """Yields the figures that the node has now."""
        node = self._node
        replica = node.replica
        labels = [node.group, replica.node_id]

        def gauge(name: str, text: str, value: float) -> Metric:
            family = GaugeMetricFamily(f"trivet_{name}", text, labels=["group", "node"])
            family.add_metric(labels, value)
            return family

        def counter(name: str, text: str, value: float) -> Metric:
            family = CounterMetricFamily(f"trivet_{name}", text, labels=["group", "node"])
            family.add_metric(labels, value)
            return family

        yield gauge("serving", "1 on the leader that takes requests, else 0", float(replica.serving))
        yield gauge("term", "Raft term", replica.term)
        yield gauge("last_index", "index of the last entry of the log", replica.store.log.last_index)
        yield gauge("commit_index", "index up to which entries are committed", replica.raft.commit_index)
        yield gauge("applied_index", "index up to which entries are dispatched", replica.applied_index)
        yield gauge("log_end_position_bytes", "where the log ends", replica.store.log.end_position)
        yield gauge("log_first_position_bytes", "where the log begins", replica.store.log.first_position)
        yield gauge(
            "disk_full", "1 while sends are refused because the disk is full", float(replica.disk_full)
        )
        yield gauge("client_connections", "clients connected to this node", node.client_count)
        yield gauge("held_requests", "requests that wait for a leader", node.held_count)
        yield counter("messages_put", "messages appended for clients", node.stats.put)
        expires_s = self._certificate_expires_s()
        if expires_s is not None:
            yield gauge(
                "certificate_expires_seconds",
                "when the first of the certificates that are shown expires, Unix time",
                expires_s,
            )
        yield counter("messages_got", "messages given to clients", node.stats.got)


class MetricsServer:
    """Serves ``/metrics`` at `address` while the context is open. Raises OSError when it cannot listen."""

    def __init__(
        self, node: Node, address: str, certificate_expires_s: Callable[[], float | None] = lambda: None
    ) -> None:
        self._node = node
        self._certificate_expires_s = certificate_expires_s
        self._address = address
        self.port = 0
        """The port in use, once the context is entered: `address` may say 0."""

    def __enter__(self) -> "MetricsServer":
        registry = CollectorRegistry()
        registry.register(NodeCollector(self._node, self._certificate_expires_s))
        host, port = split_address(self._address)
        self._server, self._thread = start_http_server(port, host, registry)
        self.port = self._server.server_port
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
