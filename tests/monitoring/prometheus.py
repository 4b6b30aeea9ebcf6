"""Prometheus itself, as Debian packages it, for tests: its checker and, on the loopback, its server."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from broker.tools.cluster.ports import PortReservations

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"
ALERTS = MONITORING / "alerts.yml"
DASHBOARD = MONITORING / "dashboard.json"
LIMIT_S = 120

needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="Prometheus is not installed (Debian: apt-get install prometheus)",
)


def promtool(*arguments: str) -> None:
    """Runs promtool, which must find nothing wrong."""
    found = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr


class Server:
    """A running Prometheus."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str, **parameters: str) -> object:
        """Asks its HTTP interface. Raises `OSError`; an answer that is no success is one, too."""
        with urlopen(
            f"http://{self.address}/api/v1/{path}?{urlencode(parameters)}", timeout=LIMIT_S
        ) as answer:
            return json.load(answer)["data"]


@contextlib.contextmanager
def serving(configuration: Path, data: Path) -> Iterator[Server]:
    """Runs Prometheus with that configuration; its data goes into a directory."""
    ports = PortReservations("127.0.0.1")
    address = f"127.0.0.1:{ports.reserve(0, 'Prometheus')}"
    with contextlib.ExitStack() as stack:
        stack.callback(ports.release)
        log = stack.enter_context((data.parent / "prometheus.log").open("wb"))
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={configuration}",
                f"--storage.tsdb.path={data}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            yield Server(address)
        finally:
            process.terminate()
            process.wait(LIMIT_S)
