"""The console over a real group, all of it in this process and in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

pytest.importorskip("starlette", reason="the console's libraries are not installed")
httpx = pytest.importorskip("httpx", reason="httpx asks the console")

from broker.console.app import Console  # noqa: E402
from broker.console.audit import AuditLog  # noqa: E402
from broker.console.guard import TOKEN_HEADER  # noqa: E402
from broker.console.options import ConsoleOptions  # noqa: E402
from broker.console.seats import Seats  # noqa: E402
from tests.broker.client.cluster import NAME_SERVER  # noqa: E402
from tests.broker.client.conftest import broker, runtime, world  # noqa: E402, F401 - fixtures
from tests.broker.client.links import ClientRuntime  # noqa: E402

ORIGIN = "http://127.0.0.1:9880"


class Page:
    """A browser's page: it keeps the cookie, and shows the token."""

    def __init__(self, app: Any, audit_path: Path) -> None:
        self.app = app
        self.audit_path = audit_path
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url=ORIGIN, headers={"origin": ORIGIN}
        )
        self.session: dict[str, Any] = {}

    async def load(self) -> Page:
        """Open the page."""
        self.session = (await self.client.get("/api/session")).json()
        return self

    async def get(self, path: str, **query: object) -> Any:
        """Ask; returns the answer."""
        return await self.client.get(path, params={name: str(value) for name, value in query.items()})

    async def post(self, path: str, **fields: object) -> Any:
        """Order; returns the answer."""
        return await self.client.post(path, json=fields, headers=self.token())

    def token(self) -> dict[str, str]:
        """The header that shows whose page it is."""
        return {TOKEN_HEADER: self.session["token"]}

    async def sign_in(self, access_key: str, secret_key: str) -> Any:
        """Sign in, and keep the session if that succeeds; returns the answer."""
        fields = {"access_key": access_key, "secret_key": secret_key}
        answer = await self.client.post("/api/session", json=fields, headers=self.token())
        if answer.status_code == 200:
            self.session = answer.json()
        return answer


Open = Callable[..., Any]


@pytest.fixture
async def open_console(
    runtime: ClientRuntime,  # noqa: F811
    nursery: trio.Nursery,
    tmp_path: Path,
) -> AsyncIterator[Open]:
    """Starts a console with these options; returns its page, loaded."""
    audits = []

    async def start(**options: Any) -> Page:
        found = ConsoleOptions(name_servers=(NAME_SERVER,), audit_file=tmp_path / "audit.jsonl", **options)
        seats = Seats(found, nursery, runtime=runtime, wall_ms=runtime.wall_ms)
        audits.append(AuditLog(found.audit_file, lambda: runtime.wall_ms() * 1_000_000))
        console = Console(found, seats, await seats.open(None), audits[-1], trio.current_time)
        return await Page(console.app(), tmp_path / "audit.jsonl").load()

    yield start
    for audit in audits:
        audit.close()
