"""The page in Chromium over two groups, one of which has no leader: what can be shown and done is, and the group that
is missing is named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from broker.client.message import Message
from broker.client.threaded.sync import Consumer, Producer
from tests.broker.console.test_browser import PATIENCE_MS, Running, cluster_with_console, pytestmark

__all__ = ["pytestmark"]

WITHOUT = "Without broker-b, which does not answer."
PAGES = {
    "topics": "Orders",
    "topics/Orders": "At broker-a",
    "messages?topic=Orders&by=newest": "broker-a",
    "groups": "readers",
    "groups/readers": "broker-a",
    "dead-letters": "readers",
    "waiting": "For a time",
    "clients": "Clients",
}
"""What each of them shows of the other group all the same."""


@pytest.fixture(scope="module")
def wounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A cluster of two groups of two nodes, with messages and dead letters; one node of broker-b is dead."""
    directory = tmp_path_factory.mktemp("groups")
    with cluster_with_console(directory, "--groups 2 --nodes 2") as running:
        name_server = running.report["namesrv"]
        running.trivet("topic", "create", "Orders", "--queues", "1")
        with Producer(name_server, group="senders") as producer:
            for number in range(6):
                producer.send(Message("Orders", b"%d" % number))
        with Consumer(name_server, group="readers", topics="Orders", start="first") as consumer:
            for _ in range(6):
                message = consumer.poll(30)
                assert message is not None
                consumer.send_back(message, delay_level=-1)
        os.kill(_dead_node(running)["pid"], signal.SIGKILL)
        yield running


def _dead_node(running: Running) -> dict[str, Any]:
    return next(node for node in running.report["nodes"] if node["id"] == "n101")


@pytest.mark.in_turn
def test_each_page_names_the_group_that_is_missing(wounded: Running) -> None:
    page = wounded.open("cluster")
    page.wait_for_selector("#health >> text=broker-b: no leader")
    for path, shown in PAGES.items():
        page.evaluate("hash => { location.hash = hash }", f"#/{path}")
        page.wait_for_selector(f"p.problem[role=status] >> text={WITHOUT}")
        page.wait_for_function(
            "shown => document.querySelector('#content').innerText.includes(shown)", arg=shown
        )
        assert page.query_selector("#content .failure") is None, (path, page.inner_text("#content"))
    why = page.get_attribute("p.problem[role=status] span", "title")
    assert why
    assert wounded.problems == []


def test_an_order_is_carried_out_in_part_and_can_be_repeated(wounded: Running) -> None:
    page = wounded.open("topics")
    page.wait_for_selector("#content >> text=Looking…")  # and not that there are none
    assert _new_topic(page) == "bad"
    told = page.inner_text(".notice.bad span")
    assert told.startswith("Done, but not in broker-b: ")
    assert told.endswith(" Order it again when that answers.")
    assert [outcome for outcome, _ in _audited(wounded)] == ["begun", "in part"]
    assert _audited(wounded)[-1][1].startswith("not in broker-b: ")

    node = _dead_node(wounded)
    settings = wounded.directory / node["id"] / "broker.toml"
    again = subprocess.Popen(
        [sys.executable, "-m", "trivet", "broker", "--config", str(settings)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        page.wait_for_selector("#health >> text=all nodes answer")
        page.wait_for_selector("p.problem[role=status]", state="detached")
        page.evaluate("location.hash = '#/topics'")
        page.click(".notice.bad button")
        assert _new_topic(page) == "good"
        page.wait_for_selector("h2 >> text=broker-b")
        assert [outcome for outcome, _ in _audited(wounded)] == ["begun", "in part", "begun", "done"]
    finally:
        again.terminate()
        again.wait(60)
    assert wounded.problems == []


def _new_topic(page: Any) -> str:
    """Create a topic; returns the kind of the one notice that there is then."""
    page.get_by_role("button", name="New topic").click()
    page.get_by_label("Name").fill("After")
    page.get_by_role("button", name="Create").click()
    page.wait_for_selector("h1 >> text=After", timeout=2 * PATIENCE_MS)
    (notice,) = page.query_selector_all(".notice")
    kind = notice.get_attribute("class").removeprefix("notice ")
    assert isinstance(kind, str)
    return kind


def _audited(running: Running) -> list[tuple[str, str]]:
    """The outcome and the detail of each line of the audit log."""
    lines = (running.directory / "console.jsonl").read_text("utf-8").splitlines()
    return [(line["outcome"], line.get("detail", "")) for line in map(json.loads, lines)]
