"""The things that a server leaves to everyone who can connect, told in one line at its start (docs/security.md)."""

from broker.settings.tables import NameServerSettings, Settings


def left_open(settings: Settings | NameServerSettings) -> dict[str, str]:
    """Return what is open to everyone, each with the setting that closes it."""
    return _of_broker(settings) if isinstance(settings, Settings) else _of_name_server(settings)


def _of_broker(settings: Settings) -> dict[str, str]:
    found = {}
    if not settings.acl.file:
        found["all requests of clients"] = "acl.file"
    if settings.tls.mode != "enforcing":
        found["clients in the clear"] = "tls.mode"
    if settings.raft.peers and not (settings.raft.peer_secret or settings.tls.peer_ca):
        found["the port of the peers"] = "raft.peer_secret"
    shows_certificate = settings.tls.name_server_ca and settings.tls.certificate
    if settings.node.name_servers and not (settings.node.registration_secret or shows_certificate):
        found["registrations in this broker's place"] = "node.registration_secret"
    return found


def _of_name_server(settings: NameServerSettings) -> dict[str, str]:
    found = {}
    if not settings.knows_brokers:
        found["registrations of brokers"] = "registration_secret"
    if not settings.acl_file:
        found["changes and lists"] = "acl_file"
    elif settings.acl_routes == "anyone":
        found["routes"] = "acl_routes"
    if settings.tls_mode != "enforcing":
        found["connections in the clear"] = "tls_mode"
    return found
