"""Whoever does nothing on a TLS connection but renew its keys is sent away before he has cost much."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import pytest

from broker.settings.tables import TlsSettings
from broker.shell.tls import TlsSession
from broker.shell.tls_contexts import server_context
from tests.broker.shell.certificates import Certificates
from tests.hostile.key_updates import KeyUpdates


class Pair:
    """A client and a server that have shaken hands."""

    def __init__(self, folder: Path) -> None:
        certificates = Certificates(folder)
        certificate, key = certificates.issue()
        context = server_context(TlsSettings(certificate=certificate, key=key))
        assert context is not None
        self.server = TlsSession(context, server_side=True)
        self.client = TlsSession(certificates.client(), server_side=False, server_hostname="127.0.0.1")
        for _ in range(3):
            for one, other in ((self.client, self.server), (self.server, self.client)):
                with contextlib.suppress(ssl.SSLWantReadError):
                    one._ssl.do_handshake()
                other._incoming.write(one.pending())
        self.client.decrypt(b"")
        try:
            self.updates = KeyUpdates(self.client._ssl, self.client._outgoing)
        except LookupError as error:
            pytest.skip(str(error))


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


@pytest.mark.parametrize("wants_answers", [False, True])
def test_nothing_but_key_updates_ends_a_connection(pair: Pair, wants_answers: bool) -> None:
    """120 KiB of them, one read's, cost 38 to 74 ms."""
    data = pair.updates.take(120 * 1024, wants_answers=wants_answers)
    with pytest.raises(ssl.SSLError, match="and hardly any data"):
        pair.server.decrypt(data)
    assert pair.server._incoming.pending == 0, "what comes behind is not looked at"
    assert len(pair.server.pending()) <= 32 * 1024


def test_key_updates_that_come_with_the_end_of_the_handshake_count(pair: Pair) -> None:
    """64 KiB of them were read with its last message, counted for nothing, and cost 25 to 70 ms."""
    data = pair.updates.take(21 * 1024, wants_answers=False)
    pair.server._incoming.write(data)
    with pytest.raises(ssl.SSLError, match="and hardly any data"):
        pair.server.decrypt(b"")


def test_key_updates_among_requests_are_taken(pair: Pair) -> None:
    for _ in range(200):
        data = pair.updates.take(1, wants_answers=True) + pair.client.encrypt([b"x" * 100])
        assert pair.server.decrypt(data) == b"x" * 100
        assert pair.client.decrypt(pair.server.pending() + pair.server.encrypt([b"y"])) == b"y"


@pytest.mark.parametrize("size", [1, 100, 16 * 1024, 1 << 20])
def test_whatever_carries_requests_is_taken(pair: Pair, size: int) -> None:
    """In whatever pieces it comes. A byte in each record is all that is too little, after a while."""
    data = pair.client.encrypt([b"x" * min(size, 16 * 1024)] * (400 if size <= 100 else 20))
    arrived = b""
    piece = 7000 if size < 1 << 20 else len(data)
    for begin in range(0, len(data), piece):
        arrived += pair.server.decrypt(data[begin : begin + piece])
    assert arrived == b"x" * len(arrived)
    assert len(arrived) == min(size, 16 * 1024) * (400 if size <= 100 else 20)
