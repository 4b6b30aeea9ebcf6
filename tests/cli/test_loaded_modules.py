"""What a command imports: the short ones must start fast, and a server keeps what it has loaded for as long as it
runs."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

# Loaded by these commands, each took longer than all the rest of the command, or a tenth of a server's memory.
_CALLED_OFTEN = (
    "trio",
    "asyncio",
    "numpy",
    "structlog",
    "ssl",
    "prometheus_client",
    "pyspark",
    "broker.shell",
)
_OF_SERVERS = (
    "cyclopts",
    "rich",
    "pygments",
    "prometheus_client",
    "lark",
    "h11",
    "zstandard",
    "broker.client",
)

_BROKER = """
[node]
listen = "127.0.0.1:{port}"
[storage]
path = "{path}"
[raft]
peers = {{ n0 = "127.0.0.1:{other}" }}
"""


def loaded(arguments: list[str]) -> tuple[int, set[str]]:
    """The exit code of a command line in a process of its own, and the modules there at its end."""
    script = (
        "import json, sys\n"
        "from broker.tools.cli import run\n"
        f"code = run({arguments!r})\n"
        "print(json.dumps([code, list(sys.modules)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    code, modules = json.loads(done.stdout.splitlines()[-1])
    return code, set(modules)


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["status", "--help"], ["consumer", "reset", "--help"], ["doctor", "--help"]],
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code, modules = loaded(arguments)
    assert code == 0
    assert not modules & {*_CALLED_OFTEN, "msgspec"}


def test_a_first_condition_loads_nothing_heavy() -> None:
    """It is read in a turn, in which everybody else waits: lark took 0.1 s of it."""
    script = (
        "import sys\n"
        "from broker.reading.subscriptions import parse_filter\n"
        "before = set(sys.modules)\n"
        "parse_filter('SQL92', 'a > 5', sql_filters=True)\n"
        "loaded = set(sys.modules) - before - set(sys.builtin_module_names)\n"  # those are in the interpreter
        "print(*{name.partition('.')[0] for name in loaded})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"broker", "log"}


def test_status_asks_without_an_event_loop() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    code, modules = loaded(["status", "--namesrv", f"127.0.0.1:{port}"])
    assert code == 1
    assert "broker.tools.cluster.asking" in modules
    assert not modules & set(_CALLED_OFTEN)


@pytest.mark.parametrize(
    ("server", "settings", "loop"),
    [
        ("namesrv", 'listen = "127.0.0.1:{port}"\n', "broker.shell.name_server"),
        ("broker", _BROKER, "broker.shell.broker_server"),
    ],
)
def test_servers_load_what_they_need(server: str, settings: str, loop: str, tmp_path: Path) -> None:
    """A server that finds its port taken has loaded all that one loads until it serves."""
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as other:
        ports = {"port": taken.getsockname()[1], "other": other.getsockname()[1]}
        config = tmp_path / "settings.toml"
        config.write_text(settings.format(path=tmp_path / "store", **ports))
        code, modules = loaded([server, "--config", str(config)])
    assert code == 1
    assert loop in modules
    assert not modules & set(_OF_SERVERS)
    if server == "namesrv":  # which has no log
        assert not modules & {"numpy", "raft", "log.entries.entry_log", "broker.node.node"}
