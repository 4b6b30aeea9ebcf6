"""What changes what is there asks first, or is told --yes; every command is on one of two lists here."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App

from broker.tools.cli.app import build_app
from broker.tools.cli.errors import FAILED, USAGE, CommandError
from broker.tools.cli.orders import confirm
from tests.cli.conftest import CommandLine

ORDERS = {
    "topic create": "T",
    "topic move": "T --from a --to b",
    "topic alter": "T --queues 1",
    "topic delete": "T",
    "consumer reset": "G T --to latest",
    "consumer delete": "G",
    "dlq redrive": "G",
    "dlq purge": "G",
    "group add": "n3 --peer 10.0.0.4:40911",
    "group promote": "n3",
    "group remove": "n3",
    "group transfer": "n1",
    "config set": "brokerPermission=4",
    "acl add": "another --file accounts.toml",
    "acl update": "operator --file accounts.toml --no-admin",
    "acl remove": "operator --file accounts.toml",
    "restore": "backup --config broker.toml",
}
"""With arguments that say what is to be changed."""

ACCOUNTS = '[[accounts]]\naccess_key = "operator"\nsecret_key = "a secret"\nadmin = true\n'

LOOK_FIRST = {"topic create", "consumer reset", "dlq redrive", "dlq purge", "restore"}
"""Those that ask when they know what the answer means: tests/cluster/test_operator_commands.py asks a group, and
test_migrate.py has a backup."""

CHANGE_NOTHING = {
    "topic list", "topic describe", "topic stats", "consumer list", "consumer describe", "consumer lag",
    "client list", "message find", "message show", "message trace", "message waiting", "dlq list", "dlq show",
    "group status", "tail", "top", "status", "doctor", "config get", "acl list", "acl show", "acl check",
    "acl status", "backup verify", "completion",
    # They run what they are told to run, which asks for itself, or writes files of its own and replaces no others.
    "namesrv", "broker", "cluster", "console", "backup", "migrate", "demo", "analyze", "simulate", "chaos", "bench",
    # Messages are sent and consumed: there is nothing else that these two could mean.
    "produce", "consume",
}  # fmt: skip


def commands(app: App, path: tuple[str, ...] = ()) -> Iterator[tuple[str, App]]:
    """Every command that can be called, with its words."""
    names = [name for name in app if not name.startswith("-")]
    if path and app.default_command is not None:
        yield " ".join(path), app
    for name in names:
        yield from commands(app[name], (*path, name))


def test_every_command_asks_or_changes_nothing() -> None:
    asks = {
        name: "--yes" in {argument.name for argument in command.assemble_argument_collection()}
        for name, command in commands(build_app())
    }
    assert {name for name, does in asks.items() if does} == set(ORDERS)
    assert {name for name, does in asks.items() if not does} == CHANGE_NOTHING


def test_what_cannot_be_restored_is_told_before_anybody_is_asked(
    trivet: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broker.toml").write_text(f'[storage]\npath = "{tmp_path / "store"}"\n')
    monkeypatch.chdir(tmp_path)
    outcome = trivet("restore", *ORDERS["restore"].split())
    assert (outcome.exit_code, outcome.out) == (1, "")
    assert outcome.complaint.endswith("backup is no backup: there is no manifest in it")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("order", sorted(set(ORDERS) - LOOK_FIRST))
def test_an_order_without_a_terminal_is_refused_before_anybody_is_asked(
    trivet: CommandLine, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broker.toml").write_text(f'[storage]\npath = "{tmp_path / "store"}"\n')
    (tmp_path / "accounts.toml").write_text(ACCOUNTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    monkeypatch.setenv("TRIVET_NAMESRV", "127.0.0.1:1")
    outcome = trivet(*order.split(), *ORDERS[order].split())
    assert outcome.exit_code == 2
    assert outcome.complaint.endswith("? There is no terminal to ask at: say so with --yes")
    assert outcome.out == ""
    assert not (tmp_path / "store").exists()
    assert (tmp_path / "accounts.toml").read_text() == ACCOUNTS


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "does"), [("y\n", True), ("Yes\n", True), ("\n", False), ("", False)])
def test_a_person_is_asked(
    answer: str, does: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", _Terminal(answer))
    if does:
        confirm("Delete it?", yes=False)
    else:
        with pytest.raises(CommandError, match="nothing was changed") as refused:
            confirm("Delete it?", yes=False)
        assert refused.value.exit_code == FAILED != USAGE
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "Delete it? [y/N] ")
