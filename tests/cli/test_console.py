"""``trivet console``: what it refuses before it serves anything."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--listen", "nonsense"], "--listen nonsense"),
        (["--listen", "0.0.0.0:9880"], "--certificate"),
        (["--certificate", "c.pem"], "--key"),
        (["--reports", "/no/such/directory"], "--reports"),
        (["--namesrv", "nonsense"], "--namesrv"),
    ],
)
def test_impossible_options_are_wrong_usage(trivet: CommandLine, arguments: list[str], named: str) -> None:
    outcome = trivet("console", *arguments)
    assert outcome.exit_code == 2
    assert named.split()[0] in outcome.complaint


def test_it_says_what_to_install(trivet: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("broker.console.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hypercorn", None)
    monkeypatch.setitem(sys.modules, "starlette", None)
    outcome = trivet("console", "--listen", "127.0.0.1:0")
    assert outcome.exit_code == 1
    assert "pip install 'trivet[console]'" in outcome.complaint


def test_a_log_that_cannot_be_written_is_said_at_the_start(trivet: CommandLine, tmp_path: Path) -> None:
    pytest.importorskip("hypercorn", reason="the console's libraries are not installed")
    outcome = trivet("console", "--listen", "127.0.0.1:0", "--audit", str(tmp_path / "none" / "audit.jsonl"))
    assert outcome.exit_code == 1
    assert "audit.jsonl" in outcome.complaint


def test_an_address_at_which_another_server_listens_is_named(trivet: CommandLine) -> None:
    pytest.importorskip("hypercorn", reason="the console's libraries are not installed")
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        outcome = trivet("console", "--listen", address)
    assert outcome.exit_code == 1
    assert f"cannot listen on {address}: Address already in use" in outcome.complaint


def test_a_cluster_with_a_console_says_it_before_it_starts_anything(
    trivet: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    outcome = trivet("cluster", "--dir", str(tmp_path / "cluster"), "--console")
    assert outcome.exit_code == 1
    assert "pip install 'trivet[console]'" in outcome.complaint
    assert not (tmp_path / "cluster").exists()
