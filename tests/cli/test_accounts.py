"""``trivet acl``; what the operator's commands share: moments, spans, questions, the script that completes them."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from broker.tools.cli.errors import CommandError
from broker.tools.cli.moments import moment_ms, span_text
from broker.tools.cli.orders import confirm
from tests.cli.conftest import CommandLine

FILE = """
[[accounts]]
access_key = "operator"
secret_key = "very secret"
admin = true

[[accounts]]
access_key = "service"
secret_key = "also secret"
topic_permissions = { orders = "PUB" }
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "accounts.toml"
    path.write_text(FILE)
    return str(path)


def test_accounts_are_listed_and_shown_without_secrets(trivet: CommandLine, file: str) -> None:
    listed = trivet("acl", "list", "--file", file, "--json")
    assert [account["access_key"] for account in json.loads(listed.out)["accounts"]] == [
        "operator",
        "service",
    ]
    shown = [trivet("acl", "list", "--file", file), trivet("acl", "show", "service", "--file", file)]
    for outcome in (listed, *shown):
        assert outcome.exit_code == 0
        assert "secret" not in outcome.out
    assert "orders" in shown[1].out
    absent = trivet("acl", "show", "nobody", "--file", file)
    assert (absent.exit_code, "no account has the access key 'nobody'" in absent.complaint) == (1, True)


@pytest.mark.parametrize(
    ("asked", "may"),
    [
        (["service", "--publish", "orders"], True),
        (["service", "--subscribe", "orders"], False),
        (["service", "--group", "g"], False),
        (["operator", "--subscribe", "anything"], True),
    ],
)
def test_what_an_account_may_do_is_the_exit_code(
    trivet: CommandLine, file: str, asked: list[str], may: bool
) -> None:
    outcome = trivet("acl", "check", *asked, "--file", file, "--json")
    assert outcome.exit_code == (0 if may else 1)
    found = json.loads(outcome.out)
    assert set(found) == {"access_key", "asked", "name", "may", "rule"}
    assert found["may"] is may


def test_a_file_that_no_server_would_take(trivet: CommandLine, tmp_path: Path, file: str) -> None:
    assert trivet("acl", "check", "--file", file).out.endswith("2 accounts\n")
    bad = tmp_path / "bad.toml"
    bad.write_text(FILE.replace("PUB", "ALL"))
    outcome = trivet("acl", "check", "--file", str(bad))
    assert outcome.exit_code == 2
    assert "account service" in outcome.complaint


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(trivet: CommandLine, shell: str) -> None:
    outcome = trivet("completion", shell)
    assert outcome.exit_code == 0
    for word in ("consumer", "redrive", "namesrv", "dry-run"):
        assert word in outcome.out


def test_moments() -> None:
    assert moment_ms(None, "--since") is None
    assert moment_ms("2030-01-31T12:00:00+00:00", "--since") == 1_896_091_200_000
    now_ms = time.time() * 1000
    for text, ago_s in (("90s", 90), ("1.5h", 5400), ("1d", 86_400)):
        found = moment_ms(text, "--since")
        assert found is not None
        assert now_ms - 1000 * ago_s - 1 <= found <= time.time() * 1000 - 1000 * ago_s + 1
    with pytest.raises(CommandError, match="--since soon: a time such as"):
        moment_ms("soon", "--since")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.0 s"), (59.9, "59.9 s"), (60, "1 min 0 s"), (7322, "2 h 2 min"), (180_000, "2 d 2 h")],
)
def test_spans(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


class Terminal:
    """A terminal at which somebody types one line."""

    def __init__(self, line: str) -> None:
        self._line = line

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        return self._line


def test_a_person_is_asked_and_may_say_no(monkeypatch: pytest.MonkeyPatch) -> None:
    confirm("Delete it?", yes=True)
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    confirm("Delete it?", yes=False)
    for line in ("\n", "n\n", ""):
        monkeypatch.setattr(sys, "stdin", Terminal(line))
        with pytest.raises(CommandError, match="nothing was changed"):
            confirm("Delete it?", yes=False)
