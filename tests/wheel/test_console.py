"""The console from the wheel: its page and all that the page loads are in there."""

from __future__ import annotations

import re
import signal
import subprocess
import urllib.request

import pytest

from tests.wheel.conftest import ROOT, Installed

pytestmark = pytest.mark.slow


def test_the_page_is_in_the_wheel(installed: Installed) -> None:
    pytest.importorskip("hypercorn", reason="the console's libraries are not installed")
    process = subprocess.Popen(
        [
            str(installed.environment / "bin" / "trivet"),
            "console",
            "--listen",
            "127.0.0.1:0",
            "-n",
            "127.0.0.1:1",
        ],
        cwd=installed.hostile,
        env=installed.variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("READY ").strip()
        page = urllib.request.urlopen(address, timeout=30).read().decode()
        for link in re.findall(r'(?:src|href)="(/assets/[^"]+)"', page):
            assert urllib.request.urlopen(address + link[1:], timeout=30).read()
        for file in (ROOT / "broker/console/assets").rglob("*.js"):
            link = f"assets/{file.relative_to(ROOT / 'broker/console/assets')}"
            assert urllib.request.urlopen(address + link, timeout=30).read() == file.read_bytes()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
