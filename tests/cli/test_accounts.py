"""``trivet acl``; what the operator's commands share: moments, spans, the script that completes them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from broker.access.accounts import load
from broker.tools.cli.errors import CommandError
from broker.tools.cli.moments import moment_ms, moment_text, span_text
from tests.cli.conftest import CommandLine, Outcome

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


SECRET = "nobody sees this"


def shown(outcome: Outcome, exit_code: int = 0) -> str:
    """What a command has printed, which is no secret."""
    assert outcome.exit_code == exit_code, outcome.err
    assert SECRET not in outcome.out + outcome.err
    return outcome.out + outcome.err


def test_an_account_is_added_changed_and_taken_out(
    trivet: CommandLine, tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIVET_NEW_SECRET_KEY", SECRET)
    rights = ("--topic", "orders=SUB", "--topic", "a=b=PUB|SUB", "--group", "g=SUB", "--default-group", "PUB")
    shown(trivet("acl", "add", "billing", *rights, "--file", file, "--yes"))
    assert load(file).by_access_key["billing"].secret_key == SECRET
    found = json.loads(shown(trivet("acl", "show", "billing", "--file", file, "--json")))
    assert found == {
        "access_key": "billing",
        "admin": False,
        "default_topic": "DENY",
        "default_group": "PUB",
        "topics": {"orders": "SUB", "a=b": "PUB|SUB"},
        "groups": {"g": "SUB"},
    }
    change = (
        "--admin",
        "--topic",
        "orders=default",
        "--topic",
        "b=PUB",
        "--white-remote-address",
        "10.0.0.1",
    )
    shown(trivet("acl", "update", "billing", *change, "--file", file, "--yes"))
    account = load(file).by_access_key["billing"]
    assert (account.admin, sorted(account.topics), account.secret_key) == (True, ["a=b", "b"], SECRET)
    secret = tmp_path / "secret"
    secret.write_text("quite another\n")
    shown(trivet("acl", "update", "billing", "--secret-file", str(secret), "--file", file, "--yes"))
    assert load(file).by_access_key["billing"].secret_key == "quite another"
    shown(trivet("acl", "update", "billing", "--new-secret", "--file", file, "--yes"))
    assert load(file).by_access_key["billing"].secret_key == SECRET
    shown(trivet("acl", "remove", "billing", "--file", file, "--yes"))
    assert sorted(load(file).by_access_key) == ["operator", "service"]


@pytest.mark.parametrize(
    ("order", "said", "exit_code"),
    [
        ("add service", "there is an account service already", 2),
        ("add short", "account short: ", 2),
        ("add billing --topic orders", "--topic orders: needs the form NAME=PUB", 2),
        ("add billing --white-remote-address 300.1.1.1", "white_remote_address", 2),
        ("update service", "give what is to change", 2),
        ("update nobody --admin", "no account has the access key 'nobody'", 1),
        ("remove nobody", "no account has the access key 'nobody'", 1),
    ],
)
def test_a_change_that_cannot_be_changes_nothing(
    trivet: CommandLine,
    file: str,
    monkeypatch: pytest.MonkeyPatch,
    order: str,
    said: str,
    exit_code: int,
) -> None:
    monkeypatch.setenv("TRIVET_NEW_SECRET_KEY", SECRET)
    before = Path(file).read_text()
    assert said in shown(trivet("acl", *order.split(), "--file", file, "--yes"), exit_code)
    assert Path(file).read_text() == before


def test_a_secret_is_never_an_argument(
    trivet: CommandLine, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRIVET_NEW_SECRET_KEY", raising=False)
    add = ("acl", "add", "billing", "--file", file, "--yes")
    assert "no terminal to ask for the secret key" in trivet(*add).complaint
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\nand more\n")
    assert "needs one line" in shown(trivet(*add, "--secret-file", str(secret)), 2)
    secret.write_text(f"{SECRET}\n")
    shown(trivet(*add, "--secret-file", str(secret)))
    assert load(file).by_access_key["billing"].secret_key == SECRET


def test_a_person_types_a_secret_twice(
    trivet: CommandLine, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRIVET_NEW_SECRET_KEY", raising=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    typed = iter([SECRET, "mistyped", SECRET, SECRET])
    monkeypatch.setattr("getpass.getpass", lambda prompt: next(typed))
    add = ("acl", "add", "billing", "--file", file, "--yes")
    assert "two different secret keys" in shown(trivet(*add), 1)
    shown(trivet(*add))
    assert load(file).by_access_key["billing"].secret_key == SECRET


@pytest.mark.parametrize(
    "shell", ["bash", *(pytest.param(shell, marks=pytest.mark.slow) for shell in ("zsh", "fish"))]
)
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


@pytest.mark.parametrize("milliseconds", [2**63 - 1, -(2**63), 253_402_300_800_000 + 86_400_000])
def test_a_moment_that_no_calendar_has_is_told_as_it_is(milliseconds: int) -> None:
    """Clients put into a message what they like for the time of its birth."""
    assert moment_text(milliseconds) == f"{milliseconds} ms"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.0 s"), (59.9, "59.9 s"), (60, "1 min 0 s"), (7322, "2 h 2 min"), (180_000, "2 d 2 h")],
)
def test_spans(seconds: float, text: str) -> None:
    assert span_text(seconds) == text
