"""Addresses taken apart and put together: one rule for settings, routes and connections."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.remoting.addresses import join_address, split_address


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("localhost:9876", ("localhost", 9876)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("broker-1.example.org:10911", ("broker-1.example.org", 10911)),
    ],
)
def test_an_address_is_a_host_and_a_port(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts
    assert join_address(*parts) == address


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("", "host:port"),
        ("localhost", "host:port"),
        (":9876", "host:port"),
        ("[]:9876", "host:port"),
        ("1.2.3.4:", "the port"),
        ("1.2.3.4:x", "the port"),
        ("1.2.3.4:70000", "the port"),
        ("1.2.3.4:-1", "the port"),
        ("1.2.3.4:\u0661", "the port"),
        ("::1:9876", "brackets"),
        ("fe80::1", "brackets"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(address: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        split_address(address)


@given(st.text())
def test_any_text_is_taken_apart_or_refused(text: str) -> None:
    try:
        host, port = split_address(text)
    except ValueError:
        return
    assert host
    assert 0 <= port <= 65535
