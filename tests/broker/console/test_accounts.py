"""The page of accounts: for administrators whom brokers know, without secrets."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio

from broker.access.accounts import load
from broker.console.options import ConsoleOptions, ImpossibleOptionError
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.node_status import ProcessFacts, decode_node_status
from tests.broker.client.cluster import Broker
from tests.broker.client.links import Link, Step, code
from tests.broker.console.conftest import Open

FILE = """
[[accounts]]
access_key = "operator"
secret_key = "nobody sees this"
admin = true

[[accounts]]
access_key = "service"
secret_key = "nor this one"
topic_permissions = { orders = "PUB" }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "accounts.toml"
    path.write_text(FILE)
    return path


def goes_by(broker: Broker, digest: str) -> Step:
    """The broker says that it goes by accounts of this digest."""

    def changed(_: Link, response: RemotingCommand) -> RemotingCommand:
        status = decode_node_status(response.body)
        facts = ProcessFacts(accounts=digest)
        return msgspec.structs.replace(response, body=msgspec.structs.replace(status, process=facts).encode())

    return broker.instead(changed)


async def test_an_administrator_sees_accounts_and_who_goes_by_them(
    open_console: Open, broker: Broker, file: Path
) -> None:
    page = await open_console(accounts=file)
    assert page.session["has_accounts"]
    # The page's live view asks for the same, now and then.
    broker.script(RequestCode.TRIVET_NODE_STATUS, *[goes_by(broker, load(file).digest)] * 9)
    answer = await page.get("/api/accounts")
    assert "this" not in answer.text
    found = answer.json()
    assert [(one["access_key"], one["admin"]) for one in found["accounts"]] == [
        ("operator", True),
        ("service", False),
    ]
    assert found["accounts"][1]["topics"] == {"orders": "PUB"}
    assert [(one["server"], one["state"]) for one in found["servers"]] == [
        ("name server", "no accounts"),
        ("broker", "in force"),
    ]


async def test_others_see_none_of_them(open_console: Open, broker: Broker, file: Path) -> None:
    page = await open_console(accounts=file)
    of_open_brokers = await page.get("/api/accounts")
    broker.script(RequestCode.TRIVET_NODE_STATUS, *[code(ResponseCode.NO_PERMISSION)] * 9)
    for answer in (of_open_brokers, await page.get("/api/accounts")):
        assert (answer.status_code, answer.json()["kind"]) == (403, "no permission")
        assert "service" not in answer.text
    await trio.Path(file).write_text(FILE.replace("PUB", "ALL"))
    broken = await page.get("/api/accounts")
    assert broken.status_code == 503
    assert "service" not in broken.text


async def test_without_a_file_there_is_no_such_page(open_console: Open, broker: Broker) -> None:
    page = await open_console()
    assert not page.session["has_accounts"]
    assert (await page.get("/api/accounts")).status_code == 404
    with pytest.raises(ImpossibleOptionError, match="no such file"):
        ConsoleOptions(name_servers=("127.0.0.1:9876",), accounts=Path("no-such-file"))
