"""Whose requests are answered, and what an answer allows."""

from __future__ import annotations

import re
from typing import Any

import pytest

from broker.console.guard import TOKEN_HEADER
from broker.console.options import ConsoleOptions, ImpossibleOptionError
from broker.console.sessions import IDLE_S_MAX, SESSIONS_MAX, SIGN_INS_PER_MINUTE_MAX, Sessions, TooManyError
from broker.remoting.codes import RequestCode, ResponseCode
from tests.broker.client.cluster import Broker
from tests.broker.client.links import code
from tests.broker.console.conftest import Open


@pytest.mark.parametrize(
    "host", ["127.0.0.1:9880", "localhost:1", "[::1]:9880", "10.1.2.3", "console.example"]
)
async def test_own_names_are_answered(open_console: Open, broker: Broker, host: str) -> None:
    page = await open_console(host_names=("console.example",))
    headers = {"host": host, "origin": f"http://{host}"}
    assert (await page.client.get("/api/session", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
        "[",
        "",
        "localhost:99999",
        "localhost:x",
    ],
)
async def test_a_name_that_somebody_else_has_pointed_here_is_not_answered(
    open_console: Open, broker: Broker, host: str
) -> None:
    page = await open_console()
    assert (await page.client.get("/api/cluster", headers={"host": host})).status_code == 421


async def test_nothing_but_our_own_scripts_styles_and_connections_is_allowed(
    open_console: Open, broker: Broker
) -> None:
    page = await open_console()
    for path in ("/", "/api/session", "/assets/console.js", "/nothing"):
        headers = (await page.client.get(path)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"


async def test_the_cookie_is_for_our_own_pages_and_for_no_script(open_console: Open, broker: Broker) -> None:
    page = await open_console()
    cookie = (await page.client.get("/api/session")).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


async def test_consoles_at_two_ports_of_one_host_keep_their_sessions_apart(
    open_console: Open, broker: Broker
) -> None:
    page = await open_console()
    mine = (await page.client.get("/api/session")).headers["set-cookie"].partition("=")[0]
    through_tunnel = {"host": "127.0.0.1:9881", "origin": "http://127.0.0.1:9881"}
    other = (await page.client.get("/api/session", headers=through_tunnel)).headers["set-cookie"]
    assert other.partition("=")[0] != mine


async def test_questions_need_a_session(open_console: Open, broker: Broker) -> None:
    page = await open_console()
    page.client.cookies.clear()
    answer = await page.get("/api/cluster")
    assert (answer.status_code, answer.json()["kind"]) == (403, "token")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {TOKEN_HEADER: "0" * 64},
        {TOKEN_HEADER: "é".encode("latin-1")},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_an_order_that_is_not_of_our_page_is_refused(
    open_console: Open, broker: Broker, headers: dict[str, str]
) -> None:
    page = await open_console(writable=True)
    if TOKEN_HEADER not in headers and headers:
        headers = {**page.token(), **headers}
    answer = await page.client.delete("/api/session", headers=headers)
    assert answer.status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_link_elsewhere_takes_nobodys_session(open_console: Open, broker: Broker, site: str) -> None:
    """Strict cookies are not sent along with it, so it would be answered with a new one."""
    page = await open_console()
    page.client.cookies.clear()
    answer = await page.client.get("/api/session", headers={"sec-fetch-site": site})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    assert (await page.client.get("/", headers={"sec-fetch-site": site})).status_code == 200


async def test_unknown_parameters_and_paths_are_refused(open_console: Open, broker: Broker) -> None:
    page = await open_console()
    answer = await page.get("/api/cluster", surprise=1)
    assert answer.status_code == 400
    assert "surprise" in answer.json()["error"]
    assert (await page.get("/api/nothing")).status_code == 404
    assert (await page.get("/assets/../app.py")).status_code == 404
    assert (await page.client.get("/assets/%2e%2e/app.py")).status_code == 404
    assert (await page.client.put("/api/cluster", headers=page.token())).status_code == 405


async def test_a_body_of_thousands_of_lists_within_each_other_is_refused(
    open_console: Open, broker: Broker
) -> None:
    page = await open_console()
    body = b'{"access_key": ' + b"[" * 100_000
    answer = await page.client.post("/api/session", content=body, headers=page.token())
    assert answer.status_code == 400


async def test_a_body_without_end_is_refused(open_console: Open, broker: Broker) -> None:
    page = await open_console()
    answer = await page.client.post("/api/session", content=b" " * (6 << 20), headers=page.token())
    assert answer.status_code == 413


# Signing in ----------------------------------------------------------------------------------------------------------


def knows_accounts(broker: Broker, *answers: int) -> None:
    """Have the broker refuse (16), or answer (0), who asks which topics there are."""
    steps = [code(answer) for answer in answers]
    broker.script(RequestCode.GET_ALL_TOPIC_CONFIG, *steps)


async def test_signing_in_begins_a_session_under_a_new_name(open_console: Open, broker: Broker) -> None:
    page = await open_console()
    before, token = dict(page.client.cookies), page.session["token"]
    knows_accounts(broker, ResponseCode.NO_PERMISSION, ResponseCode.SUCCESS)
    answer = await page.sign_in("operator", "a secret of mine")
    assert answer.json()["account"] == "operator"
    assert "secret" not in answer.text
    assert dict(page.client.cookies) != before
    assert page.session["token"] != token
    ended = await page.client.delete("/api/session", headers=page.token())
    assert ended.json()["account"] is None


async def test_a_wrong_secret_is_refused(open_console: Open, broker: Broker) -> None:
    page = await open_console()
    knows_accounts(broker, ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION)
    answer = await page.sign_in("operator", "a wrong secret")
    assert (answer.status_code, answer.json()["kind"]) == (403, "sign in")
    assert (await page.client.get("/api/session")).json()["account"] is None


async def test_nobody_signs_in_where_there_are_no_accounts(open_console: Open, broker: Broker) -> None:
    """His name would stand in the audit log, and nobody would have checked it."""
    page = await open_console()
    answer = await page.sign_in("operator", "any secret")
    assert answer.status_code == 403
    assert "no accounts" in answer.json()["error"]


async def test_secrets_are_guessed_slowly(open_console: Open, broker: Broker) -> None:
    page = await open_console()
    answers = [
        (await page.sign_in("operator", str(number))).status_code
        for number in range(SIGN_INS_PER_MINUTE_MAX + 1)
    ]
    assert answers[-1] == 429
    assert 429 not in answers[:-1]


def test_sessions_end_when_nobody_uses_them() -> None:
    now_s, ended = [0.0], list[str]()
    sessions: Sessions[str] = Sessions(lambda: now_s[0], ended.append)
    names = [sessions.begin(f"seat {number}") for number in range(SESSIONS_MAX)]
    with pytest.raises(TooManyError):
        sessions.begin("one more")
    now_s[0] = IDLE_S_MAX
    assert sessions.find(names[0]) == "seat 0"
    now_s[0] += 1
    assert sessions.find(names[1]) is None
    assert sessions.find(names[0]) == "seat 0"
    assert len(ended) == SESSIONS_MAX - 1
    assert sessions.is_token("a name", sessions.token("a name"))
    assert not sessions.is_token("another name", sessions.token("a name"))


# Options -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"listen": "nonsense"}, "--listen"),
        ({"listen": "0.0.0.0:9880"}, "--listen"),
        ({"listen": "192.0.2.1:9880"}, "--listen"),
        ({"certificate": "c.pem"}, "--key"),
        ({"key": "k.pem"}, "--certificate"),
    ],
)
def test_options_that_would_send_secrets_in_the_clear_are_refused(
    options: dict[str, Any], option: str
) -> None:
    with pytest.raises(ImpossibleOptionError, match=re.escape(option)) as caught:
        ConsoleOptions(name_servers=("127.0.0.1:9876",), **options)
    assert caught.value.option == option


def test_others_may_be_served_behind_a_certificate_or_a_proxy() -> None:
    certified: dict[str, Any] = {"certificate": "c.pem", "key": "k.pem"}
    for options in (certified, {"allow_plaintext": True}):
        ConsoleOptions(name_servers=("127.0.0.1:9876",), listen="0.0.0.0:9880", **options)
