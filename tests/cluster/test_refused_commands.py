"""Every command that asks a cluster, under an account that may do nothing, under none, and with a wrong secret:
it says what is refused and which permission is wanted, in one line, and ends with exit code 1."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.shell.test_access import ACCOUNTS, OPERATOR
from tests.cli.conftest import CommandLine
from tests.cli.test_orders import CHANGE_NOTHING, ORDERS
from tests.interop.configured import ConfiguredCluster

pytestmark = pytest.mark.cluster

SECRET = "a secret of the brokers"
STRANGER = '\n[[accounts]]\naccess_key = "stranger"\nsecret_key = "stranger-secret"\n'
"""May do nothing but what everybody may."""

ASKS_NOBODY = {
    "acl add", "acl update", "acl remove", "acl list", "acl show", "acl check", "restore", "backup verify",
    "completion",
    # They start servers of their own, or run others' traces.
    "namesrv", "broker", "cluster", "console", "demo", "analyze", "simulate", "chaos", "bench", "migrate",
}  # fmt: skip

QUESTIONS = {
    "topic list": "",
    "topic describe": "orders",
    "topic stats": "orders",
    "consumer list": "",
    "consumer describe": "G",
    "consumer lag": "G",
    "client list": "",
    "message find": "orders",
    "message show": "orders 7F0000010000000000000000000000000001",
    "message trace": "orders 7F0000010000000000000000000000000001",
    "message waiting": "",
    "dlq list": "",
    "dlq show": "G",
    "group status": "",
    "tail": "orders --timeout 1",
    "top": "--count 1",
    "status": "",
    "doctor": "",
    "config get": "",
    "acl status": "--file accounts.toml",
    "backup": "copy",
    "produce": "orders x --timeout 1",
    "consume": "orders --group G --count 1 --timeout 1",
}
"""The commands that change nothing, with arguments of things that are there."""

SEES_LESS = {
    "topic list": "", "consumer list": "", "dlq list": "", "top": "",
    "dlq show": "has no dead letters", "dlq redrive": "has no dead letters", "dlq purge": "has no dead letters",
    "topic delete": "there is no topic", "topic move": "no such group is registered",
}  # fmt: skip
"""Lists leave out what an account may not see, and what is looked for in them is not there for it."""

IDENTITIES = {
    "an account without permission": (
        ["--access-key", "stranger", "--secret-key", "stranger-secret"],
        (
            r"request \d+ \(\w+\) needs an administrator, and 'stranger' is not one"
            r"|'stranger' needs (PUB|SUB|PUB or SUB) on (topic|group) '(T|G|orders)'"
        ),
    ),
    "no account": ([], r"names no AccessKey: give the client an access key and a secret key"),
    "a wrong secret": (
        ["--access-key", "operator", "--secret-key", "wrong-secret"],
        r"not that of AccessKey 'operator': is the secret key the one the server knows\?",
    ),
}
"""The options of each, and what is told."""


def test_every_command_is_here() -> None:
    assert {*QUESTIONS, *ORDERS, *ASKS_NOBODY} == {*CHANGE_NOTHING, *ORDERS}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConfiguredCluster]:
    folder = tmp_path_factory.mktemp("guarded")
    accounts = folder / "accounts.toml"
    accounts.write_text(ACCOUNTS + STRANGER)
    environment = {"TRIVET_ACCESS_KEY": OPERATOR.access_key, "TRIVET_SECRET_KEY": OPERATOR.secret_key}
    cluster = ConfiguredCluster(
        folder,
        broker={
            "node": {"registration_secret": SECRET},
            "acl": {"file": str(accounts), "allow_plaintext": True},
        },
        name_server={"registration_secret": SECRET, "acl_file": str(accounts), "acl_allow_plaintext": True},
        environment=environment,
    )
    try:
        cluster.trivet("topic", "create", "orders", "--queues", "1")
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("command", sorted({**QUESTIONS, **ORDERS}.keys() - ASKS_NOBODY))
def test_a_command_says_what_is_refused(
    guarded: ConfiguredCluster,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    command: str,
    identity: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    (tmp_path / "accounts.toml").write_text(ACCOUNTS)
    options, why = IDENTITIES[identity]
    arguments = {**ORDERS, **QUESTIONS, "topic move": "orders --from broker-a --to broker-b"}[command]
    yes = ["--yes"] if command in ORDERS else []
    outcome = CommandLine(capsys)(
        *command.split(), *arguments.split(), *yes, *options, "--namesrv", guarded.name_server
    )
    told = outcome.err + outcome.out + caplog.text
    sees_less = identity == "an account without permission" and command in SEES_LESS
    assert re.search(SEES_LESS[command] if sees_less else why, told), told
    assert outcome.exit_code == (0 if sees_less and not SEES_LESS[command] else 1)
    assert "Traceback" not in told
    assert len(outcome.err.splitlines()) == 1 or outcome.out or outcome.exit_code == 0, outcome.err
