"""What a broker with accounts keeps of answers for those who have shown none."""

import pytest

from broker.access.accounts import parse
from broker.access.control import AccessControl
from broker.client.transport.credentials import Credentials
from broker.remoting.codes import RequestCode, ResponseCode
from broker.requests import strangers_unread
from broker.statistics.events import EventKind
from tests.broker.harness import Group

READER = Credentials("reader-account", "reader-secret")
ACCOUNTS = """
[[accounts]]
access_key = "reader-account"
secret_key = "reader-secret"
topic_permissions = { T = "SUB" }
"""


@pytest.mark.parametrize("accounts", [True, False])
def test_strangers_that_read_nothing_are_closed(monkeypatch: pytest.MonkeyPatch, accounts: bool) -> None:
    """Fifty of them had a broker hold 200 MB of refusals. Without accounts nobody is a stranger."""
    monkeypatch.setattr(strangers_unread, "STRANGERS_UNREAD_BYTES_MAX", 100_000)
    group = Group.elected(1)
    group.connect("n0").create_topic("T")
    if accounts:
        group.node("n0").access = AccessControl(parse(ACCOUNTS, "accounts.toml"))
    route = {"topic": "T", "queueId": "0"}
    known = group.connect("n0", name="known")
    answer = known.call(RequestCode.GET_MAX_OFFSET, READER.sign(route, b""))
    assert answer.code == ResponseCode.SUCCESS
    known.connection.unsent_bytes = 90_000
    strangers = [group.connect("n0", name=f"stranger{number}") for number in range(20)]
    for stranger in strangers:
        code = stranger.call(RequestCode.GET_MAX_OFFSET, route).code
        assert (code == ResponseCode.NO_PERMISSION) is accounts
        stranger.connection.unsent_bytes = 10_000
    for stranger in strangers:
        if not stranger.closed:
            stranger.start_call(RequestCode.GET_MAX_OFFSET, route)
    group.settle()
    closed = sum(stranger.closed for stranger in strangers)
    assert closed >= 9 if accounts else closed == 0
    assert not known.closed
    assert known.connection.is_proven is accounts
    reasons = group.node("n0").events.counts
    assert reasons.get((EventKind.CONNECTION_CLOSED, "leaves responses unread"), 0) == closed
