"""The alert rules: Prometheus reads them, and each of them fires when it should and not when it should not."""

from __future__ import annotations

import re
from pathlib import Path

from tests.monitoring.prometheus import ALERTS, needs_prometheus, promtool

CASES = Path(__file__).parent / "alerts_test.yml"


@needs_prometheus
def test_prometheus_reads_the_rules() -> None:
    promtool("check", "rules", str(ALERTS))


@needs_prometheus
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    # Promtool compares annotations, too; here it is to see whether an alert fires, and not how it is worded.
    rules = re.sub(r"\n        annotations:(\n          .*)+", "", ALERTS.read_text(encoding="utf-8"))
    assert "annotations" not in rules
    (tmp_path / "alerts.yml").write_text(rules, encoding="utf-8")
    cases = CASES.read_text(encoding="utf-8").replace("rule_files: [ALERTS]", "rule_files: [alerts.yml]")
    (tmp_path / "cases.yml").write_text(cases, encoding="utf-8")
    promtool("test", "rules", str(tmp_path / "cases.yml"))


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    alerts = re.findall(r"- alert: (\w+)", ALERTS.read_text(encoding="utf-8"))
    fired = re.findall(r"alertname: (\w+)\n\s+exp_alerts", CASES.read_text(encoding="utf-8"))
    assert len(alerts) == len(set(alerts))
    assert set(alerts) == set(fired)
