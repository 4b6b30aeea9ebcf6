"""What a server exports for Prometheus, read by Prometheus' own library."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Labels = dict[str, str]


@dataclass(frozen=True)
class Scrape:
    """The samples of one scrape, and the kind of each metric."""

    samples: list[tuple[str, Labels, float]]
    kinds: dict[str, str]

    @property
    def names(self) -> set[str]:
        return {name for name, _, _ in self.samples}

    def values(self, name: str, **labels: str) -> list[tuple[Labels, float]]:
        """The samples of that name that have these labels, among others."""
        return [
            (found, value)
            for of, found, value in self.samples
            if of == name and labels.items() <= found.items()
        ]

    def value(self, name: str, **labels: str) -> float:
        """The one sample of that name that has these labels."""
        ((_, value),) = self.values(name, **labels)
        return value


def parse(text: str) -> Scrape:
    samples: list[tuple[str, Labels, float]] = []
    kinds: dict[str, str] = {}
    for metric in text_string_to_metric_families(text):
        assert metric.name not in kinds, f"{metric.name} is told twice"
        kinds[metric.name] = metric.type
        samples += [(sample.name, sample.labels, sample.value) for sample in metric.samples]
    return Scrape(samples, kinds)
