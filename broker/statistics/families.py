"""The metrics that Trivet exports, and how the parts of it tell theirs.

Names are those of the systems that operators know, so that what they have learnt and written goes on to hold:

- what a RocketMQ 5 broker exports has its name, labels and unit here, too (``rocketmq_...``): for its clients this is a
  RocketMQ broker, and dashboards of RocketMQ show it as it is;
- what etcd exports has its name with ``trivet_`` in place of ``etcd_``: the same question about another system, and a
  Prometheus that watches both must not add them up;
- all else begins with ``trivet_``.

Every metric has the labels of `COMMON_LABELS`, and those of RocketMQ the two of `ROCKETMQ_LABELS` besides.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from broker.statistics.histogram import Histogram

Kind = Literal["counter", "gauge", "histogram"]

COMMON_LABELS: Final = ("cluster", "group", "node")
ROCKETMQ_LABELS: Final = ("node_type", "node_id")
ROCKETMQ_PREFIX: Final = "rocketmq_"

ALL: Final[dict[str, "Family"]] = {}
"""The metrics of brokers and name servers by name, in the order in which the documentation lists them."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. `labels` are those beside the common ones."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()


Samples = list[tuple[tuple[str, ...], "float | Histogram"]]
"""Values of a family's own labels, and the sample."""

Told = tuple[Family, Samples]


def counter(name: str, text: str, *labels: str) -> Family:
    """Returns a new metric, which is in `ALL` from then on: how often something has happened."""
    assert name.endswith("_total"), f"{name} is a counter"
    return _listed(Family(name, "counter", text, labels))


def gauge(name: str, text: str, *labels: str) -> Family:
    """Returns a new metric, which is in `ALL` from then on: how much of something there is."""
    assert not name.endswith("_total"), f"{name} is no counter"
    return _listed(Family(name, "gauge", text, labels))


def histogram(name: str, text: str, *labels: str) -> Family:
    """Returns a new metric, which is in `ALL` from then on: how long something takes, in seconds."""
    return _listed(Family(name, "histogram", text, labels))


def _listed(made: Family) -> Family:
    assert made.name not in ALL, f"two metrics are called {made.name}"
    ALL[made.name] = made
    return made


def one(metric: Family, value: "float | Histogram") -> Told:
    """Returns a metric with its one value, which has no labels of its own."""
    return metric, [((), value)]


def many(metric: Family, samples: Iterable[tuple[tuple[str, ...], "float | Histogram"]]) -> Told:
    """Returns a metric with a value for each set of label values; these are in the order of the metric's labels."""
    return metric, list(samples)
