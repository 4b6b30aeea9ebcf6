"""Options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    import ssl

    from broker.client.admin import AdminClient
    from broker.client.transport.credentials import Credentials

NAME_SERVER_DEFAULT = "127.0.0.1:9876"

NameServer = Annotated[
    str,
    Parameter(
        name=["--namesrv", "-n"],
        env_var="TRIVET_NAMESRV",
        help='Name servers, HOST:PORT, several joined by ";".',
    ),
]
AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON instead of a table.")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How to connect, and who one is (docs/security.md); a secret in the environment is not seen by other users."""

    tls: Annotated[bool, Parameter(negative="", env_var="TRIVET_TLS", help="Encrypt all connections.")] = (
        False
    )
    tls_ca: Annotated[
        str,
        Parameter(
            show_default=False,
            env_var="TRIVET_TLS_CA",
            help="Authorities that certify the servers, a PEM file; implies --tls. Else the system's.",
        ),
    ] = ""
    tls_cert: Annotated[
        str,
        Parameter(
            show_default=False,
            env_var="TRIVET_TLS_CERT",
            help="Certificate to show to servers that ask, PEM.",
        ),
    ] = ""
    tls_key: Annotated[
        str, Parameter(show_default=False, env_var="TRIVET_TLS_KEY", help="Its private key, PEM.")
    ] = ""
    access_key: Annotated[
        str,
        Parameter(
            show_default=False, env_var="TRIVET_ACCESS_KEY", help="Account with which requests are signed."
        ),
    ] = ""
    secret_key: Annotated[
        str,
        Parameter(
            show_default=False, env_var="TRIVET_SECRET_KEY", help="Its secret; better in the environment."
        ),
    ] = ""

    def context(self) -> ssl.SSLContext | None:
        """None for connections in the clear; raises CommandError for files that cannot be used."""
        if not (self.tls or self.tls_ca or self.tls_cert or self.tls_key):
            return None
        from broker.settings.tables import ImpossibleSettingError
        from broker.shell.tls_contexts import client_context
        from broker.tools.cli.errors import USAGE, CommandError

        try:
            return client_context(self.tls_ca, self.tls_cert, self.tls_key)
        except ImpossibleSettingError as error:
            option = f"--{error.setting}".replace("_", "-").replace("certificate", "cert")
            raise CommandError(f"{option}: {error.reason}", USAGE) from None

    def credentials(self) -> Credentials | None:
        """None for unsigned requests; raises CommandError for half an account."""
        if not self.access_key and not self.secret_key:
            return None
        from broker.client.transport.credentials import Credentials
        from broker.tools.cli.errors import USAGE, CommandError

        if not self.access_key or not self.secret_key:
            missing = "--secret-key" if self.access_key else "--access-key"
            raise CommandError(f"{missing}: an access key and a secret key go together", USAGE)
        return Credentials(self.access_key, self.secret_key)


IN_THE_CLEAR = Security()


def name_servers(text: str) -> list[str]:
    """The addresses in ``--namesrv``; raises CommandError."""
    from broker.remoting.addresses import split_address
    from broker.tools.cli.errors import USAGE, CommandError

    addresses = [address.strip() for address in text.split(";") if address.strip()]
    if not addresses:
        raise CommandError("--namesrv: at least one HOST:PORT", USAGE)
    for address in addresses:
        try:
            split_address(address)
        except ValueError as error:
            raise CommandError(f"--namesrv {address}: {error}", USAGE) from None
    return addresses


def admin_client(namesrv: str, security: Security) -> AdminClient:
    """What ``--namesrv`` and the options of security name, to be entered; raises CommandError."""
    from broker.client.admin import AdminClient

    return AdminClient(name_servers(namesrv), tls=security.context(), credentials=security.credentials())
