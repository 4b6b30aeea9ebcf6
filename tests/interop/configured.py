"""Servers from configuration files of their own, for what ``trivet cluster`` does not set.

Several name servers, TLS, accounts, IPv6, short delay levels. Started and stopped as an operator would
(``trivet namesrv --config``, ``trivet broker --config``); whether they serve is asked with ``trivet status``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.interop.cluster import HOST, READY_LIMIT_S, Node, free_base_port, wait_for_leader
from tests.interop.processes import Child, wait_until

Settings = Mapping[str, object]
ROOT = Path(__file__).resolve().parents[2]
TRIVET = str(Path(sys.executable).with_name("trivet"))
DATA_FILE_BYTES = 16 << 20
COMMAND_LIMIT_S = 120
STOP_LIMIT_S = 240
"""Of a stop in order, lingering included."""


class ConfiguredCluster:
    """Name servers and one group of brokers; every table of `broker` is added to each broker's configuration.
    `before_start` is called with each of these.

    `environment` is how Trivet's own commands reach it (TRIVET_TLS_CA, TRIVET_ACCESS_KEY, ...); `code` is the directory
    of the release that brokers are of.
    """

    kind = "trivet"

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 1,
        name_servers: int = 1,
        host: str = HOST,
        broker: Mapping[str, Settings] | None = None,
        name_server: Settings | None = None,
        environment: Mapping[str, str] | None = None,
        code: Path = ROOT,
        before_start: Callable[[Path], None] = lambda config: None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._environment = environment or {}
        self._servers: dict[str, Child] = {}
        self.store = folder / "n0"
        """Where the first node keeps what it stores."""
        base = free_base_port(name_servers + 2 * nodes, host)
        ports = iter(range(base, base + name_servers + 2 * nodes))
        self.name_servers = [_address(host, next(ports)) for _ in range(name_servers)]
        self.name_server = ";".join(self.name_servers)
        listen = {f"n{number}": _address(host, next(ports)) for number in range(nodes)}
        peers = {name: _address(host, next(ports)) for name in listen}
        for number, address in enumerate(self.name_servers):
            path = folder / f"namesrv-{number}.toml"
            kept = {"kv_config_path": str(folder / f"namesrv-{number}" / "kvConfig.json")}
            path.write_text(to_toml({"": {"listen": address, **kept, **(name_server or {})}}))
        for name, address in listen.items():
            tables: dict[str, Settings] = {
                "node": {"id": name, "listen": address, "name_servers": self.name_servers},
                "raft": {"peers": peers},
                "storage": {"path": str(folder / name), "data_file_bytes": DATA_FILE_BYTES},
            }
            for table, settings in (broker or {}).items():
                tables[table] = {**tables.get(table, {}), **settings}
            (folder / f"{name}.toml").write_text(to_toml(tables))
            before_start(folder / f"{name}.toml")
        try:
            for number in range(name_servers):
                self.start(f"namesrv-{number}")
            self.nodes: Sequence[Node] = [
                Node(name, self.start(name, code).pid, address) for name, address in listen.items()
            ]
            wait_until(self._serves, READY_LIMIT_S, "the group registered", interval_s=0.5)
        except BaseException:
            self.stop()
            raise

    def leader(self) -> Node:
        return wait_for_leader(self.name_server.partition(";")[0], self.nodes)

    def start(self, name: str, code: Path = ROOT) -> Child:
        """Starts the server of configuration ``name`` (``namesrv-0``, ``n1``), for the first time or again.

        ``code`` is the directory of the release to start.
        """
        kind = "namesrv" if name.startswith("namesrv") else "broker"
        argv = [sys.executable, "-m", "trivet", kind, "--config", str(self._folder / f"{name}.toml")]
        env = {"PYTHONPATH": str(code), "PYTHONSAFEPATH": "1"}
        self._servers[name] = Child(argv, log=self._folder / f"{name}.log", env=env, cwd=self._folder)
        return self._servers[name]

    def stop_in_order(self, name: str) -> None:
        """Asks the server to stop; returns once it has ended, with status 0."""
        server = self._servers[name]
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_for_end(STOP_LIMIT_S) == 0, server.tail()

    def kill(self, name: str) -> None:
        """SIGKILL; returns once the process is gone."""
        self._servers[name].kill()

    def trivet(self, *words: str) -> str:
        """Runs one of Trivet's own commands against the group and gives what it printed."""
        done = self._run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stop(self) -> None:
        for name in sorted(self._servers):  # brokers before name servers: they unregister
            self._servers[name].interrupt()
        self._servers.clear()

    def statuses(self) -> list[dict[str, Any]]:
        """What `trivet status --json` says of each node that is registered; empty while one does not answer."""
        done = self._run("status", "--json")
        return list(json.loads(done.stdout)["nodes"]) if done.returncode == 0 else []

    def _serves(self) -> bool:
        return {node["node"] for node in self.statuses()} == {node.id for node in self.nodes}

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [TRIVET, *words, "--namesrv", self.name_server],
            check=False,
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            env={**os.environ, **self._environment},
        )


def to_toml(tables: Mapping[str, Settings]) -> str:
    """TOML of tables of plain values; the table "" is the top of the file."""
    parts = []
    for table, settings in tables.items():
        parts += [f"[{table}]"] if table else []
        parts += [f"{key} = {_value(value)}" for key, value in settings.items()]
    return "\n".join(parts) + "\n"


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
