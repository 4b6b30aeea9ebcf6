"""Addresses taken apart and put together: one rule for settings, routes and connections."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.remoting.addresses import host_of, join_address, share_of, split_address


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


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.5:10911", "10.0.0.5"),
        ("10.0.0.5", "10.0.0.5"),
        ("[::1]:10911", "::1"),
        ("[::1]", "::1"),
        ("::1", "::1"),
        ("", ""),
    ],
)
def test_an_address_has_a_host_with_a_port_and_without(address: str, host: str) -> None:
    assert host_of(address) == host


@given(st.text())
def test_any_text_is_taken_apart_or_refused(text: str) -> None:
    try:
        host, port = split_address(text)
    except ValueError:
        return
    assert host
    assert 0 <= port <= 65535


@pytest.mark.parametrize(
    ("host", "share"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2::", "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::ffff:a00:1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("", ""),
        ("a name", "a name"),
        ("peer at n1", "peer at n1"),
        ("no:address", "no:address"),
        ("1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7:8:9"),
    ],
)
def test_what_counts_as_one_address(host: str, share: str) -> None:
    assert share_of(host) == share


@given(st.ip_addresses(v=6), st.ip_addresses(v=6))
def test_two_addresses_of_ipv6_count_as_one_if_and_only_if_their_network_is_one(
    one: IPv6Address, other: IPv6Address
) -> None:
    neighbour = IPv6Address(int(one) >> 64 << 64 | int(other) & (1 << 64) - 1)
    if one.ipv4_mapped is None and neighbour.ipv4_mapped is None:
        assert share_of(str(neighbour)) == share_of(str(one)) == str(IPv6Network((int(one) >> 64 << 64, 64)))
    if int(one) >> 64 != int(other) >> 64:
        assert share_of(str(one)) != share_of(str(other))


@given(st.ip_addresses(v=4), st.ip_addresses(v=4))
def test_an_address_of_ipv4_counts_as_itself_also_where_it_is_mapped(
    one: IPv4Address, other: IPv4Address
) -> None:
    assert share_of(str(one)) == share_of(f"::ffff:{one}") == str(one)
    assert (share_of(f"::ffff:{one}") == share_of(f"::ffff:{other}")) == (one == other)


@given(st.text())
def test_any_text_counts_as_something(text: str) -> None:
    assert share_of(share_of(text)) == share_of(text)
