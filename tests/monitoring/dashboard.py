"""The dashboard's panels, and their questions as Grafana asks them."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.monitoring.prometheus import DASHBOARD


@dataclass(frozen=True)
class Target:
    """One question of a panel, in Prometheus' language, and how its answers are called."""

    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One panel. Its place is in Grafana's grid of 24 columns."""

    title: str
    kind: str
    unit: str
    targets: tuple[Target, ...]
    x: int
    y: int
    width: int
    height: int
    steps: tuple[tuple[float, str], ...]
    """For a number: its colour from each value on."""


def panels(rate_interval: str = "1m") -> list[Panel]:
    """All panels, with the variables filled in: all clusters and groups, and rates over that time."""
    variables = {"$cluster": ".*", "$group": ".*", "$__rate_interval": rate_interval}

    def filled(expression: str) -> str:
        for name, value in variables.items():
            expression = expression.replace(name, value)
        assert "$" not in expression, expression
        return expression

    return [
        Panel(
            panel["title"],
            panel["type"],
            panel.get("fieldConfig", {}).get("defaults", {}).get("unit", ""),
            tuple(Target(filled(one["expr"]), one["legendFormat"]) for one in panel.get("targets", ())),
            x=panel["gridPos"]["x"],
            y=panel["gridPos"]["y"],
            width=panel["gridPos"]["w"],
            height=panel["gridPos"]["h"],
            steps=tuple(
                (float("-inf") if step["value"] is None else step["value"], step["color"])
                for step in panel.get("fieldConfig", {})
                .get("defaults", {})
                .get("thresholds", {})
                .get("steps", ())
            ),
        )
        for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    ]
