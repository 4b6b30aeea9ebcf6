"""The options that the constructors of all clients share."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from broker.client.checks import check_kind
from broker.client.transport.credentials import Credentials
from broker.client.transport.runtime import Runtime
from broker.trace import TraceWriter


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The way to a cluster: name servers, runtime, TLS, account, trace. Raises UsageError for one that is of another
    class; `ClientCore` checks the addresses."""

    name_servers: str | Sequence[str]
    """Addresses ``host:port``: a list, or one text with ``;`` or ``,`` between them."""
    runtime: Runtime | None = None
    """Clock, tasks and sockets; None means Trio with real ones."""
    tls: ssl.SSLContext | None = None
    """Encrypts all connections of the default runtime. A runtime that is given has its own."""
    credentials: Credentials | None = None
    """Signs all requests (docs/security.md)."""
    trace: TraceWriter | None = None
    """Records what the client asks and learns (docs/trace-format.md)."""

    def __post_init__(self) -> None:
        check_kind(ssl.SSLContext | None, tls=self.tls)
        check_kind(Credentials | None, credentials=self.credentials)
        check_kind(TraceWriter | None, trace=self.trace)

    def chosen_runtime(self) -> Runtime:
        """Return the runtime that was given, or a new one on Trio."""
        if self.runtime is not None:
            return self.runtime
        from broker.client.transport.trio_runtime import TrioRuntime  # the simulator never loads Trio

        return TrioRuntime(tls=self.tls)
