"""The commands of an operator against one real group: each is called once, and what --json prints is what docs/cli.md
says."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from broker.client.consuming.consumer import Consumer
from tests.cli.conftest import CommandLine, Outcome
from tests.cluster.support import LIMIT_S

pytestmark = pytest.mark.cluster

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"


def documented() -> dict[str, list[set[str]]]:
    """The fields of each command's output, and of what it lists, by docs/cli.md."""
    section = DOCUMENT.read_text().partition("## What --json prints")[2].partition("\n## ")[0]
    found: dict[str, list[set[str]]] = {}
    for name, fields in re.findall(r"^\| `?([a-z ]+?)`? \| (`.*) \|$", section, re.MULTILINE):
        found[name] = [set(re.findall(r"`(\w+)`", part)) for part in fields.split(", each with ")]
    return found


class Operator:
    """The command line in this process, against one name server."""

    def __init__(self, run: CommandLine, name_server: str) -> None:
        self._run = run
        self._name_server = name_server
        self._documented = documented()

    def run(self, *arguments: str) -> Outcome:
        """How a command ends."""
        return self._run(*arguments, "--namesrv", self._name_server)

    def says(self, *arguments: str, exit_code: int = 0) -> str:
        """What a command prints; it must end with that exit code."""
        server = [] if arguments[0] == "acl" else ["--namesrv", self._name_server]
        outcome = self._run(*arguments, *server)
        assert outcome.exit_code == exit_code, outcome.err
        return outcome.out if exit_code != 2 else outcome.complaint

    def json(self, *arguments: str, exit_code: int = 0) -> Any:
        """What a command prints with --json; its fields must be those that are documented."""
        found = json.loads(self.says(*arguments, "--json", exit_code=exit_code))
        fields = self._documented.get(" ".join(arguments[:2])) or self._documented.get(arguments[0])
        if fields is not None:
            assert set(found) == fields[0], arguments
            for inner in fields[1:]:
                lists = [value for value in found.values() if isinstance(value, list) and value]
                listed = next(value for value in lists if isinstance(value[0], dict))
                assert all(set(one) == inner for one in listed), arguments
        return found

    def lines(self, *arguments: str) -> list[dict[str, Any]]:
        """Messages, one a line."""
        found = [json.loads(line) for line in self.says(*arguments, "--json").splitlines()]
        bodies = {"body", "body_base64", "damaged"}
        (message,) = self._documented["a message"]
        assert all(set(one) - bodies == message - bodies for one in found)
        return found


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One group for all tests, which share it."""
    command = [sys.executable, "-m", "trivet", "cluster", "--dir", str(tmp_path_factory.mktemp("group"))]
    ports = ["--port", "0", "--namesrv-port", "0", "--ready-timeout", str(LIMIT_S)]
    with subprocess.Popen([*command, *ports], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.startswith(b"READY "), line
            yield json.loads(line.removeprefix(b"READY "))["namesrv"]
        finally:
            process.terminate()


@pytest.fixture
def operator(trivet: CommandLine, name_server: str) -> Operator:
    return Operator(trivet, name_server)


@pytest.fixture
def trivet(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


def give_up(name_server: str, group: str, topic: str, count: int) -> None:
    """Has a consumer read so many messages and give them up."""

    async def main() -> None:
        with trio.fail_after(LIMIT_S):
            async with Consumer(name_server, group=group, topics=topic, start="first") as consumer:
                for _ in range(count):
                    await consumer.send_back(await anext(consumer), delay_level=-1)
                await consumer.commit()

    trio.run(main)


def test_dead_letters_from_the_first_to_the_last_of_them(operator: Operator, name_server: str) -> None:
    operator.says("topic", "create", "Orders", "--queues", "2")
    operator.says("produce", "Orders", "1", "2", "3", "--tag", "paid", "--key", "k")
    give_up(name_server, "billing", "Orders", 3)
    (listed,) = operator.json("dlq", "list")["groups"]
    assert (listed["group"], listed["kept"], listed["waiting"]) == ("billing", 3, 3)
    shown = operator.lines("dlq", "show", "billing")
    assert sorted(message["body"] for message in shown) == ["1", "2", "3"]

    way = operator.json("message", "trace", "Orders", shown[0]["message_id"])
    assert [step["what"] for step in way["steps"]] == ["stored", "dead letter"]
    assert way["message"]["body"] == shown[0]["body"]
    assert [(one["group"], one["state"]) for one in way["groups"]] == [("billing", "consumed")]

    assert "say so with --yes" in operator.says("dlq", "redrive", "billing", exit_code=2)
    assert operator.json("dlq", "redrive", "billing", "--yes") == {
        "sent": 3,
        "left": 0,
        "passed_over": 0,
        "missing": [],
    }
    again = operator.lines("message", "find", "%RETRY%billing")
    assert sorted(message["body"] for message in again) == ["1", "2", "3"]
    assert operator.json("consumer", "lag", "billing", "--max", "2", exit_code=1)["lag"] == 3
    assert operator.json("dlq", "purge", "billing", "--yes")["deleted"] == 3
    assert operator.says("dlq", "show", "billing", exit_code=1) == ""


@pytest.mark.parametrize(
    ("command", "exit_code", "said"),
    [
        ("dlq show nobody", 1, "consumer group 'nobody' has no dead letters"),
        ("dlq redrive nobody", 1, "consumer group 'nobody' has no dead letters"),
        ("dlq purge nobody", 1, "consumer group 'nobody' has no dead letters"),
        (
            "topic move TBW102 --from broker-a --to nowhere --yes",
            1,
            "group 'nowhere': no such group is registered",
        ),
        ("topic create x --groups nowhere", 1, "group 'nowhere': no such group is registered"),
        ("group status --group nowhere", 1, "group 'nowhere': no such group is registered"),
        ("message find TBW102 --offset -3", 2, "0 or more"),
        ("tail Wrong --sql a====b --timeout 20", 1, "no SQL92 condition"),
        ("consumer reset g TBW102 --to latest --broker nowhere --yes", 1, "no such group is registered"),
    ],
)
def test_what_cannot_be_is_said_at_once(operator: Operator, command: str, exit_code: int, said: str) -> None:
    if command.startswith("tail"):
        operator.says("topic", "create", "Wrong", "--queues", "1", "--yes")
    outcome = operator.run(*command.split())
    assert (outcome.exit_code, outcome.out) == (exit_code, "")
    assert said in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_a_group_is_shown_sent_elsewhere_and_deleted(operator: Operator, name_server: str) -> None:
    operator.says("topic", "create", "Parcels", "--queues", "1")
    operator.says("produce", "Parcels", "a", "b", "c", "d")
    give_up(name_server, "post", "Parcels", 4)
    names = [group["name"] for group in operator.json("consumer", "list")["groups"]]
    assert "post" in names
    found = operator.json("consumer", "describe", "post")
    assert (found["lag"], found["members"], found["conflicts"]) == (0, [], [])
    preview = operator.json("consumer", "reset", "post", "Parcels", "--by", "-3", "--dry-run")
    (queue,) = preview["queues"]
    assert (queue["from_offset"], queue["to_offset"], queue["repeated"], preview["done"]) == (4, 1, 3, False)
    assert operator.json("consumer", "lag", "post")["lag"] == 0, "a preview changes nothing"
    operator.json("consumer", "reset", "post", "Parcels", "--by", "-3", "--yes")
    assert operator.json("consumer", "lag", "post")["lag"] == 3
    assert "post" in operator.says("consumer", "list")
    operator.says("consumer", "delete", "post", "--dead-letters", "--yes")
    assert "post" not in operator.says("consumer", "list")
    operator.says("consumer", "describe", "post", exit_code=1)


def test_messages_are_found_shown_and_followed(operator: Operator) -> None:
    operator.says("topic", "create", "Letters", "--queues", "2")
    operator.says("produce", "Letters", "x", "--tag", "red", "--key", "k1")
    operator.says("produce", "Letters", "y", "--tag", "blue", "--key", "k2")
    (found,) = operator.lines("message", "find", "Letters", "--key", "k2")
    assert found["body"] == "y"
    shown = operator.says("message", "show", "Letters", found["message_id"])
    assert shown.endswith("\ny\n")
    operator.says("message", "find", "Letters", "--key", "none", exit_code=1)
    follow = ("tail", "Letters", "--since", "1h", "--count", "1", "--timeout", "60")
    assert [message["body"] for message in operator.lines(*follow, "--tag", "red")] == ["x"]
    assert [message["body"] for message in operator.lines(*follow, "--sql", "TAGS = 'blue'")] == ["y"]
    operator.says("tail", "Letters", "--count", "1", "--timeout", "0.2", exit_code=1)


def test_what_waits_and_who_is_connected(operator: Operator, name_server: str) -> None:
    operator.says("topic", "create", "Later", "--queues", "1")
    operator.says("produce", "Later", "level", "--delay-level", "18")
    operator.says("produce", "Later", "time", "--delay", "3600")
    found = operator.json("message", "waiting")
    assert (found["delayed"], found["half"]) == (2, 0)
    assert [(one["kind"], one["message"]["body"]) for one in found["messages"]] == [
        ("time", "time"),
        ("level", "level"),
    ]
    assert "1 at level 18" in operator.says("message", "waiting")

    async def connected() -> None:
        async with Consumer(name_server, group="present", topics="Later") as consumer:
            await consumer.wait_assigned()
            for order in ("consumer delete present", "topic delete Later"):
                words = [*order.split(), "--yes", "--namesrv", name_server]
                refused = await trio.run_process(
                    [sys.executable, "-m", "trivet", *words], capture_stderr=True, check=False
                )
                assert (refused.returncode, refused.stderr.endswith(b"; --force does it all the same\n")) == (
                    1,
                    True,
                )
            done = await trio.run_process(
                [sys.executable, "-m", "trivet", "client", "list", "--json", "--namesrv", name_server],
                capture_stdout=True,
            )
        (client,) = [one for one in json.loads(done.stdout)["clients"] if one["group"] == "present"]
        (fields,) = documented()["client list"][1:]
        assert set(client) == fields
        assert (client["role"], client["language"]) == ("consumer", "PYTHON")

    trio.run(connected)


def test_a_topic_is_altered_and_deleted(operator: Operator) -> None:
    operator.says("topic", "create", "Notes", "--queues", "2")
    operator.json("topic", "alter", "Notes", "--queues", "3", "--permission", "read", "--yes")
    (broker,) = operator.json("topic", "stats", "Notes")["brokers"]
    assert (broker["read_queues"], broker["may_read"], broker["may_write"]) == (3, True, False)
    operator.says("topic", "delete", "Notes", "--yes")
    operator.says("topic", "stats", "Notes", exit_code=1)


def test_settings_figures_and_the_doctor(operator: Operator) -> None:
    operator.json("config", "set", "longPollingEnable=false", "--yes")
    changed = operator.json("config", "get", "longPollingEnable")["settings"]
    assert [(one["value"], one["origin"], one["changeable"]) for one in changed] == [
        ("false", "run time", True)
    ] * 3
    operator.says("config", "set", "brokerName=x", "--yes", exit_code=1)
    operator.says("config", "get", "noSuchSetting", exit_code=1)
    figures = operator.json("top", "--count", "1", "--interval", "0.1")
    assert sorted(node["role"] for node in figures["nodes"]) == ["follower", "follower", "leader"]
    assert operator.json("status")["healthy"]
    assert [member["vote"] for member in operator.json("group", "status")["members"]] == [True] * 3
    assert "TBW102" not in operator.json("topic", "list")["topics"]
    diagnosis = operator.json("doctor")
    assert {finding["severity"] for finding in diagnosis["findings"]} <= {"note", "warning"}
    assert "nothing wrong with: name servers, nodes, names, addresses, replicas" in operator.says("doctor")


def test_orders_that_look_first_are_refused_without_a_terminal(
    operator: Operator, name_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that look for nothing before they ask are in tests/cli/test_orders.py."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    operator.says("topic", "create", "Asked", "--queues", "2")
    operator.says("produce", "Asked", "1", "2")
    give_up(name_server, "asked", "Asked", 2)
    assert operator.says("topic", "create", "Asked", "--queues", "2") == "topic Asked with 2 queues\n"
    orders = ["topic create Asked --queues 3", "consumer reset asked Asked --to earliest"]
    for order in [*orders, "dlq redrive asked", "dlq purge asked"]:
        assert "say so with --yes" in operator.says(*order.split(), "--json", exit_code=2)
    assert len(operator.json("topic", "describe", "Asked")["queues"]) == 2
    assert operator.json("consumer", "lag", "asked")["lag"] == 0
    assert len(operator.lines("dlq", "show", "asked")) == 2
    assert operator.json("topic", "create", "Asked", "--queues", "3", "--yes")["missing"] == []
    assert len(operator.json("topic", "describe", "Asked")["queues"]) == 3
