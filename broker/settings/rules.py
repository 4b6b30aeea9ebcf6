"""The rules between the settings of a node, beside the limits in the types of their fields.

The first setting that cannot stand beside the others is told by its name, ``table.field``, and what it takes.
"""

from collections.abc import Mapping

from broker.remoting.addresses import split_address
from broker.settings.tables import (
    RECORD_OVERHEAD_BYTES,
    AclSettings,
    NameServerSettings,
    RetentionSettings,
    Settings,
    TlsSettings,
    has_port,
    parse_delay_levels,
)

SECRET_LENGTH_MIN = 16


class ImpossibleSettingError(Exception):
    """Settings that are each allowed but cannot hold together; ``setting`` is the ``table.field`` to change."""

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(reason)
        self.setting = setting
        self.reason = reason


DISK_LIMITS = ("disk_clean_percent", "disk_force_percent", "disk_full_percent")


def following_limits(given: Mapping[str, int]) -> dict[str, str]:
    """Find limits of the disk's use that are not given and whose defaults contradict the given ones.

    Returns for each of them, by name, the given limit whose value it takes. To RocketMQ the three are independent of
    each other, and most people set the first alone: who lets the disk be filled to 95 % does not want files to go by
    force from 85 % on.
    """
    following = {}
    for number, name in enumerate(DISK_LIMITS):
        if name not in given:
            default = getattr(RetentionSettings(), name)
            above = [lower for lower in DISK_LIMITS[:number] if given.get(lower, default) > default]
            below = [upper for upper in DISK_LIMITS[number + 1 :] if given.get(upper, default) < default]
            if above or below:
                following[name] = above[-1] if above else below[0]
    return following


def check_broker(settings: Settings) -> None:
    """Raise :class:`ImpossibleSettingError` for the first setting that cannot hold beside the others."""
    _check_addresses(settings)
    _check_group(settings)
    _check_acl(settings.acl, settings.tls, "acl.", "tls.")
    raft = settings.raft
    if raft.election_timeout_max_ms <= raft.election_timeout_min_ms:
        raise ImpossibleSettingError(
            "raft.election_timeout_max_ms",
            f"must be above election_timeout_min_ms ({raft.election_timeout_min_ms}): equal timeouts split votes",
        )
    # Raft, 5.6: broadcast time is to be well below the election timeout.
    if raft.heartbeat_ms * 2 > raft.election_timeout_min_ms:
        raise ImpossibleSettingError(
            "raft.heartbeat_ms",
            f"at most half of election_timeout_min_ms ({raft.election_timeout_min_ms}): one lost heartbeat must not "
            "start an election",
        )
    storage = settings.storage
    if storage.max_message_bytes + RECORD_OVERHEAD_BYTES > storage.data_file_bytes:
        raise ImpossibleSettingError(
            "storage.max_message_bytes",
            f"at most data_file_bytes - {RECORD_OVERHEAD_BYTES} = {storage.data_file_bytes - RECORD_OVERHEAD_BYTES}: "
            "a record never spans two files",
        )
    retention = settings.retention
    if not retention.disk_clean_percent <= retention.disk_force_percent <= retention.disk_full_percent:
        raise ImpossibleSettingError(
            "retention.disk_force_percent",
            f"between disk_clean_percent ({retention.disk_clean_percent}) and disk_full_percent "
            f"({retention.disk_full_percent})",
        )
    try:
        parse_delay_levels(settings.broker.delay_levels)
    except ValueError as error:
        raise ImpossibleSettingError("broker.delay_levels", str(error)) from None
    _check_tls(settings.tls, "tls.")
    _check_secret("raft.peer_secret", settings.raft.peer_secret)
    _check_secret("node.registration_secret", settings.node.registration_secret)


def _check_acl(acl: AclSettings, tls: TlsSettings, acl_prefix: str, tls_prefix: str) -> None:
    """Check the settings of accounts, in which the prefixes begin the names. Raises :class:`ImpossibleSettingError`."""
    if acl.file and not acl.allow_plaintext and (tls.mode == "disabled" or not tls.certificate):
        raise ImpossibleSettingError(
            f"{acl_prefix}file",
            f"accounts need TLS ({tls_prefix}certificate, {tls_prefix}key), without which whoever listens can do what "
            f"they do; {acl_prefix}allow_plaintext = true takes that risk",
        )


def check_name_server(settings: NameServerSettings) -> None:
    """Raise :class:`ImpossibleSettingError` for the first setting that cannot hold."""
    _check_address("listen", settings.listen, port_zero=True)
    if settings.metrics:
        _, metrics_port = _check_address("metrics", settings.metrics, port_zero=True)
        if metrics_port and settings.metrics == settings.listen:
            raise ImpossibleSettingError("metrics", f"{settings.listen} is the address of listen already")
    _check_tls(settings.tls, "tls_")
    _check_acl(settings.acl, settings.tls, "acl_", "tls_")
    _check_secret("registration_secret", settings.registration_secret)
    if settings.tls_broker_ca and (settings.tls_mode == "disabled" or not settings.tls_certificate):
        raise ImpossibleSettingError(
            "tls_broker_ca", "needs tls_certificate and tls_key, and TLS that is not disabled"
        )
    if settings.tls_broker_ca and settings.tls_client_auth != "none":
        raise ImpossibleSettingError(
            "tls_client_auth", "certificates are asked of brokers (tls_broker_ca) or of clients, not of both"
        )
    if settings.acl_file and not settings.knows_brokers:
        raise ImpossibleSettingError(
            "acl_file",
            "needs registration_secret or tls_broker_ca: without either whoever connects enters a broker in place of "
            "another",
        )


def _check_secret(setting: str, secret: str) -> None:
    if 0 < len(secret) < SECRET_LENGTH_MIN:
        raise ImpossibleSettingError(
            setting, f"at least {SECRET_LENGTH_MIN} characters: a shorter one can be guessed"
        )


def _check_tls(tls: TlsSettings, prefix: str) -> None:
    """Check the settings of TLS, whose names begin with ``prefix``. Raises :class:`ImpossibleSettingError`."""
    if bool(tls.certificate) != bool(tls.key):
        given, missing = ("certificate", "key") if tls.certificate else ("key", "certificate")
        raise ImpossibleSettingError(f"{prefix}{missing}", f"needed because {prefix}{given} is given")
    if not tls.certificate:
        for name, needs in (
            ("mode", tls.mode == "enforcing"),
            ("client_auth", tls.client_auth != "none"),
            ("peer_ca", bool(tls.peer_ca)),
        ):
            if needs:
                raise ImpossibleSettingError(prefix + name, f"needs {prefix}certificate and {prefix}key")
    if tls.client_auth != "none" and not tls.client_ca:
        raise ImpossibleSettingError(
            f"{prefix}client_auth", f"needs {prefix}client_ca, which says whose certificates are good"
        )


def _check_address(setting: str, address: str, *, port_zero: bool) -> tuple[str, int]:
    try:
        host, port = split_address(address)
    except ValueError as error:
        raise ImpossibleSettingError(setting, f"{address!r}: {error}") from None
    if port == 0 and not port_zero:
        raise ImpossibleSettingError(setting, f"{address!r}: others connect to this port, so it cannot be 0")
    return host, port


def _check_addresses(settings: Settings) -> None:
    node = settings.node
    host, port = _check_address("node.listen", node.listen, port_zero=True)
    if host in ("0.0.0.0", "::") and not node.advertise:
        raise ImpossibleSettingError(
            "node.advertise",
            f"needed because listen is {node.listen!r}, which is no address that a client can connect to",
        )
    if ":" in node.advertise and not has_port(node.advertise) and node.advertise.count(":") == 1:
        raise ImpossibleSettingError(
            "node.advertise", f"{node.advertise!r}: a host, or host:port with a port from 0 to 65535"
        )
    # RocketMQ's clients with vipChannelEnabled connect to the broker's port minus 2.
    if node.vip and 0 < port < 3:
        raise ImpossibleSettingError("node.vip", f"needs a port two below that of listen, {node.listen!r}")
    for address in node.name_servers:
        _check_address("node.name_servers", address, port_zero=False)
    if settings.observe.metrics:
        _, metrics_port = _check_address("observe.metrics", settings.observe.metrics, port_zero=True)
        if metrics_port and settings.observe.metrics == node.listen:
            raise ImpossibleSettingError(
                "observe.metrics", f"{node.listen} is the address of node.listen already"
            )


def _check_group(settings: Settings) -> None:
    peers = settings.raft.peers
    if settings.raft.join and len(peers) < 2:
        raise ImpossibleSettingError(
            "raft.join", "needs raft.peers with the nodes of the running group beside this one"
        )
    if not peers:
        if settings.raft.preferred_leaders:
            raise ImpossibleSettingError(
                "raft.preferred_leaders", "a group of one (no peers) has no leader to prefer"
            )
        return
    if settings.node.id not in peers:
        raise ImpossibleSettingError(
            "raft.peers", f"must include this node, {settings.node.id}; it has {', '.join(sorted(peers))}"
        )
    # Two nodes of one address would be one process that votes twice.
    owner_of: dict[str, str] = {}
    for node_id, address in peers.items():
        _check_address("raft.peers", address, port_zero=False)
        if address in owner_of:
            raise ImpossibleSettingError(
                "raft.peers", f"{owner_of[address]} and {node_id} both have {address}"
            )
        owner_of[address] = node_id
    if settings.raft.peer_listen:
        _check_address("raft.peer_listen", settings.raft.peer_listen, port_zero=False)
    if (settings.raft.peer_listen or peers[settings.node.id]) == settings.node.listen:
        raise ImpossibleSettingError(
            "raft.peer_listen" if settings.raft.peer_listen else "raft.peers",
            f"{settings.node.id} has {settings.node.listen}, which is node.listen: clients and peers need two ports",
        )
    for preferred in settings.raft.preferred_leaders:
        if preferred not in peers:
            raise ImpossibleSettingError(
                "raft.preferred_leaders", f"{preferred} is not among the peers {', '.join(sorted(peers))}"
            )
