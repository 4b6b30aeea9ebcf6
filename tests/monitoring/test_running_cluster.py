"""A cluster that runs, scraped by Prometheus itself: what dashboard and alerts ask for is there."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import trio

import broker.administration.metrics
import broker.name_server.metrics  # noqa: F401 - both add to ALL
from broker.client.admin import AdminClient
from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.replica.digests import STEPS
from broker.statistics.families import ALL
from broker.tools.cluster.local import LocalCluster
from tests.cluster.support import TOPIC, ready_cluster
from tests.monitoring.dashboard import panels
from tests.monitoring.prometheus import ALERTS, Server, needs_prometheus, promtool, serving
from tests.prometheus_text import Scrape, parse

pytestmark = pytest.mark.cluster

GROUP = "readers"
NOT_HERE = {"trivet_certificate_expires_seconds"}
"""Without TLS nobody shows a certificate."""
PROMETHEUS_OWN = {"up"}
_SUFFIXES = ("_bucket", "_count", "_sum")


def asked_names(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:trivet|rocketmq|process)_\w+|\bup\b", expression))


def alert_expressions() -> list[str]:
    text = ALERTS.read_text(encoding="utf-8")
    return re.findall(r"expr: ((?:>-\n)?(?:.|\n)*?)\n        (?:for|labels):", text)


def test_what_is_asked_for_has_a_name_that_is_exported_somewhere() -> None:
    expressions = [target.expression for panel in panels() for target in panel.targets] + alert_expressions()
    asked = set().union(*map(asked_names, expressions))
    assert len(asked) > 30
    known = {name + suffix for name in ALL for suffix in ("", *_SUFFIXES)} | PROMETHEUS_OWN
    assert {name for name in asked if not name.startswith("process_")} <= known


async def load(cluster: LocalCluster) -> None:
    """Messages in and out, an offset behind the end, and something of all kinds that wait."""
    address = cluster.name_server_address
    async with (
        AdminClient(address) as admin,
        Producer(address, group="p", send_timeout_s=60) as producer,
        PullConsumer(address, group=GROUP) as consumer,
    ):
        await admin.create_topic(f"%DLQ%{GROUP}", queues=1)
        await producer.send(Message(f"%DLQ%{GROUP}", b"as if it had been given up"))
        last = await producer.send(Message(TOPIC, b"first"))
        consumer.assign({last.queue: 0})
        await consumer.poll()
        await consumer.commit()
        messages = [Message(TOPIC, b"x" * 100) for _ in range(64)]
        for _ in range(STEPS[0] // 64 + 1):
            await producer.send_batch(messages)


def read(address: str) -> tuple[int, str]:
    """Reads a page; returns status and text."""
    try:
        with urlopen(address, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


async def scrape(address: str) -> Scrape:
    status, text = await trio.to_thread.run_sync(read, f"http://{address}/metrics")
    assert status == 200, text
    return parse(text)


def addresses(cluster: LocalCluster) -> list[str]:
    return [
        cluster.layout.name_server_metrics,
        *(node.settings.observe.metrics for node in cluster.nodes.values()),
    ]


async def test_a_running_cluster_exports_what_dashboard_and_alerts_ask_for(tmp_path: Path) -> None:
    async with ready_cluster(tmp_path / "cluster", metrics=True) as cluster:
        await load(cluster)
        scrapes = [await scrape(address) for address in addresses(cluster)]
        exported = set().union(*(one.names for one in scrapes)) | PROMETHEUS_OWN
        for panel in panels():
            for target in panel.targets:
                assert asked_names(target.expression) <= exported, panel.title
        for expression in alert_expressions():
            assert asked_names(expression) - NOT_HERE <= exported, expression
        # Every node tells everything but what is the leader's, and nothing that is not in the table.
        of_library = {name for name in exported if name.startswith("process_")} | PROMETHEUS_OWN
        known = {name + suffix for name in ALL for suffix in ("", *_SUFFIXES)}
        assert exported - of_library <= known

        # What probes see of the same servers.
        for address in addresses(cluster):
            for path in ("livez", "readyz"):
                status, text = await trio.to_thread.run_sync(read, f"http://{address}/{path}?verbose")
                assert (status, text.splitlines()[-1]) == (200, "ok"), text
            assert (await trio.to_thread.run_sync(read, f"http://{address}/"))[0] == 404


@needs_prometheus
async def test_prometheus_evaluates_every_panel_and_rule(tmp_path: Path) -> None:
    async with ready_cluster(tmp_path / "cluster", metrics=True) as cluster:
        await load(cluster)
        text = (tmp_path / "cluster" / "prometheus.yml").read_text(encoding="utf-8")
        fast = text.replace("scrape_interval: 5s", "scrape_interval: 1s")
        assert fast != text
        configuration = tmp_path / "prometheus.yml"
        configuration.write_text(
            f"global: {{evaluation_interval: 1s}}\nrule_files: [{ALERTS}]\n{fast}", encoding="utf-8"
        )
        await trio.to_thread.run_sync(promtool, "check", "config", str(configuration))
        with serving(configuration, tmp_path / "data") as prometheus:

            async def ask(expression: str) -> list[Any]:
                return await trio.to_thread.run_sync(_ask, prometheus, expression)

            await _until(lambda: ask("sum(count_over_time(up[1m])) >= 12 and count(up == 1) == 4"))
            for panel in panels():
                for target in panel.targets:
                    found = await ask(target.expression)
                    assert found or "> 0" in target.expression, f"{panel.title}: {target.expression}"
            rules: Any = {}

            async def all_evaluated() -> bool:
                nonlocal rules
                rules = await trio.to_thread.run_sync(prometheus.get, "rules")
                return all(
                    rule["health"] != "unknown" for group in rules["groups"] for rule in group["rules"]
                )

            await _until(all_evaluated)
            (group,) = rules["groups"]
            assert [rule["name"] for rule in group["rules"] if rule["health"] != "ok"] == []
            firing = {rule["name"] for rule in group["rules"] if rule["state"] == "firing"}
            assert firing <= {"TrivetDeadLetters", "TrivetEvent", "TrivetDiskFills"}


def _ask(prometheus: Server, expression: str) -> list[Any]:
    try:
        found: Any = prometheus.get("query", query=expression)
    except HTTPError as error:
        if error.code != 503:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        return []
    except OSError:
        return []  # it does not serve yet
    result: list[Any] = found["result"]
    return result


async def _until(holds: Callable[[], Awaitable[object]]) -> None:
    while not await holds():  # noqa: ASYNC110 - Prometheus has no way to tell
        await trio.sleep(0.1)
