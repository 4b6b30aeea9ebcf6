"""What a server leaves to everyone, and secrets that are none."""

from __future__ import annotations

import pytest

from broker.settings.openness import left_open
from broker.settings.rules import ImpossibleSettingError, check_broker, check_name_server
from broker.settings.tables import (
    AclSettings,
    NameServerSettings,
    NodeSettings,
    RaftSettings,
    Settings,
    TlsSettings,
)

SECRET = "a secret of 16 and more"


def test_what_a_broker_leaves_open() -> None:
    peers = {"n0": "127.0.0.1:1", "n1": "127.0.0.1:2"}
    name_servers = ("127.0.0.1:9876",)
    everything = Settings(node=NodeSettings(name_servers=name_servers), raft=RaftSettings(peers=peers))
    assert list(left_open(everything).values()) == [
        "acl.file",
        "tls.mode",
        "raft.peer_secret",
        "node.registration_secret",
    ]
    nothing = Settings(
        node=NodeSettings(name_servers=name_servers, registration_secret=SECRET),
        raft=RaftSettings(peers=peers, peer_secret=SECRET),
        acl=AclSettings(file="accounts.toml"),
        tls=TlsSettings(mode="enforcing", certificate="c", key="k"),
    )
    assert left_open(nothing) == {}
    assert list(left_open(Settings())) == ["all requests of clients", "clients in the clear"]


def test_what_a_name_server_leaves_open() -> None:
    assert list(left_open(NameServerSettings()).values()) == ["registration_secret", "acl_file", "tls_mode"]
    guarded = NameServerSettings(registration_secret=SECRET, acl_file="accounts.toml", tls_mode="enforcing")
    assert left_open(guarded) == {"routes": "acl_routes"}


def test_accounts_of_a_name_server_need_a_secret_of_the_brokers() -> None:
    with pytest.raises(ImpossibleSettingError, match="enters a broker in place of another"):
        check_name_server(NameServerSettings(acl_file="accounts.toml", acl_allow_plaintext=True))
    with pytest.raises(ImpossibleSettingError, match="acl_allow_plaintext = true takes that risk"):
        check_name_server(NameServerSettings(acl_file="accounts.toml", registration_secret=SECRET))
    check_name_server(
        NameServerSettings(acl_file="accounts.toml", registration_secret=SECRET, acl_allow_plaintext=True)
    )


def test_short_secrets_are_refused() -> None:
    with pytest.raises(ImpossibleSettingError, match="at least 16 characters"):
        check_name_server(NameServerSettings(registration_secret="short"))
    with pytest.raises(ImpossibleSettingError, match="at least 16 characters"):
        check_broker(Settings(node=NodeSettings(registration_secret="short")))
