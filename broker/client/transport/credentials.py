"""The account of a client, for brokers that check who asks (docs/security.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from broker.remoting.command import header_fields
from broker.remoting.signature import ACCESS_KEY, SIGNATURE, signature


@dataclass(frozen=True, slots=True)
class Credentials:
    """An account: its name, and the secret with which each request is signed; the secret itself is never sent."""

    access_key: str
    secret_key: str = field(repr=False)

    def sign(
        self, fields: Mapping[str, str] | msgspec.Struct | None, body: bytes | bytearray | memoryview
    ) -> dict[str, str]:
        """Return the extFields of a request, with the account's name and the signature over them and the body."""
        signed = header_fields(fields) if isinstance(fields, msgspec.Struct) else dict(fields or {})
        signed[ACCESS_KEY] = self.access_key
        signed[SIGNATURE] = signature(self.secret_key, signed, body)
        return signed
