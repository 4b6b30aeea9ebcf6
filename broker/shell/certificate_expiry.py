"""The end of a server's certificate, which is logged ahead: behind it no client that checks certificates connects.

Python's ssl module reads the certificates of remote ends only. So this module reads the dates in a file itself. It
knows no more of DER (RFC 5280, section 4.1) than how long each element is.
"""

import re
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from broker.settings.tables import TlsSettings

log = structlog.get_logger("trivet.tls")

WARNED_AHEAD_S: Final = 14 * 24 * 3600
"""A certificate that expires within this time is logged as a warning."""

_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_FIELDS_BEFORE_VALIDITY: Final = 3
"""The fields of a TBSCertificate, besides the optional version: serial number, signature algorithm, issuer."""


def told_expiry(tls: TlsSettings, prefix: str, now_s: float) -> float | None:
    """Logs a warning if the certificate has expired or soon will. Returns when it expires, in Unix seconds.

    Returns None without a certificate, and for one whose dates cannot be read: OpenSSL will judge that one.
    `prefix` begins the names of settings in messages.
    """
    if not tls.certificate:
        return None
    try:
        # Whatever bytes stand beside the certificates are some characters in this encoding.
        expires_s = earliest_expiry(Path(tls.certificate).read_text(encoding="latin-1"))
    except (OSError, ValueError, IndexError) as error:
        log.info("the certificate's dates are not known", file=tls.certificate, reason=str(error))
        return None
    if expires_s - now_s < WARNED_AHEAD_S:
        log.warning(
            "the certificate has expired: clients that look at it do not connect"
            if expires_s <= now_s
            else "the certificate expires soon: clients that look at it will not connect then",
            file=tls.certificate,
            setting=f"{prefix}certificate",
            expires=datetime.fromtimestamp(expires_s, UTC).isoformat(),
            days=round((expires_s - now_s) / 86_400, 1),
        )
    return expires_s


def earliest_expiry(pem: str) -> float:
    """Returns the time at which the first of a file's certificates expires, in Unix seconds.

    Raises ValueError or IndexError if there is no certificate in it, or one that cannot be read.
    """
    return min(_expiry(ssl.PEM_cert_to_DER_cert(found)) for found in _PEM.findall(pem))


def _expiry(der: bytes) -> float:
    at, _ = _contents(der, 0)  # Certificate
    at, _ = _contents(der, at)  # TBSCertificate
    skipped = _FIELDS_BEFORE_VALIDITY + (der[at] == _VERSION)
    for _ in range(skipped):
        begin, size = _contents(der, at)
        at = begin + size
    at, _ = _contents(der, at)  # Validity: not before, not after
    begin, size = _contents(der, at)
    at = begin + size
    begin, size = _contents(der, at)
    text = der[begin : begin + size].decode("ascii")
    if der[at] == _UTC_TIME:  # two digits of the year: 50 to 99 are of the last century (RFC 5280, 4.1.2.5.1)
        text = ("19" if text >= "5" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _contents(der: bytes, at: int) -> tuple[int, int]:
    """Returns where the contents of the element at `at` begin, and how many bytes they have."""
    size = der[at + 1]
    # Below 128 the byte is the length; else its lower bits say in how many bytes that follows (X.690, 8.1.3).
    if size < 0x80:
        return at + 2, size
    length = size & 0x7F
    return at + 2 + length, int.from_bytes(der[at + 2 : at + 2 + length], "big")
