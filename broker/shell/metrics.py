"""The pages that a server has for Prometheus and for probes: ``/metrics``, ``/livez`` and ``/readyz``.

All run in the loop of the node, whose parts may be read there without a lock. What is long is made in pieces, between
which the node has its turns; and it is made once a second at most, however many ask for it.
"""

import socket
from collections.abc import Callable, Iterable, Iterator
from time import monotonic_ns, perf_counter
from typing import Final, TypeVar

import trio
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from broker.administration.health import Check
from broker.shell.http import HttpServer, Page, Query
from broker.statistics.events import EventKind, Events
from broker.statistics.families import COMMON_LABELS, ROCKETMQ_LABELS, ROCKETMQ_PREFIX, Told
from broker.statistics.histogram import BOUNDS_S, Histogram

T = TypeVar("T")

PIECE_S: Final = 0.002
"""The time, in seconds, after which the rest of the metrics waits for the node's next turn."""

SAMPLES_AT_ONCE: Final = 100
"""Samples whose text is made at once: a millisecond's work."""

FRESH_S: Final = 1.0
"""Metrics of the last second are given to whoever asks."""


class _Families(CollectorRegistry):
    """A registry with some metrics in it, for the exposition of the library."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        super().__init__()
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


class MetricsPage:
    """``/metrics``. `told` begins to tell all metrics; `labels` returns the values of the common labels."""

    def __init__(
        self, told: Callable[[], Iterator[Told | None]], labels: Callable[[], tuple[str, str, str]]
    ) -> None:
        self._told = told
        self._labels = labels
        self._process: Collector = ProcessCollector(registry=None)
        self._lock = trio.Lock()
        self._made_s = float("-inf")
        self._text = b""

    async def __call__(self, _: Query) -> Page:
        """Returns the page, made now or within the last second."""
        # Whoever asks while it is made waits, and is given the same.
        async with self._lock:
            if trio.current_time() - self._made_s >= FRESH_S:
                self._text = await self._make()
                self._made_s = trio.current_time()
        return Page(200, self._text, CONTENT_TYPE_LATEST)

    async def _make(self) -> bytes:
        pieces: list[bytes] = []
        began = perf_counter()
        for piece in self.pieces():
            pieces.append(piece)
            if perf_counter() - began > PIECE_S:
                await trio.lowlevel.checkpoint()
                began = perf_counter()
        pieces.append(generate_latest(_Families(self._process.collect())))
        return b"".join(pieces)

    def pieces(self) -> Iterator[bytes]:
        """Yields the text of some samples at a time, or of none where the node has worked for it long enough."""
        for told in self._told():
            if told is None:
                yield b""
                continue
            metric, samples = told
            # A metric without samples has its head all the same.
            for first in range(0, max(len(samples), 1), SAMPLES_AT_ONCE):
                text = generate_latest(
                    _Families([self._family((metric, samples[first : first + SAMPLES_AT_ONCE]))])
                )
                if first:  # the head of the metric is there already
                    text = b"".join(line for line in text.splitlines(True) if not line.startswith(b"#"))
                yield text

    def _family(self, told: Told) -> Metric:
        """Returns a metric as the library has it."""
        metric, samples = told
        names: tuple[str, ...] = COMMON_LABELS
        values: tuple[str, ...] = self._labels()
        if metric.name.startswith(ROCKETMQ_PREFIX):
            names, values = names + ROCKETMQ_LABELS, (*values, "broker", values[1])
        names += metric.labels
        if metric.kind == "histogram":
            histogram = HistogramMetricFamily(metric.name, metric.text, labels=names)
            for labels, sample in samples:
                assert isinstance(sample, Histogram)
                histogram.add_metric([*values, *labels], _buckets(sample), sample.sum_ns / 1e9)
            return histogram
        plain = (CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily)(
            metric.name, metric.text, labels=names
        )
        for labels, sample in samples:
            assert not isinstance(sample, Histogram)
            plain.add_metric([*values, *labels], float(sample))
        return plain


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Returns the counts up to each bound."""
    found: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*BOUNDS_S, None), histogram.counts, strict=True):
        # Prometheus wants them cumulative.
        total += count
        found.append(("+Inf" if bound is None else repr(bound), total))
    return found


class HealthPage:
    """``/livez`` or ``/readyz``, in etcd's form: ``ok``, or each check on a line of its own where one fails.

    With ``?verbose`` each is told in any case; ``?exclude=NAME`` leaves one out, and may be given several times.
    """

    def __init__(self, name: str, checks: Callable[[], list[Check]]) -> None:
        self._name = name
        self._checks = checks

    async def __call__(self, query: Query) -> Page:
        """Answers 200 where all checks pass, else 503."""
        excluded = set(query.get("exclude", ()))
        checks = [check for check in self._checks() if check.name not in excluded]
        is_ok = not any(check.problem for check in checks)
        lines = [
            f"[-]{check.name} failed: {check.problem}" if check.problem else f"[+]{check.name} ok"
            for check in checks
        ]
        if is_ok and "verbose" not in query:
            lines = []
        lines.append("ok" if is_ok else f"{self._name} check failed")
        return Page(200 if is_ok else 503, "\n".join([*lines, ""]).encode())


def operators_server(
    listener: socket.socket,
    *,
    begin: Callable[[], None],
    told: Callable[[], Iterator[Told | None]],
    labels: Callable[[], tuple[str, str, str]],
    live: Callable[[], list[Check]],
    ready: Callable[[], list[Check]],
    events: Events,
) -> HttpServer:
    """Returns the server of the three pages. `begin` sets the time of the parts that are then asked; `events` hear of
    connections that are closed for a limit.
    """

    def after_begin(ask: Callable[[], T]) -> Callable[[], T]:
        def asked() -> T:
            begin()
            return ask()

        return asked

    def closed(reason: str, address: str) -> None:
        events.warn(EventKind.CONNECTION_CLOSED, reason, monotonic_ns(), source=address)

    return HttpServer(
        trio.SocketListener(trio.socket.from_stdlib_socket(listener)),
        {
            "/metrics": MetricsPage(after_begin(told), labels),
            "/livez": HealthPage("livez", after_begin(live)),
            "/readyz": HealthPage("readyz", after_begin(ready)),
        },
        closed,
    )
