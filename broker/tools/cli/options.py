"""Options that several commands share."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from broker.tools.cli.errors import USAGE, CommandError

if TYPE_CHECKING:
    import ssl

    from broker.client.admin import AdminClient
    from broker.client.transport.credentials import Credentials
    from broker.operations.asking import Groups
    from broker.tools.cluster.asking import Identity

AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON instead of a table.")]

AsJsonLines = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object a line.")]

Topic = Annotated[str, Parameter(help="Name of the topic.")]
ConsumerGroup = Annotated[str, Parameter(help="Name of the consumer group.")]
Group = Annotated[
    str | None, Parameter(help="The group's name; not needed where only one group is registered.")
]
OnlyGroups = Annotated[
    str | None, Parameter(help="Only in these groups, with commas between them; others stay as they are.")
]
OnlyBroker = Annotated[str | None, Parameter(help="Only at this broker group.")]
OnlyQueue = Annotated[int | None, Parameter(help="Only in this queue.")]
StopCount = Annotated[int | None, Parameter(help="Stop after this many messages.")]
StopTimeout = Annotated[
    float,
    Parameter(name="--timeout", show_default=False, help="Stop after this many seconds without a message."),
]


def check_stops(count: int | None, timeout_s: float = math.inf) -> None:
    """Raises CommandError for a --count below 1, or a --timeout that is not above 0."""
    if count is not None and count < 1:
        raise CommandError(f"--count {count}: at least 1", USAGE)
    if not timeout_s > 0:
        raise CommandError(f"--timeout {timeout_s:g}: seconds, more than 0", USAGE)


def _env(name: str, help: str) -> Parameter:
    """An option that may stand in the environment."""
    return Parameter(show_default=False, env_var=name, help=help)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Encryption:
    """The options that encrypt a command's connections and verify its servers."""

    tls: Annotated[bool, Parameter(negative="", env_var="TRIVET_TLS", help="Encrypt all connections.")] = (
        False
    )
    tls_ca: Annotated[
        str,
        _env(
            "TRIVET_TLS_CA",
            "Authorities that certify the servers, a PEM file; implies --tls. Else the system's.",
        ),
    ] = ""
    tls_cert: Annotated[str, _env("TRIVET_TLS_CERT", "Certificate to show to servers that ask, PEM.")] = ""
    tls_key: Annotated[str, _env("TRIVET_TLS_KEY", "Its private key, PEM.")] = ""

    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS context of connections, None for connections in the clear. Raises CommandError for unusable files."""
        if not (self.tls or self.tls_ca or self.tls_cert or self.tls_key):
            return None
        from broker.settings.rules import ImpossibleSettingError
        from broker.shell.tls_contexts import client_context

        try:
            return client_context(self.tls_ca, self.tls_cert, self.tls_key)
        except ImpossibleSettingError as error:
            option = f"--{error.setting}".replace("_", "-").replace("certificate", "cert")
            raise CommandError(f"{option}: {error.reason}", USAGE) from None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Connections(Encryption):
    """The options for a command's connections, and the identity under which it connects (docs/security.md).

    Options may stand in the environment, where other users of the machine do not see a secret.
    """

    access_key: Annotated[str, _env("TRIVET_ACCESS_KEY", "Account with which requests are signed.")] = ""
    secret_key: Annotated[str, _env("TRIVET_SECRET_KEY", "Its secret; better in the environment.")] = ""

    def credentials(self) -> Credentials | None:
        """The account that signs requests, None for unsigned ones. Raises CommandError for half an account."""
        if not self.access_key and not self.secret_key:
            return None
        from broker.client.transport.credentials import Credentials

        if not self.access_key or not self.secret_key:
            missing = "--secret-key" if self.access_key else "--access-key"
            raise CommandError(f"{missing}: an access key and a secret key go together", USAGE)
        return Credentials(self.access_key, self.secret_key)

    def identity(self) -> Identity:
        """The options of clients that say who asks. Raises CommandError."""
        return {"tls": self.tls_context(), "credentials": self.credentials()}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class NameServers(Encryption):
    """The name servers through which a command finds everything, and how it connects."""

    namesrv: Annotated[
        str,
        Parameter(
            name=["--namesrv", "-n"],
            env_var="TRIVET_NAMESRV",
            help='Name servers, HOST:PORT, several joined by ";".',
        ),
    ] = "127.0.0.1:9876"

    def addresses(self) -> list[str]:
        """The name servers' addresses. Raises CommandError."""
        return check_addresses(self.namesrv, "--namesrv")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Servers(NameServers, Connections):
    """The servers that a command talks to, and the identity under which it does."""

    def admin(self) -> AdminClient:
        """A client for administration, to be entered. Raises CommandError."""
        from broker.client.admin import AdminClient

        return AdminClient(self.addresses(), **self.identity())

    @asynccontextmanager
    async def groups(self) -> AsyncIterator[Groups]:
        """The registered broker groups, for questions in the block. Raises CommandError, and as `Groups.registered`."""
        from broker.operations.asking import Groups

        async with self.admin() as admin:
            yield await Groups.registered(admin)


DEFAULT_SERVERS = Servers()
DEFAULT_CONNECTIONS = Connections()
DEFAULT_NAME_SERVERS = NameServers()


def check_addresses(joined: str, option: str) -> list[str]:
    """The addresses in text that joins them by ";". Raises CommandError, which names the option."""

    addresses = [address.strip() for address in joined.split(";") if address.strip()]
    if not addresses:
        raise CommandError(f"{option}: at least one HOST:PORT", USAGE)
    for address in addresses:
        check_address(address, f"{option} {address}")
    return addresses


def check_address(address: str, named: str) -> None:
    """Raise CommandError, which begins with ``named``, for text that is not HOST:PORT."""
    from broker.remoting.addresses import split_address

    try:
        split_address(address)
    except ValueError as error:
        raise CommandError(f"{named}: {error}", USAGE) from None
