"""The page in Chromium, over real processes: every page, with a leader killed while it is open."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from broker.client.message import Message
from broker.client.threaded.sync import Consumer, Producer

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("hypercorn", reason="the console's libraries are not installed")

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (on Debian: apt-get install chromium)"),
]

PATIENCE_MS = 30_000
MARKUP = '<img src="x" onerror="document.title = \'owned\'"><script>document.title = "owned"</script>'
PAGES = {
    "cluster": "Cluster",
    "topics": "Topics",
    "topics/Orders": "Orders",
    "messages?topic=Orders&by=newest": "Messages",
    "messages/Orders/broker-a/0/0": "Message 0 of Orders",
    "groups": "Consumer groups",
    "groups/readers": "readers",
    "send": "Send a message",
    "dead-letters": "Dead letters",
    "dead-letters/readers": "Dead letters of readers",
    "waiting": "Waiting messages",
    "clients": "Clients",
    "settings": "Settings",
    "charts": "Charts",
}


@dataclass
class Running:
    """A cluster with its console, and the browser."""

    report: dict[str, Any]
    directory: Path
    browser: Any
    problems: list[str] = field(default_factory=list)

    def open(self, path: str, **options: Any) -> Any:
        """Open a page as somebody new; returns it. What its scripts complain of is kept."""
        page = self.browser.new_context(viewport={"width": 1280, "height": 900}, **options).new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.problems.append(f"{path}: {error}"))
        page.on("console", lambda message: self._complained(path, message))
        page.goto(f"{self.report['console']}#/{path}")
        return page

    def trivet(self, *arguments: str) -> None:
        """Run a command against the cluster, which must succeed."""
        command = [sys.executable, "-m", "trivet", *arguments, "--namesrv", self.report["namesrv"]]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def _complained(self, path: str, message: Any) -> None:
        if message.type == "error":
            self.problems.append(f"{path}: {message.text}")


@contextmanager
def cluster_with_console(directory: Path, options: str = "") -> Iterator[Running]:
    """A cluster and a browser for its page, which may change things."""
    command = (
        f"cluster --dir {directory} --namesrv-port 0 --port 0 --console --console-port 0 --writable {options}"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "trivet", *command.split()],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("READY "), line
        report = json.loads(line.removeprefix("READY "))
        with api.sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            yield Running(report, directory, browser)
            browser.close()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A cluster of three with messages, a consumer group and dead letters."""
    with cluster_with_console(tmp_path_factory.mktemp("console")) as running:
        _fill(running.report["namesrv"])
        yield running


def _fill(name_server: str) -> None:
    with Producer(name_server, group="senders") as producer:
        for number in range(20):
            body = MARKUP if number == 0 else json.dumps({"number": number})
            producer.send(
                Message("Orders", body.encode(), keys=(f"order-{number}",), tags="new"), queue="one"
            )
        producer.send(Message("Orders", b"later", delay_level=18))
    with Consumer(name_server, group="readers", topics="Orders", start="first") as consumer:
        for number in range(20):
            message = consumer.poll(30)
            assert message is not None
            if number < 3:
                consumer.send_back(message, delay_level=-1)


def test_every_page_shows_what_it_should(running: Running) -> None:
    page = running.open("cluster")
    for path, title in PAGES.items():
        path = path.replace("/0/0", f"/{_queue(running)}/0")
        page.evaluate("hash => { location.hash = hash }", f"#/{path}")
        page.wait_for_function("title => document.querySelector('h1')?.innerText === title", arg=title)
        page.wait_for_function("() => !document.querySelector('#content').innerText.includes('Looking…')")
        assert page.query_selector("#content .failure") is None, (path, page.inner_text("#content"))
    assert running.problems == []


def _queue(running: Running) -> int:
    """The queue in which the first order lies."""
    import trio

    from broker.client.admin import AdminClient

    async def ask() -> int:
        async with AdminClient(running.report["namesrv"]) as admin:
            found = await admin.describe_topic("Orders")
        return next(status.queue.queue_id for status in found if status.max_offset)

    return trio.run(ask)


def test_what_users_have_written_stays_text(running: Running) -> None:
    page = running.open(f"messages/Orders/broker-a/{_queue(running)}/0")
    page.wait_for_selector("pre.body")
    assert page.inner_text("pre.body") == MARKUP
    assert page.query_selector("#content img, #content script") is None
    assert "owned" not in page.title()
    assert running.problems == []


def test_a_message_is_sent_and_found(running: Running) -> None:
    page = running.open("send?topic=Orders")
    page.fill("textarea >> nth=0", "from the page")
    page.get_by_role("textbox", name="Keys").fill("by-hand")
    page.get_by_role("button", name="Send", exact=True).click()
    page.click(".history a")
    page.wait_for_selector("pre.body")
    assert page.inner_text("pre.body") == "from the page"
    page.evaluate("location.hash = '#/messages?topic=Orders&by=key&key=by-hand'")
    page.wait_for_selector("text=1 found")
    lines = (running.directory / "console.jsonl").read_text("utf-8")
    assert "send a test message" in lines
    assert "from the page" not in lines


def test_dead_letters_are_sent_again(running: Running) -> None:
    page = running.open("dead-letters/readers")
    page.get_by_role("button", name="Send again…").click()
    page.get_by_role("button", name="Send again", exact=True).click()
    page.wait_for_selector("dialog >> text=3 messages sent again.")
    page.keyboard.press("Escape")
    page.wait_for_selector("dd >> text=/^0$/")


def test_a_group_is_sent_elsewhere_after_a_look_at_it(running: Running) -> None:
    page = running.open("groups/readers")
    page.wait_for_selector("tbody tr >> text=Orders")
    page.get_by_role("button", name="Reset positions…").click()
    page.get_by_role("button", name="Preview").click()
    page.wait_for_selector("text=will be read again")
    page.get_by_role("button", name="Reset", exact=True).click()
    page.wait_for_selector("text=goes on in Orders where the preview said")


def test_all_of_it_can_be_reached_from_the_keyboard(running: Running) -> None:
    page = running.open("cluster", color_scheme="light")
    page.wait_for_selector("tbody tr")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_selector("h1 >> text=Topics")
    page.keyboard.press("/")
    page.keyboard.type("Ord")
    page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 1")
    page.keyboard.press("Tab")
    for _ in range(20):
        if page.evaluate("document.activeElement.textContent") == "Orders":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1 >> text=Orders")
    page.keyboard.press("?")
    page.wait_for_selector("dialog >> text=to the filter")
    page.keyboard.press("Escape")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_a_console_that_comes_back_is_seen_to_be_back(running: Running) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    page = running.browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    for _ in range(2):
        console = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "trivet",
                "console",
                "--listen",
                address,
                "--namesrv",
                running.report["namesrv"],
            ],
            stdout=subprocess.PIPE,
        )
        try:
            assert console.stdout is not None
            assert console.stdout.readline() == f"READY http://{address}/\n".encode()
            if page.url == "about:blank":
                page.goto(f"http://{address}/")
            page.wait_for_selector("#health >> text=all nodes answer")
        finally:
            console.kill()
            console.wait(60)
        page.wait_for_selector("#health >> text=no connection to the console")


def test_every_page_lives_on_when_the_leader_is_killed(running: Running) -> None:
    pages = {path: running.open(path.replace("/0/0", f"/{_queue(running)}/0")) for path in PAGES}
    for path, page in pages.items():
        page.wait_for_function("title => document.querySelector('h1')?.innerText === title", arg=PAGES[path])
        page.wait_for_selector("#health >> text=all nodes answer")
    leader = pages["cluster"].inner_text(".facts dd >> nth=0")
    (node,) = [node for node in running.report["nodes"] if node["id"] == leader]
    os.kill(node["pid"], signal.SIGKILL)
    for path, page in pages.items():
        page.wait_for_selector(f"#health >> text={leader} silent")
        assert page.query_selector("#content .failure") is None, (path, page.inner_text("#content"))
        assert page.inner_text("h1") == PAGES[path]
    page = pages["cluster"]
    told = page.inner_text(".history")
    assert f"{leader} is silent" in told
    successor = page.inner_text(".facts dd >> nth=0")
    assert successor != leader
    assert f"{successor} leads in term" in told
    # What is asked for now is answered by the new leader.
    pages["topics"].get_by_role("button", name="New topic").click()
    pages["topics"].get_by_label("Name").fill("After")
    pages["topics"].get_by_role("button", name="Create").click()
    pages["topics"].wait_for_selector("h1 >> text=After")
    again = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "trivet",
            "broker",
            "--config",
            str(running.directory / leader / "broker.toml"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        page.wait_for_selector(f".history >> text={leader} answers again")
        page.wait_for_selector("#health >> text=all nodes answer")
    finally:
        again.terminate()
        again.wait(60)
