"""The options of a console."""

import ipaddress
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from broker.remoting.addresses import split_address

DEFAULT_PORT = 9880


class ImpossibleOptionError(ValueError):
    """Options that do not go together; ``option`` is the one to change, as the command line calls it."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")
        self.option = option


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleOptions:
    """Options: where a console is served, and of which cluster.

    It has no account of its own: what visitors do is done as the account that they have signed in with, or as nobody.
    Raises `ImpossibleOptionError`.
    """

    name_servers: tuple[str, ...]
    tls: ssl.SSLContext | None = None
    """The context of connections with brokers and name servers; None in the clear."""
    listen: str = f"127.0.0.1:{DEFAULT_PORT}"
    """HOST:PORT; port 0 takes a free one."""
    certificate: str = ""
    """The certificate that browsers are shown, a PEM file."""
    key: str = ""
    allow_plaintext: bool = False
    """True if others than this machine may be served without a certificate, as behind a proxy that has one."""
    host_names: tuple[str, ...] = ()
    """Names under which browsers may ask for it, beside localhost and addresses in numbers."""
    writable: bool = False
    audit_file: Path | None = None
    """The file in which changes are written down; None for stderr."""
    reports: Path | None = field(default=None)
    """A directory with reports of the simulator and the analysis; None for none."""

    accounts: Path | None = None
    """The brokers' file of accounts, shown to administrators without its secrets; None shows none."""

    def __post_init__(self) -> None:
        try:
            host, _ = split_address(self.listen)
        except ValueError as error:
            raise ImpossibleOptionError("--listen", f"{self.listen}: {error}") from None
        if bool(self.certificate) != bool(self.key):
            missing = "--key" if self.certificate else "--certificate"
            raise ImpossibleOptionError(missing, "a certificate and its key go together")
        if not self.certificate and not self.allow_plaintext and not is_loopback(host):
            raise ImpossibleOptionError(
                "--listen",
                f"{self.listen} is reached by others, who would send their secrets in the clear: give --certificate "
                "and --key, or --allow-plaintext behind a proxy that encrypts",
            )
        if self.reports is not None and not self.reports.is_dir():
            raise ImpossibleOptionError("--reports", f"{self.reports}: no such directory")
        if self.accounts is not None and not self.accounts.is_file():
            raise ImpossibleOptionError("--accounts", f"{self.accounts}: no such file")

    @property
    def is_encrypted(self) -> bool:
        """True if browsers speak TLS with this console itself."""
        return bool(self.certificate)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach that address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
