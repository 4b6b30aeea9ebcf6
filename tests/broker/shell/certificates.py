"""Certificates for tests: authorities and what they sign, as PEM files in a folder."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme

from broker.shell.tls_contexts import client_context


class Certificates:
    """Two authorities, ``ca`` and ``other_ca``, and certificates for this machine by each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._authorities: dict[str, trustme.CA] = {}

    def authority(self, name: str = "ca") -> str:
        """The authority's own certificate."""
        path = self.folder / f"{name}.pem"
        if name not in self._authorities:
            self._authorities[name] = trustme.CA(organization_name=name)
            self._authorities[name].cert_pem.write_to_path(str(path))
        return str(path)

    def issue(self, identity: str = "127.0.0.1", authority: str = "ca") -> tuple[str, str]:
        """A certificate for an address or a name, and its key."""
        self.authority(authority)
        issued = self._authorities[authority].issue_cert(identity)
        base = self.folder / f"{identity}-{authority}"
        certificate, key = f"{base}.crt", f"{base}.key"
        Path(certificate).write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        Path(key).write_bytes(issued.private_key_pem.bytes())
        return certificate, key

    def client(self, *, authority: str = "ca", shows: tuple[str, str] = ("", "")) -> ssl.SSLContext:
        """A client that believes the authority."""
        return client_context(self.authority(authority), *shows)
