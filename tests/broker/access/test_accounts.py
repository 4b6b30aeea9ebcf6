"""The file of accounts: what it says, and that whatever is wrong in it is named."""

from __future__ import annotations

import pytest

from broker.access.accounts import AccountsError, Permission, load, parse
from broker.access.addresses import AddressPatternError
from broker.access.addresses import parse as parse_addresses

GOOD = """
white_remote_addresses = ["10.1.*.*", "127.0.0.1"]

[[accounts]]
access_key = "orders-service"
secret_key = "orders-secret"
default_group_permission = "SUB"
topic_permissions = { orders = "PUB|SUB", audit = "DENY" }
group_permissions = { payments = "DENY" }

[[accounts]]
access_key = "operator"
secret_key = "operator-secret"
admin = true
white_remote_address = "10.2.0.{1,2}"
"""


def test_accounts_are_read() -> None:
    accounts = parse(GOOD, "accounts.toml")
    assert accounts.trusts("10.1.2.3")
    assert not accounts.trusts("10.2.0.1")
    orders, operator = (accounts.by_access_key[name] for name in ("orders-service", "operator"))
    assert (orders.topic("orders"), orders.topic("audit"), orders.topic("else")) == (
        Permission.ANY,
        Permission.DENY,
        Permission.DENY,
    )
    assert (orders.group("mine"), orders.group("payments")) == (Permission.SUB, Permission.DENY)
    assert not orders.admin
    assert not orders.trusts("10.1.2.3")
    assert operator.admin
    assert operator.trusts("10.2.0.2")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('"PUB|SUB"', '"PUBSUB"', "account orders-service, topic_permissions.*: Invalid enum value 'PUBSUB'"),
        (
            'secret_key = "orders-secret"',
            'secret_key = "short"',
            "account orders-service, secret_key: .*>= 7",
        ),
        ('secret_key = "orders-secret"', "", "account orders-service: .*missing required field `secret_key`"),
        ("admin = true", 'admin = "yes"', "account operator, admin: Expected `bool`"),
        ("admin = true", "administrator = true", "account operator: .*unknown field `administrator`"),
        ('access_key = "operator"', 'access_key = "orders-service"', "two accounts have the access_key"),
        ("10.2.0.{1,2}", "10.2.0", "operator: white_remote_address: '10.2.0' is neither"),
        ("10.1.*.*", "10.1.*.300", "white_remote_addresses: '10.1.*.300'"),
        ("[[accounts]]", "[accounts", "not TOML: .*line"),
        ("admin = true", f"admin = {'9' * 5000}", "not TOML: Exceeds the limit"),
        ("admin = true", f"admin = {'[' * 2000}", "not TOML: maximum recursion depth"),
    ],
)
def test_what_is_wrong_is_named(before: str, after: str, words: str) -> None:
    assert before in GOOD
    with pytest.raises(
        AccountsError, match=rf"accounts\.toml: {words}".replace("10.1.*.300", r"10\.1\.\*\.300")
    ):
        parse(GOOD.replace(before, after, 1), "accounts.toml")


def test_missing_file_is_named() -> None:
    with pytest.raises(AccountsError, match=r"nowhere\.toml: No such file"):
        load("nowhere.toml")


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("*", ["1.2.3.4", "fd00::1"], []),
        ("", [], ["1.2.3.4", "::1"]),
        ("10.0.0.5", ["10.0.0.5"], ["10.0.0.50", "10.0.0.4", "::1"]),
        ("10.0.0.*", ["10.0.0.0", "10.0.0.255"], ["10.0.1.1", "110.0.0.1"]),
        ("10.0.*.*", ["10.0.9.1"], ["10.1.9.1"]),
        ("10.0.1-3.*", ["10.0.1.9", "10.0.3.9"], ["10.0.4.9", "10.0.0.9"]),
        ("10.0.0.{1,23}", ["10.0.0.1", "10.0.0.23"], ["10.0.0.2", "10.0.0.3"]),
        ("10.0.0.1,10.0.0.{5,6}", ["10.0.0.1", "10.0.0.6"], ["10.0.0.2"]),
        ("10.0.0.0/8", ["10.255.0.1"], ["11.0.0.1", "fd00::1"]),
        ("fd00::1", ["fd00::1"], ["fd00::2", "10.0.0.1"]),
        ("fd00::/8", ["fd12::2"], ["fe80::1"]),
    ],
)
def test_addresses(pattern: str, inside: list[str], outside: list[str]) -> None:
    matches = parse_addresses(pattern)
    assert [address for address in inside if not matches(address)] == []
    assert [address for address in outside if matches(address)] == []


@pytest.mark.parametrize(
    "pattern", ["10.0.0", "10.0.0.x", "10.0.0.9-1", "10.0.0.1-256", "10.0.0.{1,999}", "a:b", "1.2.3.4/40"]
)
def test_texts_that_are_no_addresses(pattern: str) -> None:
    with pytest.raises(AddressPatternError):
        parse_addresses(pattern)
