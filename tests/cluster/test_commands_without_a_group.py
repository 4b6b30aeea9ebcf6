"""The commands over two groups, one of which has no leader: they do what can be done in the other, name the group that
is missing on stderr, and end with exit code 1. Once it has a leader again nothing is missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from broker.client.message import Message
from broker.client.threaded.sync import Consumer, Producer
from tests.cli.conftest import CommandLine, Outcome
from tests.cluster.support import LIMIT_S

pytestmark = pytest.mark.cluster

QUESTIONS = {
    "topic list": "Orders\n",
    "topic describe Orders": "broker-a",
    "topic stats Orders": "broker-a",
    "consumer list": "readers",
    "consumer describe readers": "broker-a",
    "consumer lag readers": "broker-a",
    "client list": "none\n",
    "message find Orders": "broker-a/0@",
    "message waiting": "0 half messages",
    "dlq list": "readers",
    "dlq show readers": "broker-a/0@",
    "tail Orders --since 1h --timeout 2": "broker-a/0@",
    "top --count 1 --interval 0.1": "group broker-b is missing: ",
    "status": "broker-a",
    "topic alter Orders --ordered --yes": "topic Orders is changed in broker-a\n",
}
"""What each of them prints of the other group. `top` shows what is missing where it shows everything, and goes on."""


@dataclass
class Wounded:
    """Two groups of two nodes; the node that is dead keeps the other one of broker-b from leading."""

    trivet: CommandLine
    report: dict[str, Any]
    directory: Path

    def __call__(self, *arguments: str) -> Outcome:
        return self.trivet(*arguments, "--namesrv", self.report["namesrv"])

    def start(self) -> subprocess.Popen[bytes]:
        """Start the dead node."""
        settings = self.directory / "n101" / "broker.toml"
        return subprocess.Popen(
            [sys.executable, "-m", "trivet", "broker", "--config", str(settings)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], Path]]:
    directory = tmp_path_factory.mktemp("groups")
    command = f"cluster --dir {directory} --groups 2 --nodes 2 --port 0 --namesrv-port 0"
    with subprocess.Popen(
        [sys.executable, "-m", "trivet", *command.split(), "--ready-timeout", str(LIMIT_S)],
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith(b"READY "), line
            report = json.loads(line.removeprefix(b"READY "))
            _fill(report["namesrv"])
            os.kill(next(node["pid"] for node in report["nodes"] if node["id"] == "n101"), signal.SIGKILL)
            yield report, directory
        finally:
            process.terminate()


def _fill(name_server: str) -> None:
    """A message in each group, which a consumer group has given up."""
    created = ["topic", "create", "Orders", "--queues", "1", "--namesrv", name_server]
    subprocess.run([sys.executable, "-m", "trivet", *created], check=True, stdout=subprocess.DEVNULL)
    used: set[str] = set()
    with Producer(name_server, group="senders", send_timeout_s=LIMIT_S) as producer:
        while len(used) < 2:
            used.add(producer.send(Message("Orders", b"one")).queue.broker_name)
    with Consumer(name_server, group="readers", topics="Orders", start="first") as consumer:
        seen: set[str] = set()
        while seen != used:
            message = consumer.poll(LIMIT_S)
            assert message is not None
            seen.add(message.queue.broker_name)
            consumer.send_back(message, delay_level=-1)


@pytest.fixture
def trivet(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@pytest.fixture
def wounded(trivet: CommandLine, groups: tuple[dict[str, Any], Path]) -> Wounded:
    """Those groups, now that the name server knows of no leader of broker-b."""
    wounded = Wounded(trivet, *groups)
    while not json.loads(wounded("topic", "list", "--json").out)["missing"]:
        pass
    return wounded


@pytest.mark.parametrize("command", QUESTIONS)
def test_what_the_other_group_has_is_shown(wounded: Wounded, command: str) -> None:
    outcome = wounded(*command.split())
    assert QUESTIONS[command] in outcome.out
    if command.startswith("top "):
        assert (outcome.exit_code, outcome.err) == (0, "")
        return
    assert outcome.exit_code == 1
    assert outcome.complaint.startswith("trivet: group broker-b is missing: ")
    assert "broker-b/" not in outcome.out


@pytest.mark.in_turn
def test_tail_takes_up_the_group_when_it_has_a_leader(wounded: Wounded) -> None:
    """What it lacked is printed then, too, and it has failed in nothing."""
    options = ["--since", "1h", "--count", "2", "--timeout", str(LIMIT_S), "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "trivet", "tail", "Orders", *options, "--namesrv", wounded.report["namesrv"]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        assert tail.stderr.readline().startswith("trivet: group broker-b is missing: ")
        brokers = [json.loads(tail.stdout.readline())["broker"]]
        again = wounded.start()
        try:
            brokers += [json.loads(line)["broker"] for line in tail.stdout]
            assert tail.wait(LIMIT_S) == 0
            assert brokers == ["broker-a", "broker-b"]
            while json.loads((listed := wounded("topic", "list", "--json")).out)["missing"]:
                pass
            assert (listed.exit_code, listed.err) == (0, "")
        finally:
            again.terminate()
            again.wait(LIMIT_S)
