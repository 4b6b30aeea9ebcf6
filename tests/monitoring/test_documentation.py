"""docs/operations.md says which metrics there are."""

from __future__ import annotations

from pathlib import Path

import broker.administration.metrics
import broker.name_server.metrics  # noqa: F401 - both add to ALL
from broker.statistics.families import ALL

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"


def test_every_metric_is_documented_with_its_kind_and_labels() -> None:
    section = (
        DOCUMENT.read_text(encoding="utf-8").partition("## Metrics and health\n")[2].partition("\n## ")[0]
    )
    of_broker, _, of_name_server = section.partition("and a name server")
    for of, text in ((False, of_broker), (True, of_name_server)):
        rows = [row for row in text.splitlines() if row.startswith(("| `trivet_", "| `rocketmq_"))]
        assert rows == [
            f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {one.text} |"
            for one in ALL.values()
            if one.name.startswith("trivet_namesrv_") is of
        ]
