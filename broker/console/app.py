"""The application: sessions, the live stream, the questions and orders of `routes/`, the page itself."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import structlog
import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from broker.client.transport.credentials import Credentials
from broker.console.answers import (
    EXPECTED,
    Failure,
    RefusedError,
    failure_response,
    is_unknown,
    json_response,
)
from broker.console.asking import InPart, Order, Question
from broker.console.audit import AuditLog
from broker.console.events import LiveStream
from broker.console.guard import TOKEN_HEADER, Guard
from broker.console.options import ConsoleOptions
from broker.console.parameters import Parameters, read_body, read_query
from broker.console.routes.reports import HEADERS as REPORT_HEADERS
from broker.console.routes.reports import read_report
from broker.console.routes.table import ROUTES
from broker.console.seats import Seat, Seats
from broker.console.sessions import Sessions
from broker.operations.errors import in_words
from broker.state.release import THIS_RELEASE

ASSETS: Final = Path(__file__).parent / "assets"
BODY_BYTES_MAX: Final = 5 * 1024 * 1024
"""A test message of the size that brokers take, in JSON."""
STREAMS_MAX: Final = 64
SWEEP_S: Final = 60.0
QUESTION_S_MAX: Final = 30.0
"""A question or an order that takes longer is given up: brokers answer within seconds, or not at all."""


Secret = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class SignIn(Parameters, frozen=True):
    """An account, to be signed in."""

    access_key: Secret
    secret_key: Secret


class Console:
    """The console's handlers of HTTP requests, with what all of them share: options, seats, sessions, open streams."""

    def __init__(
        self,
        options: ConsoleOptions,
        seats: Seats,
        anonymous: Seat,
        audit: AuditLog,
        now_s: Callable[[], float],
    ) -> None:
        self._options = options
        self._seats = seats
        self._anonymous = anonymous
        self._audit = audit
        self._sessions: Sessions[Seat] = Sessions(now_s, lambda seat: seat.over.set())
        self._streams = 0
        # With TLS the name is one that browsers take from this host alone, and over TLS alone.
        self._cookie_begin = "__Host-trivet" if options.is_encrypted else "trivet-console"

    def end(self) -> None:
        """End all sessions and streams."""
        self._sessions.end_all()
        self._anonymous.over.set()

    async def sweep(self) -> None:
        """End sessions that nobody uses any more, until `end`."""
        while not self._anonymous.over.is_set():
            self._sessions.end_old()
            with trio.move_on_after(SWEEP_S):
                await self._anonymous.over.wait()

    def app(self) -> ASGIApp:
        """Return the application."""
        routes: list[BaseRoute] = [
            Route("/", self._index),
            Route("/api/session", self._session, methods=["GET", "POST", "DELETE"]),
            Route("/api/live", self._live),
            Route("/reports/{path:path}", self._report),
            *(self._route(entry) for entry in ROUTES),
            Mount("/assets", StaticFiles(directory=ASSETS)),
        ]
        failures: dict[Any, Any] = {Exception: _failed, HTTPException: _refused}
        failures |= dict.fromkeys(EXPECTED, _unsuccessful)
        starlette = Starlette(routes=routes, max_body_size=BODY_BYTES_MAX, exception_handlers=failures)
        return Guard(starlette, self._options.host_names)

    async def _index(self, request: Request) -> Response:
        page = await trio.Path(ASSETS / "index.html").read_bytes()
        return Response(page, media_type="text/html")

    # Sessions ------------------------------------------------------------------------------------------------------

    async def _session(self, request: Request) -> Response:
        if request.method == "GET":
            return self._tell_session(request, self._name(request) or self._sessions.new_name())
        name = self._check_token(request)
        if request.method == "POST":
            return await self._sign_in(request, name, read_body(await request.body(), {}, SignIn))
        self._sessions.end(name)
        return self._tell_session(request, self._sessions.new_name())

    async def _sign_in(self, request: Request, name: str, account: SignIn) -> Response:
        self._sessions.check_attempt()
        credentials = Credentials(account.access_key, account.secret_key)
        with trio.move_on_after(QUESTION_S_MAX) as verifying:
            await self._seats.verify(credentials)
        if verifying.cancelled_caught:
            raise RefusedError(504, "unavailable", f"no broker has answered within {QUESTION_S_MAX:g} s")
        seat = await self._seats.open(credentials)
        try:
            new_name = self._sessions.begin(seat)
        except BaseException:
            seat.over.set()
            raise
        self._sessions.end(name)
        return self._tell_session(request, new_name)

    def _tell_session(self, request: Request, name: str) -> Response:
        seat = self._sessions.find(name)
        response = json_response(
            {
                "token": self._sessions.token(name),
                "account": None if seat is None else seat.account,
                "writable": self._options.writable,
                "has_reports": self._options.reports is not None,
                "has_accounts": self._options.accounts is not None,
                "name_servers": self._options.name_servers,
                "release": THIS_RELEASE.name,
            }
        )
        # No script reads it, and no other site's page has it sent along (`guard`).
        response.set_cookie(
            self._cookie(request),
            name,
            httponly=True,
            samesite="strict",
            secure=self._options.is_encrypted,
            path="/",
        )
        return response

    def _cookie(self, request: Request) -> str:
        """Return the cookie's name. It has the port in it: browsers keep cookies by host alone, and one host may have
        several consoles, as behind tunnels."""
        return f"{self._cookie_begin}-{request.url.port or 0}"

    def _name(self, request: Request) -> str:
        """Return the session's name from the cookie, empty if there is none."""
        return request.cookies.get(self._cookie(request), "")

    def _check_token(self, request: Request) -> str:
        """Return the session's name. Raises RefusedError for a request that does not come from our page."""
        name = self._name(request)
        if not name or not self._sessions.is_token(name, request.headers.get(TOKEN_HEADER, "")):
            raise RefusedError(
                403, "token", "the session is over, or the request is not of this page: load it anew"
            )
        return name

    def _seat(self, request: Request) -> Seat:
        name = self._name(request)
        if not name:
            raise RefusedError(403, "token", "no session: load the page first")
        return self._sessions.find(name) or self._anonymous

    async def _report(self, request: Request) -> Response:
        """A file of the analysis, which is shown apart from the page."""
        self._seat(request)
        content, kind = await read_report(self._options.reports, request.path_params["path"])
        return Response(content, media_type=kind, headers=REPORT_HEADERS)

    # Questions and orders ------------------------------------------------------------------------------------------

    async def _live(self, request: Request) -> ASGIApp:
        seat = self._seat(request)
        if self._streams >= STREAMS_MAX:
            raise RefusedError(503, "unavailable", f"{STREAMS_MAX} pages are open: close one")
        name = self._name(request)
        # A page that is open uses its session.
        return self._counted(LiveStream(seat, lambda: self._sessions.find(name)))

    def _counted(self, stream: LiveStream) -> ASGIApp:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            self._streams += 1
            try:
                await stream(scope, receive, send)
            finally:
                self._streams -= 1

        return answer

    def _route(self, entry: Question | Order) -> Route:
        async def answer(request: Request) -> Response:
            if isinstance(entry, Question):
                return json_response(await self._ask(entry, request))
            return json_response(await self._order(entry, request))

        return Route(entry.path, answer, methods=["GET" if isinstance(entry, Question) else "POST"])

    async def _ask(self, question: Question, request: Request) -> object:
        seat = self._seat(request)
        parameters = read_query(request.query_params.multi_items(), request.path_params, question.parameters)
        return await _in_time(question, seat, parameters)

    async def _order(self, order: Order, request: Request) -> object:
        self._check_token(request)
        seat = self._seat(request)
        parameters = read_body(await request.body(), request.path_params, order.parameters)
        if not self._options.writable:
            raise RefusedError(403, "read only", "this console changes nothing: start it with --writable")
        source = "" if request.client is None else request.client.host
        change = self._audit.begin(order.action, seat.account, source, _told(order, parameters))
        try:
            content = await _in_time(order, seat, parameters)
        except BaseException as error:
            self._audit.end(change, "unknown" if is_unknown(error) else "failed", in_words(error))
            raise
        missing = content.missing if isinstance(content, InPart) else ()
        told = "; ".join(f"not in {one.group}: {one.why}" for one in missing)
        self._audit.end(change, "in part" if missing else "done", told)
        return content


async def _in_time(entry: Question | Order, seat: Seat, parameters: Parameters) -> object:
    with trio.move_on_after(QUESTION_S_MAX):
        return await entry.function(seat, parameters)
    raise RefusedError(
        504, "unavailable", f"no answer within {QUESTION_S_MAX:g} s; what was ordered may be done"
    )


def _told(order: Order, parameters: Parameters) -> Mapping[str, object]:
    """Return what the audit log says of an order's parameters."""
    fields = msgspec.to_builtins(parameters)
    assert isinstance(fields, dict)
    return {
        name: f"({len(str(value))} characters)" if name in order.unsaid else value
        for name, value in fields.items()
    }


async def _unsuccessful(request: Request, error: Exception) -> Response:
    """Answer an error that operation can cause."""
    return failure_response(error)


def _refused(request: Request, error: Exception) -> Response:
    """Answer what no route takes."""
    assert isinstance(error, HTTPException)
    kind = "not found" if error.status_code == 404 else "wrong"
    return json_response(Failure(error=error.detail, kind=kind), error.status_code)


def _failed(request: Request, error: Exception) -> Response:
    """Answer a mistake of ours, which is logged."""
    structlog.get_logger("trivet.console").error("request failed", path=request.url.path, exc_info=error)
    return json_response(Failure(error="the console made a mistake; its log says more", kind="failed"), 500)
