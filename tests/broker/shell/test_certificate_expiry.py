"""Certificates that expire are told of before nobody connects any more."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog
import trustme

from broker.settings.tables import NameServerSettings, TlsSettings
from broker.shell.certificate_expiry import WARNED_AHEAD_S, earliest_expiry, told_expiry
from broker.shell.name_server import NameServerProcess

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
SOON = timedelta(seconds=WARNED_AHEAD_S)


def issue(folder: Path, *ends: datetime) -> TlsSettings:
    """A file of certificates that end then, as one and those up to its authority are, and the first one's key."""
    authority = trustme.CA()
    issued = [authority.issue_cert("127.0.0.1", not_after=end) for end in ends]
    certificate, key = folder / "server.crt", folder / "server.key"
    certificate.write_bytes(b"".join(single.cert_chain_pems[0].bytes() for single in issued))
    key.write_bytes(issued[0].private_key_pem.bytes())
    return TlsSettings(certificate=str(certificate), key=str(key))


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ([NOW + 2 * SOON], None),
        ([NOW + SOON], None),
        ([NOW + SOON - timedelta(seconds=1)], "expires soon"),
        ([NOW], "has expired"),
        ([NOW - timedelta(days=1)], "has expired"),
        ([NOW + 9 * SOON, NOW + timedelta(days=1)], "expires soon"),
        ([datetime(2051, 1, 2, 3, 4, 5, tzinfo=UTC)], None),  # written as another type of time from 2050 on
    ],
)
def test_an_expiry_that_is_near_is_told(tmp_path: Path, ends: list[datetime], told: str | None) -> None:
    with structlog.testing.capture_logs() as logs:
        expires_s = told_expiry(issue(tmp_path, *ends), "tls.", NOW.timestamp())
    assert expires_s == min(ends).timestamp()
    warnings = [entry for entry in logs if entry["log_level"] == "warning"]
    if told is None:
        assert warnings == []
    else:
        (warning,) = warnings
        assert told in warning["event"]
        assert warning["setting"] == "tls.certificate"
        assert warning["expires"] == min(ends).isoformat()


def test_what_cannot_be_read_is_left_to_who_reads_it(tmp_path: Path) -> None:
    assert told_expiry(TlsSettings(), "tls.", 0) is None
    assert told_expiry(TlsSettings(certificate=str(tmp_path / "none")), "tls.", 0) is None
    for text in (
        "",
        "no PEM",
        "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
    ):
        with pytest.raises((ValueError, IndexError)):
            earliest_expiry(text)


async def test_a_server_tells_of_its_own_at_the_start_and_when_it_reads_it_anew(tmp_path: Path) -> None:
    tls = issue(tmp_path, datetime.now(UTC) + timedelta(days=1))
    settings = NameServerSettings(listen="127.0.0.1:0", tls_certificate=tls.certificate, tls_key=tls.key)
    with structlog.testing.capture_logs() as logs:
        server = NameServerProcess(settings)
    assert [entry["setting"] for entry in logs] == ["tls_certificate"]
    with structlog.testing.capture_logs() as logs:
        server.reload()
    assert [entry["event"][:23] for entry in logs] == ["certificate reloaded", "the certificate expires"]
    issue(tmp_path, datetime.now(UTC) + timedelta(days=99))
    with structlog.testing.capture_logs() as logs:
        server.reload()
    assert [entry["event"] for entry in logs] == ["certificate reloaded"]
    server.stop()
    await server.serve()
