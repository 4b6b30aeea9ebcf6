"""The check that every request meets first: is it from our own page, and may the answer be used for nothing else?

- The name that the browser asked for must be one of ours. A page elsewhere can have its own name point at this machine
  and would then read our answers as its own; numbers cannot be pointed anywhere.
- Whatever changes something shows the token of its session, which no other page knows, and must not come from another
  origin. The cookie is sent along with requests of our own pages only, and no script sees it.
- The answer's headers forbid scripts, frames and connections but our own: text of a message that found a way into the
  page as markup would still do nothing.
"""

import ipaddress
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from broker.console.answers import Failure, json_response

TOKEN_HEADER: Final = "x-trivet-token"

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """An ASGI application around the console's."""

    def __init__(self, app: ASGIApp, host_names: Collection[str]) -> None:
        self._app = app
        self._host_names = frozenset(name.lower() for name in host_names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have the application do so."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("content-security-policy", POLICY)
                # The page's own files may be kept, and are asked about each time; answers are never kept.
                kept = "no-cache" if scope["path"].startswith("/assets/") else "no-store"
                headers.setdefault("cache-control", kept)
            await send(message)

        # Before the application sees it: not even its errors are answered to a page that is not ours.
        headers = Headers(scope=scope)
        if not self._is_ours(headers.get("host", "")):
            failure = Failure(
                error="the console does not answer under this name: use its address, or start it with --host NAME",
                kind="wrong",
            )
            await json_response(failure, 421)(scope, receive, send_guarded)
        elif _is_asked_by_scripts(scope) and not is_same_origin(headers, scope["scheme"]):
            failure = Failure(error="the request comes from another page", kind="wrong")
            await json_response(failure, 403)(scope, receive, send_guarded)
        else:
            await self._app(scope, receive, send_guarded)

    def _is_ours(self, host: str) -> bool:
        try:
            parts = urlsplit(f"//{host}")
            name = (parts.hostname or "").lower()
            _ = parts.port  # raises ValueError for a bad port: the port is part of the cookie's name
        except ValueError:
            return False
        if name == "localhost" or name in self._host_names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _is_asked_by_scripts(scope: Scope) -> bool:
    """Tell whether only scripts of our page have a reason to ask for this path. A link from elsewhere to it comes
    without the cookie, and the answer would set a new one in place of that of the session."""
    path: str = scope["path"]
    return path.startswith("/api/") or scope["method"] not in ("GET", "HEAD")


def is_same_origin(headers: Headers, scheme: str) -> bool:
    """Tell whether a browser says that a request comes from a page of this console. One that says nothing of it is no
    browser of today; the token still counts.
    """
    site: str | None = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")  # none: somebody has typed the address
    origin: str | None = headers.get("origin")
    if origin is None:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    # A proxy that encrypts speaks plain HTTP with us.
    host: str = headers.get("host", "")
    return parts.netloc == host and parts.scheme in (scheme, "https")
