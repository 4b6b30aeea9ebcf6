"""More connections than there are places, of strangers who stay: whoever has an account comes in all the same."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import trio

from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.remoting.addresses import split_address
from broker.remoting.codes import RequestCode
from broker.remoting.command import encode, request
from broker.settings.tables import AclSettings, NameServerSettings, Settings
from tests.broker.shell.servers import Servers, running
from tests.broker.shell.test_access import ACCOUNTS, ORDERS

PLACES = 8
QUESTION = encode(request(RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"}))
"""A broker refuses it, and a name server does not know it."""


@contextlib.asynccontextmanager
async def crowded(folder: Path, *, accounts: bool) -> AsyncIterator[Servers]:
    """A name server and a broker with few places each."""
    file = folder / "accounts.toml"
    file.write_text(ACCOUNTS)

    def change(settings: Settings) -> Settings:
        limits = msgspec.structs.replace(settings.limits, max_connections=PLACES)
        acl = AclSettings(file=str(file), allow_plaintext=True) if accounts else settings.acl
        return msgspec.structs.replace(settings, limits=limits, acl=acl)

    base = NameServerSettings(kv_config_path="", max_connections=PLACES)
    async with running(folder, name_server=base, change=change) as servers:
        await servers.wait_leader()
        await servers.wait_registered()
        yield servers


@contextlib.asynccontextmanager
async def strangers_at(address: str, count: int, sends: bytes) -> AsyncIterator[None]:
    """Connections that stay while the block lasts; where they send something, that is answered."""
    async with contextlib.AsyncExitStack() as streams:
        for _ in range(count):
            stream = await trio.open_tcp_stream(*split_address(address))
            await streams.enter_async_context(stream)  # nobody else holds it, and it would be closed at once
            if sends:
                await stream.send_all(sends)
                assert await stream.receive_some()
        yield


@pytest.mark.parametrize("accounts", [True, False])
@pytest.mark.parametrize("sends", [b"", QUESTION])
async def test_strangers_that_stay_keep_no_client_out(tmp_path: Path, accounts: bool, sends: bytes) -> None:
    """Where there are no accounts everybody who has asked for something is a client."""
    count = 2 * PLACES if accounts or not sends else PLACES - 2
    credentials = ORDERS if accounts else None
    async with (
        crowded(tmp_path, accounts=accounts) as servers,
        strangers_at(servers.name_server, 2 * PLACES, b""),
        strangers_at(servers.brokers["n0"].address, count, sends),
        Producer(servers.name_server, group="p", credentials=credentials) as producer,
    ):
        result = await producer.send(Message("orders", b"here"))
        assert result.queue_offset == 0
