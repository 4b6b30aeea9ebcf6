"""The commands that talk to a group, against a real one: topic, produce, consume, status, and the demonstration."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.abc import ReceiveStream

from tests.cluster.support import LIMIT_S, ready_cluster, wait_unregistered

pytestmark = pytest.mark.cluster


@dataclass(frozen=True)
class Outcome:
    """The exit code and the output of a command."""

    exit_code: int
    out: str
    err: str


class CommandLine:
    """Runs ``trivet`` processes against one name server."""

    def __init__(self, name_server: str) -> None:
        self.name_server = name_server

    async def __call__(self, *arguments: str, stdin: bytes = b"") -> Outcome:
        with trio.fail_after(LIMIT_S):
            done = await trio.run_process(
                [sys.executable, "-m", "trivet", *arguments, "--namesrv", self.name_server],
                stdin=stdin,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
        return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())

    async def json_lines(self, *arguments: str, stdin: bytes = b"") -> list[dict[str, object]]:
        """Its output as JSON, one document a line; it must succeed."""
        outcome = await self(*arguments, "--json", stdin=stdin)
        assert outcome.exit_code == 0, outcome.err
        return [json.loads(line) for line in outcome.out.splitlines()]


@pytest.fixture(scope="module")
def trivet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """Commands against one group for all tests that leave it whole; it is a command, too."""
    command = [sys.executable, "-m", "trivet", "cluster", "--dir", str(tmp_path_factory.mktemp("group"))]
    ports = ["--port", "0", "--namesrv-port", "0", "--ready-timeout", str(LIMIT_S)]
    with subprocess.Popen([*command, *ports], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.startswith(b"READY "), line
            yield CommandLine(json.loads(line.removeprefix(b"READY "))["namesrv"])
        finally:
            process.terminate()


async def test_a_message_there_and_back(trivet: CommandLine) -> None:
    before = (await trivet("topic", "list")).out.splitlines()
    created = await trivet.json_lines("topic", "create", "Greetings", "--queues", "3")
    told = {"topic": "Greetings", "queues": 3, "permission": "read-write", "ordered": False}
    assert created == [{**told, "groups": ["broker-a"], "missing": []}]
    assert (await trivet("topic", "list")).out.splitlines() == sorted([*before, "Greetings"])

    stored = await trivet.json_lines("produce", "Greetings", "hello", "wörld", "--tag", "t", "--key", "k")
    assert [line["status"] for line in stored] == ["OK", "OK"]
    from_lines = await trivet.json_lines("produce", "Greetings", "--order-by", "x", stdin=b"a\n\nb\xff\r\n")
    assert len(from_lines) == 2, "the empty line is no message"
    assert from_lines[0]["queue"] == from_lines[1]["queue"]

    read = await trivet.json_lines("consume", "Greetings", "--count", "4")
    bodies = sorted(str(line.get("body", line.get("body_base64"))) for line in read)
    assert bodies == ["Yv8=", "a", "hello", "wörld"]
    tagged = [line for line in read if line["tags"] == "t"]
    assert [line["keys"] for line in tagged] == [["k"], ["k"]]
    assert {line["message_id"] for line in read} == {line["message_id"] for line in [*stored, *from_lines]}

    nothing_left = await trivet("consume", "Greetings", "--count", "1", "--timeout", "0.5")
    assert (nothing_left.exit_code, nothing_left.out) == (1, "")
    assert nothing_left.err == "trivet: only 0 of 1 messages came\n"

    described = (await trivet.json_lines("topic", "describe", "Greetings"))[0]
    queues = described["queues"]
    assert isinstance(queues, list)
    assert sum(queue["messages"] for queue in queues) == 4


async def test_unknown_topic_and_refused_name(trivet: CommandLine) -> None:
    unknown = await trivet("topic", "describe", "Nowhere")
    assert unknown.exit_code == 1
    assert unknown.err.startswith("trivet: topic 'Nowhere'")
    assert len(unknown.err.splitlines()) == 1
    bad = await trivet("produce", "not/a/topic", "m")
    assert bad.exit_code == 2
    assert len(bad.err.splitlines()) == 1


async def status_once(
    trivet: CommandLine, holds: Callable[[dict[str, Any]], bool], *brokers: str, exit_code: int = 0
) -> dict[str, Any]:
    """Repeats ``trivet status`` until this holds of what it says: a busy machine may elect anew, or answer late."""
    with trio.fail_after(LIMIT_S):
        while True:
            outcome = await trivet("status", *brokers, "--json")
            found: dict[str, Any] = json.loads(outcome.out)
            if outcome.exit_code == exit_code and holds(found):
                return found


async def test_status_of_a_whole_and_of_a_wounded_group(tmp_path: Path) -> None:
    async with ready_cluster(tmp_path) as cluster:
        trivet = CommandLine(cluster.name_server_address)
        whole = await status_once(
            trivet,
            lambda found: (
                sorted(str(node["role"]) for node in found["nodes"]) == ["follower", "follower", "leader"]
            ),
        )
        assert whole["healthy"] is True
        nodes = whole["nodes"]
        assert sorted(node["node"] for node in nodes) == ["n0", "n1", "n2"]
        assert [node["error"] for node in nodes] == [None, None, None]
        assert all(node["lag"] is not None for node in nodes)

        leader = await cluster.leader()
        victim = next(node for node in cluster.nodes.values() if node is not leader)
        await cluster.kill(victim.id)
        await wait_unregistered(cluster, victim.id)
        wounded = await status_once(trivet, lambda found: bool(found["healthy"]))  # two of three serve
        missing = [node for node in wounded["nodes"] if node["error"] is not None]
        assert [node["node"] for node in missing] == [victim.id]

        await cluster.kill(leader.id)
        await wait_unregistered(cluster, leader.id)
        lost = await trivet("status")
        assert lost.exit_code == 1

        survivor = next(node for node in cluster.nodes.values() if node not in (leader, victim))
        asked = await status_once(
            trivet,
            lambda found: any(node["error"] is None for node in found["nodes"]),
            *(survivor.address, leader.address),
            exit_code=1,
        )
        assert asked["healthy"] is False
        assert len(asked["missing"]) == 1
        assert {one["group"] for one in asked["missing"]} == {nodes[0]["group"]}
        nodes = asked["nodes"]
        assert {node["address"]: node["node"] for node in nodes} == {
            leader.address: None,
            survivor.address: survivor.id,
        }
        assert {node["address"]: node["error"] is None for node in nodes} == {
            leader.address: False,
            survivor.address: True,
        }
        nonsense = await trivet("status", "n0")
        assert nonsense.exit_code == 2
        assert "n0: needs the form host:port" in nonsense.err


@pytest.mark.slow
async def test_demonstration(tmp_path: Path) -> None:
    """With the verdict, for which no Spark is started."""
    text = tmp_path / "text.txt"
    text.write_bytes(b"".join(b"line %d\n" % number for number in range(3000)))
    with trio.fail_after(LIMIT_S):
        done = await trio.run_process(
            [
                *(sys.executable, "-m", "trivet", "demo", "--input", str(text)),
                *("--dir", str(tmp_path / "demo"), "--json"),
            ],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()
    assert "judged in this process, without Spark" in done.stderr.decode()
    summary = json.loads(done.stdout)
    assert summary["verdict"] == "holds"
    assert summary["messages_sent"] + summary["messages_of_unknown_outcome"] == 3000
    assert summary["messages_read"] >= summary["messages_sent"]
    assert summary["killed"] != summary["new_leader"]
    assert summary["failover_ms"] > 0
    assert summary["entries_compared"] >= 3000
    traces = sorted(path.name for path in (tmp_path / "demo" / "traces").iterdir())
    assert traces == [
        *("consumer-0.trace", "consumer-1.trace", "consumer-2.trace"),
        *("driver.trace", "n0.trace", "n1.trace", "n2.trace", "producer.trace"),
    ]


async def _line(stream: ReceiveStream | None) -> str:
    """The next line of a process; its text and its line end may come in writes of their own."""
    assert stream is not None
    line = b""
    with trio.fail_after(LIMIT_S):
        while not line.endswith(b"\n"):
            some = await stream.receive_some(1)
            assert some, f"it ended after {line!r}"
            line += some
    return line.decode()


async def test_a_reader_hears_that_there_is_no_such_topic_and_waits_for_it(trivet: CommandLine) -> None:
    command = [sys.executable, "-m", "trivet", "consume", "Later", "--count", "1"]
    reader = await trio.lowlevel.open_process(
        [*command, "--namesrv", trivet.name_server],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        async with reader.stderr, reader.stdout:  # type: ignore[union-attr]
            said = await _line(reader.stderr)
            assert said.startswith("trivet: consumer group TRIVET_CLI does not read topic Later yet: ")
            await trivet.json_lines("topic", "create", "Later")
            await trivet.json_lines("produce", "Later", "here")
            assert await _line(reader.stdout) == "here\n"
        with trio.fail_after(LIMIT_S):
            assert await reader.wait() == 0
    finally:
        reader.kill()


async def test_members_by_command(tmp_path: Path) -> None:
    async with ready_cluster(tmp_path) as cluster:
        trivet = CommandLine(cluster.name_server_address)
        (joined,) = cluster.layout.add_machine()
        cluster.start(joined.id)
        assert (
            await trivet("group", "add", joined.id, "--peer", joined.peer_address, "--yes")
        ).exit_code == 0
        promoted = await trivet("group", "promote", joined.id, "--yes")
        assert promoted.out == f"{joined.id} is a voter\n", promoted.err
        again = await trivet("group", "promote", joined.id, "--yes")
        assert again.exit_code == 1
        assert "n3 already is a member of that kind" in again.err
        assert (await trivet("group", "transfer", joined.id, "--yes")).out == f"{joined.id} leads\n"
        assert (await trivet("group", "remove", "n0", "--yes")).exit_code == 0
        (status,) = await trivet.json_lines("group", "status")
        assert status["leader"] == joined.id
        members = status["members"]
        assert isinstance(members, list)
        assert [member["node"] for member in members] == ["n1", "n2", "n3"]
        unknown = await trivet("group", "remove", "n0", "--group", "broker-z", "--yes")
        assert unknown.exit_code == 1
        assert "broker-a" in unknown.err
