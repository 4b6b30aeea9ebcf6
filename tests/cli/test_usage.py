"""Help, wrong usage and servers that are not there: exit codes and one clear line each."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client.errors import BrokerError, ClientClosed
from broker.tools.cli.failures import Failure, describe
from tests.cli.conftest import RUN_LIMIT_S, CommandLine, run_process

COMMANDS = [
    "namesrv",
    "broker",
    "cluster",
    "console",
    "topic",
    "topic create",
    "topic list",
    "topic describe",
    "produce",
    "consume",
    "status",
    "demo",
    "analyze",
    "simulate",
    "chaos",
    "group",
    "group status",
    "group add",
    "group promote",
    "group remove",
    "group transfer",
    "bench",
    "migrate",
    "topic stats",
    "topic alter",
    "topic delete",
    "consumer",
    "consumer list",
    "consumer describe",
    "consumer lag",
    "consumer reset",
    "consumer delete",
    "dlq",
    "dlq list",
    "dlq show",
    "dlq redrive",
    "dlq purge",
    "message",
    "message find",
    "message show",
    "message trace",
    "message waiting",
    "client",
    "client list",
    "tail",
    "top",
    "doctor",
    "config",
    "config get",
    "config set",
    "acl",
    "acl list",
    "acl show",
    "acl check",
    "acl add",
    "acl update",
    "acl remove",
    "acl status",
    "completion",
]


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def refused_port() -> Iterator[int]:
    """A port on which nobody listens, kept from others meanwhile."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(trivet: CommandLine, command: str) -> None:
    outcome = trivet(*command.split(), "--help")
    assert outcome.exit_code == 0
    assert f"trivet {command}" in outcome.out
    assert outcome.err == ""


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("cluster", "READY and a JSON"),
        ("consume", '"body_base64"'),
        ("demo", "3 the traces were not judged"),
        ("chaos", "given empty disks"),
        ("group status", "exit code is 1 if a voter is silent"),
    ],
)
def test_help_tells_more_than_the_summary(trivet: CommandLine, command: str, said: str) -> None:
    outcome = trivet(*command.split(), "--help")
    assert said in " ".join(outcome.out.split())


def test_help_names_every_command(trivet: CommandLine) -> None:
    out = trivet("--help").out
    for command in COMMANDS:
        assert f" {command.split()[0]} " in out


def test_version(trivet: CommandLine) -> None:
    outcome = trivet("--version")
    assert outcome.exit_code == 0
    assert outcome.out.strip()[0].isdigit()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["clutser"], "clutser"),
        (["cluster"], "--dir"),
        (["cluster", "--dir", "x", "--nodes", "0"], "--nodes 0: from 1 to 9"),
        (["cluster", "--dir", "x", "--nodes", "10"], "--nodes 10: from 1 to 9"),
        (["cluster", "--dir", "x", "--nodes", "three"], '"three"'),
        (["cluster", "--dir", "x", "--port", "70000"], "--port 70000: a port from 0"),
        (["cluster", "--dir", "x", "--flush", "never"], "never"),
        (["namesrv", "--listen", "9876"], "--listen 9876: needs the form host:port"),
        (["namesrv", "--bogus"], "--bogus"),
        (["broker"], "--config"),
        (["status", "--namesrv", "here"], "--namesrv here: needs the form host:port"),
        (["status", "--namesrv", ";"], "--namesrv: at least one HOST:PORT"),
        (["topic", "create", "T", "--queues", "0"], "--queues 0: from 1 to 1024"),
        (["topic", "create", ""], "the specified topic is blank"),
        (["topic", "create", "a b"], "'a b' contains illegal characters"),
        (["topic", "create", "A", "B"], "too many arguments: B (see --help)"),
        (["status", "--namesrv", "http://127.0.0.1:9876"], "http://127.0.0.1:9876: needs the form host:port"),
        (["produce"], "TOPIC"),
        (["produce", "T", "m", "--file", "x"], "not both"),
        (["produce", "T", "m", "--in-flight", "0"], "--in-flight 0"),
        (["produce", "T", "m", "--delay-level", "19"], "--delay-level 19: from 0 to 18"),
        (["consume", "T", "--count", "0"], "--count 0: at least 1"),
        (["consumer", "reset", "g", "T"], "one of --to, --at, --offset and --by"),
        (["consumer", "reset", "g", "T", "--at", "yesterday"], "--at yesterday: a time such as"),
        (["consumer", "reset", "g", "T", "--offset", "-1"], "offset -1: 0 or more"),
        (["consumer", "delete", "g"], "say so with --yes"),
        (["dlq", "redrive", "g", "--rate", "0"], "--rate 0: messages per second"),
        (["dlq", "redrive", "g", "--limit", "0"], "--limit 0: at least 1"),
        (["topic", "alter", "T"], "at least one of --queues"),
        (["topic", "delete", "T"], "say so with --yes"),
        (["message", "find", "T", "--limit", "0"], "--limit 0: at least 1"),
        (["message", "find", "T", "--since", "1x"], "--since 1x: a time such as"),
        (["tail", "T", "--tags", "a", "--sql", "b > 1"], "not both"),
        (["top", "--interval", "0"], "--interval 0: seconds"),
        (["config", "set"], "at least one NAME=VALUE"),
        (["config", "set", "brokerPermission"], "needs the form NAME=VALUE"),
        (["config", "set", "brokerPermission=6"], "say so with --yes"),
        (["acl", "check", "--file", "no-such-file"], "no-such-file: No such file"),
        (["completion", "tcsh"], "tcsh"),
        (
            ["topic", "move", "T", "--from", "a", "--to", "b", "--timeout", "-1"],
            "--timeout -1: seconds, 0 or more",
        ),
        (
            ["topic", "move", "T", "--from", "a", "--to", "b", "--settle", "nan"],
            "--settle nan: seconds, 0 or more",
        ),
        (["cluster", "--dir", "x", "--ready-timeout", "-1"], "--ready-timeout -1: seconds, more than 0"),
        (["cluster", "--dir", "x", "--writable"], "--writable is about the page of --console"),
        (["produce", "T", "--file", "no-such-file"], "--file no-such-file: no such file"),
        (["produce", "T", "b\udcff"], "is not UTF-8; bodies of other bytes come by --file"),
        (["topic", "describe", "\udcff"], "is not UTF-8"),
        (
            ["produce", "T", "m", "--deliver-at", "0001-01-01T00:00:00"],
            "--deliver-at 0001-01-01T00:00:00: a time",
        ),
        (["consumer", "reset", "g", "T", "--at", "99999999d"], "--at 99999999d: a time such as"),
        (["config", "set", "a=1", "a=2"], "a: given twice"),
        (["chaos", "--kills", "-1"], "--kills -1: from 0 to 10000"),
        (["analyze", "x", "--follow", "--settle", "nan"], "--settle nan: seconds, more than 0"),
        (["cluster", "--dir", __file__], "is no directory that can be used"),
        (["demo", "--input", "no-such-file"], "no-such-file: no such file"),
        (["analyze"], "at least one PATH"),
        (["analyze", "x", "--search-seconds=-1"], "--search-seconds -1: seconds, more than 0"),
        (["analyze", "x", "--search-memory", "0"], "--search-memory 0: MiB, more than 0"),
        (["bench", "--only", "Z"], "letters of ABCDEI"),
    ],
)
def test_wrong_usage(trivet: CommandLine, arguments: list[str], said: str) -> None:
    outcome = trivet(*arguments)
    assert outcome.exit_code == 2
    assert said.lower() in outcome.complaint.lower()
    assert outcome.out == ""


def test_broker_refuses_its_configuration(trivet: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=a\nflushDiskTyp=SYNC_FLUSH\n")
    outcome = trivet("broker", "--config", str(path))
    assert outcome.exit_code == 2
    assert outcome.complaint == (f"trivet: {path}:2: flushDiskTyp: unknown key; did you mean flushDiskType?")
    assert trivet("broker", "--config", str(tmp_path / "absent.toml")).exit_code == 2


def test_an_analysis_that_cannot_be_loaded_is_no_verdict(
    trivet: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1 would be "violated"."""
    monkeypatch.setitem(sys.modules, "spark_analysis.checking.search", None)
    outcome = trivet("analyze", str(tmp_path))
    assert outcome.exit_code == 4
    assert "the analysis cannot be loaded; no verdict: " in outcome.complaint


@pytest.mark.parametrize("command", ["demo", "chaos"])
def test_a_run_that_could_not_be_judged_does_not_begin(
    trivet: CommandLine, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pyarrow" else name)
    monkeypatch.setattr("trio.run", lambda *_: pytest.fail("begun"))
    outcome = trivet(command, "--dir", str(tmp_path / "run"))
    assert outcome.exit_code == 2
    assert "pyarrow is not installed: pip install" in outcome.complaint
    assert "--no-analysis" in outcome.complaint
    assert not (tmp_path / "run").exists()


def test_a_restore_that_cannot_be_asks_nothing(trivet: CommandLine, tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(f'[storage]\npath = "{tmp_path / "store"}"\n')
    outcome = trivet("restore", str(tmp_path / "absent"), "--config", str(config))
    assert outcome.exit_code == 1
    assert outcome.complaint.endswith("absent is no backup: there is no manifest in it")


@pytest.mark.cluster
def test_a_cluster_that_is_interrupted_at_its_start_says_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trivet", "cluster", "--dir", str(tmp_path)]
    with subprocess.Popen(
        [*command, "--namesrv-port", "0", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            while process.poll() is None and not (tmp_path / "n2" / "broker.log").exists():
                time.sleep(0.01)  # the last one is launched now, and cannot listen to signals yet
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=RUN_LIMIT_S)
        finally:
            process.kill()
    assert (process.returncode, output) == (0, b"")


def test_an_analysis_of_nothing_is_told_as_every_command_tells_it(
    trivet: CommandLine, tmp_path: Path
) -> None:
    outcome = trivet("analyze", str(tmp_path / "absent.trace"))
    assert outcome.exit_code == 2
    assert "absent.trace" in outcome.complaint


def test_name_server_on_a_taken_port(taken_port: int) -> None:
    outcome = run_process(["namesrv", "--listen", f"127.0.0.1:{taken_port}"])
    assert outcome.exit_code == 1
    assert f"127.0.0.1:{taken_port}" in outcome.complaint
    assert "in use" in outcome.complaint


def test_broker_on_a_taken_port(taken_port: int, tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(f'[node]\nlisten = "127.0.0.1:{taken_port}"\n[storage]\npath = "{tmp_path / "store"}"\n')
    outcome = run_process(["broker", "--config", str(path)])
    assert outcome.exit_code == 1
    assert f"127.0.0.1:{taken_port}" in outcome.complaint
    assert "in use" in outcome.complaint


def test_cluster_on_a_taken_port(taken_port: int, tmp_path: Path) -> None:
    outcome = run_process(
        ["cluster", "--dir", str(tmp_path), "--namesrv-port", str(taken_port), "--port", "0"]
    )
    assert outcome.exit_code == 1
    assert outcome.complaint == f"trivet: port {taken_port} of 127.0.0.1 (the name server's) is in use"


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["topic", "list"],
        ["topic", "describe", "T"],
        ["topic", "create", "T"],
        ["consumer", "list"],
        ["dlq", "purge", "g", "--yes"],
        ["message", "find", "T"],
        ["tail", "T"],
        ["top"],
        ["config", "get"],
    ],
)
def test_unreachable_name_server(trivet: CommandLine, refused_port: int, arguments: list[str]) -> None:
    outcome = trivet(*arguments, "--namesrv", f"127.0.0.1:{refused_port}")
    assert outcome.exit_code == 1
    assert f"127.0.0.1:{refused_port}" in outcome.complaint


def test_produce_without_a_name_server(trivet: CommandLine, refused_port: int) -> None:
    outcome = trivet("produce", "T", "m", "--timeout", "2", "--namesrv", f"127.0.0.1:{refused_port}")
    assert outcome.exit_code == 1
    assert f"127.0.0.1:{refused_port}" in outcome.complaint


def test_demo_deletes_nothing_that_is_not_its_own(trivet: CommandLine, tmp_path: Path) -> None:
    treasure = tmp_path / "thesis.txt"
    treasure.write_text("years of work")
    outcome = trivet("demo", "--dir", str(tmp_path))
    assert outcome.exit_code == 2
    assert "files that no demo left there" in outcome.complaint
    assert treasure.read_text() == "years of work"


@pytest.mark.parametrize("seconds", ["-1", "0", "nan", "inf"])
def test_a_send_needs_a_time_limit(trivet: CommandLine, seconds: str) -> None:
    outcome = trivet("produce", "T", "body", f"--timeout={seconds}")
    assert outcome.exit_code == 2
    assert "--timeout" in outcome.err
    assert "more than 0" in outcome.err


def test_a_peer_address_needs_a_port(trivet: CommandLine) -> None:
    outcome = trivet("group", "add", "n3", "--peer", "10.0.0.4")
    assert outcome.exit_code == 2
    assert "--peer 10.0.0.4: needs the form host:port" in outcome.err


def test_an_error_is_told_with_what_was_done_before_it() -> None:
    error = BrokerError(1, "not now", "127.0.0.1:2")
    error.add_note("changed before that at 127.0.0.1:1")
    assert describe(error) == Failure(f"{error}; changed before that at 127.0.0.1:1", 1)


def test_an_interruption_goes_before_what_comes_of_it() -> None:
    """A send that is under way may end with another failure once Ctrl-C has closed its client."""
    group = BaseExceptionGroup("", [ClientClosed("the client was closed"), KeyboardInterrupt()])
    assert describe(group) == Failure("interrupted", 130)
    assert describe(BaseExceptionGroup("", [KeyboardInterrupt(), AssertionError()])) is None


@pytest.fixture
def ctrl_c_is_heard() -> Iterator[None]:
    """Processes begun meanwhile hear SIGINT, which those of tests in the background of a script ignore as it does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_is_heard")
def test_interrupted_while_it_waits_for_lines() -> None:
    """Ctrl-C ends it in order, though a thread still waits for the terminal."""
    with socket.create_server(("127.0.0.1", 0)) as name_server:
        address = f"127.0.0.1:{name_server.getsockname()[1]}"
        producing = subprocess.Popen(
            [sys.executable, "-m", "trivet", "produce", "T", "--namesrv", address],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert producing.stdin is not None
        producing.stdin.write(b"first\n")
        producing.stdin.flush()
        connection, _ = name_server.accept()  # the first line is on its way, and the second one is waited for
        with connection:
            producing.send_signal(signal.SIGINT)
            return_code = producing.wait(timeout=RUN_LIMIT_S)  # its standard input stays open
        assert producing.stderr is not None
        told = producing.stderr.read()
        assert return_code == 130, told.decode()
        assert told in (b"", b"trivet: interrupted\n")
        producing.stdin.close()
        producing.stderr.close()
