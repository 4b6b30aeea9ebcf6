"""The settings of a node as frozen values, which :mod:`broker.settings.loading` reads from a file.

Settings are grouped by the part that they steer rather than kept in one long list, and each group mirrors one table of
the TOML file, field for field, so that the documentation, the file and the code use the same words. A limit stands in
the type of its field (``Meta``), where the reader finds it for its messages; rules between fields are in
:mod:`broker.settings.rules`. Defaults are RocketMQ's (BrokerConfig, MessageStoreConfig, DLedgerConfig) where its users
would notice a difference.

Nothing here opens a file or a socket.
"""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from broker.remoting.addresses import host_of, join_address, split_address

Text = Annotated[str, Meta(min_length=1)]
Positive = Annotated[int, Meta(ge=1)]
NodeId = Annotated[str, Meta(pattern=r"^n[0-9]{1,4}$", examples=["n0"])]

CONSUME_QUEUE_UNIT_BYTES = 20
"""Size of a ConsumeQueue unit (RocketMQ's ConsumeQueue.CQ_STORE_UNIT_SIZE)."""
ENTRY_INDEX_UNIT_BYTES = 32
"""Size of an entry index unit (docs/storage.md)."""
RECORD_OVERHEAD_BYTES = 64 * 1024
"""Room that a data file must have beside the largest body: headers, topic and at most 32 KiB of properties."""
MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Largest remoting frame (RocketMQ's NettyDecoder)."""

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_DELAY_LEVEL = re.compile(r"([0-9]+)([smhd])")
_MILLISECONDS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


SECRETS = frozenset(
    {
        *("raft.peer_secret", "node.registration_secret", "tls.key_password"),
        *("registration_secret", "tls_key_password"),  # of a name server
    }
)
"""Settings that are told to nobody."""


class SettingsTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the file."""


class NodeSettings(SettingsTable, frozen=True):
    """The identity of this node and its addresses."""

    cluster: Text = "DefaultCluster"
    """brokerClusterName: the name under which operators see all groups together."""
    group: Text = "broker-a"
    """brokerName and dLegerGroup: the Raft group, which clients know as one broker."""
    id: NodeId = "n0"
    """dLegerSelfId. The number after ``n`` plus one is the brokerId of this node while it follows."""
    listen: Text = "127.0.0.1:10911"
    """The address for clients, ``host:port``; port 0 takes a free one."""
    advertise: str = ""
    """brokerIP1: host, or ``host:port``, that clients are told; empty tells them the listening address."""
    name_servers: tuple[Text, ...] = ()
    """Name servers to register with, ``host:port`` each."""
    registration_secret: str = ""
    """Secret by which the name servers know a broker, the same on all of them; never sent (docs/security.md). Empty
    proves nothing."""
    vip: bool = False
    """Serve clients two ports below ``listen``, too (RocketMQ's VIP channel)."""
    linger_s: Annotated[int, Meta(ge=0, le=600)] = 0
    """Seconds for which a node that is told to stop still forwards requests while clients are connected. Clients renew
    their routes every 30 s, so they find the new leader before the node is gone (docs/operations.md). 0: it stops at
    once."""


class RaftSettings(SettingsTable, frozen=True):
    """The group and its timing."""

    peers: dict[NodeId, Text] = {}
    """Peer address of every node of the group, this one included; empty means a group of one."""
    peer_listen: str = ""
    """The address at which this node listens for its peers, ``host:port``; empty: its own address in ``peers``."""
    join: bool = False
    """This node is new to a running group while its store is empty: no member until it is added."""
    election_timeout_min_ms: Annotated[int, Meta(ge=50, le=600_000)] = 1000
    """Shortest time without a leader's message after which a node asks for votes."""
    election_timeout_max_ms: Annotated[int, Meta(ge=50, le=600_000)] = 2000
    """Longest such time; a node draws one between the two each time. A leader without a majority for it steps down."""
    heartbeat_ms: Annotated[int, Meta(ge=10, le=60_000)] = 200
    """Pause between two messages of a leader that has nothing to send, which say that it is there."""
    preferred_leaders: tuple[NodeId, ...] = ()
    """preferredLeaderId: nodes to hand leadership to when they have caught up, best first."""
    peer_window_bytes: Annotated[int, Meta(ge=65_536)] = 8 * 1024 * 1024
    """Bytes sent to a peer ahead of its acknowledgements."""
    peer_secret: str = ""
    """Secret that a node must know to be a peer, the same on all; never sent (docs/security.md). Empty admits
    everyone."""
    lineage: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{0,64}$")] = ""
    """A name for the group since it was restored from a backup, the same on all nodes (docs/backup.md). Nodes and
    stores of another lineage are refused; empty: the group was never restored."""
    hold_format: Annotated[int, Meta(ge=0)] = 0
    """The newest format to which this node raises the group's (docs/upgrading.md), so that the way back to an earlier
    release stays open; 0: the newest that all members read."""


class StorageSettings(SettingsTable, frozen=True):
    """The files of a node: places, sizes, flushing (docs/storage.md)."""

    path: Text = "store"
    """storePathRootDir: a relative path is taken from the directory the process was started in."""
    log_path: str = ""
    """storePathDLedgerCommitLog: directory of the entry log; empty means ``<path>/dledger-<id>``."""
    flush: Literal["sync", "async"] = "async"
    """flushDiskType: an acknowledged message is on the disk of a majority (sync), or in its page cache (async)."""
    flush_interval_ms: Annotated[int, Meta(ge=1, le=60_000)] = 500
    """flushIntervalCommitLog: how long ``async`` leaves written pages to the page cache."""
    data_file_bytes: Annotated[int, Meta(ge=4096, le=1 << 40, multiple_of=4096)] = 1 << 30
    """mappedFileSizeCommitLog: size of a file of the log, the same on all nodes of a group; never change it in an
    existing store."""
    entry_index_file_bytes: Annotated[int, Meta(ge=4096, multiple_of=ENTRY_INDEX_UNIT_BYTES)] = (
        5 * 1024 * 1024 * 32
    )
    """Size of a file of the log's index, in whole 32-byte units; never change it in an existing store."""
    consume_queue_file_bytes: Annotated[
        int, Meta(ge=CONSUME_QUEUE_UNIT_BYTES, multiple_of=CONSUME_QUEUE_UNIT_BYTES)
    ] = 6_000_000
    """mappedFileSizeConsumeQueue: size of a file of a queue, in whole 20-byte units."""
    index_file_slots: Positive = 5_000_000
    """maxHashSlotNum: hash slots of a file of the message index."""
    index_file_entries: Positive = 20_000_000
    """maxIndexNum: entries of a file of the message index."""
    prepare_ahead_bytes: Annotated[int, Meta(ge=4096, le=1 << 40)] = 16 * 1024 * 1024
    """The part of a file that is allocated and touched ahead of the writer; a file's size warms up whole files."""
    lock_memory: bool = False
    """Lock prepared pages into memory (mlock), the newest 2 GiB as far as the system's limit allows."""
    write_buffer: bool = False
    """transientStorePoolEnable: write new data files in memory first, and hand them to the kernel once a turn, before
    anything of it is acknowledged; takes the memory of two data files."""
    memory_percent: Annotated[int, Meta(ge=1, le=90)] = 40
    """accessMessageInMemoryMaxRatio: the share of the machine's memory that the end of the log is taken to fill. A
    worker reads older entries before they are sent, and their readers are pointed at a follower."""
    scrub_bytes_per_second: Annotated[int, Meta(ge=0, le=1 << 40)] = 1024 * 1024
    """Old files are read at this rate at most, to find what the disk has damaged; 0: they are not."""
    scrub_interval_s: Annotated[int, Meta(ge=1, le=10 * 366 * 86_400)] = 7 * 86_400
    """The time from one such pass's beginning to the next's, if the rate allows; a pass is spread over half of it."""
    accept_data_loss: bool = False
    """Start a node whose files are damaged or gone as if nothing had been lost; for one start only."""
    max_message_bytes: Annotated[int, Meta(ge=1, le=MAX_FRAME_BYTES - RECORD_OVERHEAD_BYTES)] = (
        4 * 1024 * 1024
    )
    """maxMessageSize: largest body accepted."""


class RetentionSettings(SettingsTable, frozen=True):
    """The deletion of the log's head (RocketMQ's DefaultMessageStore, DLedgerMmapFileStore)."""

    delete_hours: tuple[Annotated[int, Meta(ge=0, le=23)], ...] = (4,)
    """deleteWhen: hours of the local day in which expired files go."""
    reserved_hours: Annotated[int, Meta(ge=1)] = 72
    """fileReservedTime: a file whose last write is older is expired."""
    interval_ms: Annotated[int, Meta(ge=100)] = 10_000
    """Pause between two looks for expired files."""
    disk_clean_percent: Annotated[int, Meta(ge=10, le=95)] = 75
    """diskMaxUsedSpaceRatio: above it expired files go at any hour."""
    disk_force_percent: Annotated[int, Meta(ge=10, le=99)] = 85
    """diskSpaceCleanForciblyRatio: above it the oldest file goes whatever its age."""
    disk_full_percent: Annotated[int, Meta(ge=10, le=99)] = 90
    """diskSpaceWarningLevelRatio: above it sends are refused (code 14)."""
    force_clean: bool = True
    """cleanFileForciblyEnable: heed disk_force_percent."""


class BrokerSettings(SettingsTable, frozen=True):
    """The services of the broker for its clients."""

    auto_create_topics: bool = True
    """autoCreateTopicEnable: a send to an unknown topic creates it."""
    auto_create_groups: bool = True
    """autoCreateSubscriptionGroup: an unknown consumer group is created when it is first seen."""
    default_queue_count: Annotated[int, Meta(ge=1, le=1024)] = 8
    """defaultTopicQueueNums: queues of a topic that a send created, at most."""
    trace_topic: bool = False
    """traceTopicEnable: RMQ_SYS_TRACE_TOPIC exists from the start; else it is created as any other topic is."""
    permission: Literal["none", "read", "write", "read-write"] = "read-write"
    """brokerPermission: what clients are told that they may do; unordered sends are taken all the same."""
    delay_levels: str = DEFAULT_DELAY_LEVELS
    """messageDelayLevel: delays of levels 1, 2, ..., each a number with s, m, h or d."""
    sql_filters: bool = True
    """enablePropertyFilter: consumers may name an SQL92 condition; RocketMQ's default is false."""
    timer_max_delay_s: Annotated[int, Meta(ge=1, le=366 * 86_400)] = 3 * 86_400
    """timerMaxDelaySec: how far away a message's own delivery time may be, in seconds."""
    follower_reads: bool = True
    """slaveReadEnable: a follower answers pulls itself (committed messages only); else it forwards them."""
    long_polling: bool = True
    """longPollingEnable: a pull that finds nothing is held until something comes; if not, for a second."""
    reject_transactions: bool = False
    """rejectTransactionMessage: transaction messages are refused (code 16)."""
    accept_sends_from_ms: Annotated[int, Meta(ge=0)] = 0
    """startAcceptSendRequestTimeStamp: sends before this time (the group's, ms since 1970) are refused (code 1)."""
    lite_pulls: bool = True
    """litePullMessageEnable: LITE_PULL_MESSAGE is answered; else it is refused (code 16)."""
    notify_consumers: bool = True
    """notifyConsumerIdsChangedEnable: members hear at once that their consumer group has changed; a consumer group's
    own switch of that name counts, too."""
    transaction_timeout_ms: Annotated[int, Meta(ge=0)] = 6000
    """transactionTimeOut: age of an undecided transaction at which its producer is asked."""
    transaction_check_interval_ms: Annotated[int, Meta(ge=10)] = 30_000
    """transactionCheckInterval: how often undecided transactions are looked at."""
    transaction_check_max: Annotated[int, Meta(ge=1)] = 15
    """transactionCheckMax: how often a producer is asked before a transaction is given up."""
    order_lock_ttl_ms: Annotated[int, Meta(ge=1000)] = 60_000
    """Life of the lock of a queue consumed in order, after its last renewal (rebalance.lockMaxLiveTime)."""
    store_replies: bool = True
    """storeReplyMessageEnable: replies to requests are stored, too."""
    register_interval_ms: Annotated[int, Meta(ge=1000, le=60_000)] = 30_000
    """registerNameServerPeriod: how often the name servers are told that this node is there."""

    @property
    def permission_bits(self) -> int:
        """The reference's number: read 4, write 2."""
        return {"none": 0, "read": 4, "write": 2, "read-write": 6}[self.permission]

    @property
    def delay_level_ms(self) -> tuple[int, ...]:
        """Milliseconds of levels 1, 2, ... Raises ValueError for text that is not a list of delays."""
        return parse_delay_levels(self.delay_levels)


class LimitSettings(SettingsTable, frozen=True):
    """Bounds that keep one client, or all of them together, from taking the node's memory."""

    max_connections: Positive = 10_000
    """For a connection beyond it a silent one or a stranger's is closed, else that one
    (broker/requests/connection_places.py)."""
    idle_seconds: Positive = 120
    """serverChannelMaxIdleTimeSeconds: a connection without traffic for longer is closed."""
    max_pending_bytes_per_connection: Annotated[int, Meta(ge=65_536)] = 4 * 1024 * 1024
    """Responses that a client has not read; beyond it, its requests wait."""
    max_pending_proposals: Positive = 65_536
    """sendThreadPoolQueueCapacity: messages awaiting commit, those of batches counted each; beyond it, SYSTEM_BUSY."""
    max_pending_proposal_bytes: Annotated[int, Meta(ge=1024 * 1024)] = 64 * 1024 * 1024
    """Bytes of the messages awaiting commit; beyond it, SYSTEM_BUSY."""
    max_held_pulls: Positive = 100_000
    """pullThreadPoolQueueCapacity: pulls parked by long polling, at most half of them of one address alone."""
    max_topics: Positive = 20_000
    """Topics, the broker's own and those of retries and dead letters counted; beyond it none is created."""
    max_groups: Positive = 8_000
    """Consumer groups; beyond it none is created."""
    max_queues: Positive = 200_000
    """Queues of all topics together."""
    max_stored_offsets: Positive = 1_000_000
    """Offsets of consumer groups in queues; beyond it no consumer group is given one in another queue."""
    max_order_locks: Positive = 200_000
    """Order locks that live; beyond it requests for further ones get SYSTEM_ERROR."""
    max_writers: Positive = 200_000
    """Writers whose portions are stored once, each counted in every topic that it writes to; beyond it no further one
    may begin."""
    max_open_transactions: Positive = 1_000_000
    """Undecided transactions; beyond it half messages get SYSTEM_BUSY."""


class ObserveSettings(SettingsTable, frozen=True):
    """The node's reports about itself."""

    trace: str = ""
    """File to which the replica's events are written (docs/trace-format.md); empty writes none."""
    metrics: str = ""
    """``host:port`` that serves ``/metrics`` for Prometheus, ``/livez`` and ``/readyz``; empty serves none."""
    metrics_series_max: Positive = 1000
    """Topics, consumer groups or queues that a metric tells of; the others are summed up under ``(others)``."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least important event that is logged."""


class TlsSettings(SettingsTable, frozen=True):
    """Encrypted connections (docs/security.md). All files are PEM."""

    mode: Literal["disabled", "permissive", "enforcing"] = "permissive"
    """tls.server.mode: clients may encrypt (permissive), must (enforcing) or cannot; without a certificate they
    cannot."""
    certificate: str = ""
    """tls.server.certPath: this server's certificate and those up to its authority."""
    key: str = ""
    """tls.server.keyPath: the certificate's private key."""
    key_password: str = ""
    """tls.server.keyPassword: what the key is encrypted with; empty for a key that is not."""
    client_auth: Literal["none", "optional", "required"] = "none"
    """tls.server.need.client.auth: clients must show a certificate, may, or are not asked."""
    client_ca: str = ""
    """tls.server.trustCertPath: authorities whose certificates clients may show."""
    name_server_ca: str = ""
    """tls.client.trustCertPath: authorities of the name servers' certificates; empty connects to them without TLS."""
    peer_ca: str = ""
    """Authorities that certify this group's nodes and nobody else; empty leaves links between them in the clear."""


class AclSettings(SettingsTable, frozen=True):
    """Accounts and their permissions (docs/security.md)."""

    file: str = ""
    """File of accounts (TOML); empty lets everyone do everything."""
    signatures: Literal["any", "frame"] = "any"
    """Signatures that count: Trivet's over whole frames only, or RocketMQ 4.x's, too, as its clients and mqadmin make
    them."""
    allow_plaintext: bool = False
    """Take accounts over plain connections, too, where whoever listens reads all of it and can repeat what is
    signed RocketMQ's way."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of one broker."""

    node: NodeSettings = NodeSettings()
    raft: RaftSettings = RaftSettings()
    storage: StorageSettings = StorageSettings()
    retention: RetentionSettings = RetentionSettings()
    broker: BrokerSettings = BrokerSettings()
    limits: LimitSettings = LimitSettings()
    observe: ObserveSettings = ObserveSettings()
    tls: TlsSettings = TlsSettings()
    acl: AclSettings = AclSettings()
    warnings: tuple[str, ...] = ()
    """Settings that the reader accepted without effect, one sentence each; not part of the file."""

    @property
    def follower_broker_id(self) -> int:
        """The brokerId under which this node registers while it follows; a leader's is 0."""
        return follower_broker_id(self.node.id)

    @property
    def log_directory(self) -> str:
        """Directory of the entry log (docs/storage.md)."""
        return self.storage.log_path or f"{self.storage.path}/dledger-{self.node.id}"

    def advertised_address(self, bound_port: int) -> str:
        """The ``host:port`` that clients are told; ``bound_port`` is the port in use (``listen`` may say 0)."""
        host = self.node.advertise or split_address(self.node.listen)[0]
        return host if has_port(host) else join_address(host_of(host), bound_port)


class NameServerSettings(SettingsTable, frozen=True):
    """All settings of one name server."""

    listen: Text = "127.0.0.1:9876"
    kv_config_path: str = "namesrv/kvConfig.json"
    """kvConfigPath: file that keeps key-value configuration, written when it changes; empty keeps it in memory.

    The reference's is in ``namesrv`` in the user's home; here it is in the directory of the start, as a broker's store.
    """
    ordered_messages: bool = False
    """orderMessageEnable: routes carry the order configuration of a topic."""
    broker_expiry_seconds: Positive = 120
    """A broker silent for longer is dropped from every route."""
    max_connections: Positive = 10_000
    """Connections of clients, as a broker's ``[limits] max_connections``."""
    max_brokers: Positive = 10_000
    """Addresses that are registered; beyond it a broker that is new is refused."""
    max_routes: Positive = 1_000_000
    """Topics of all brokers together, one of several brokers counted for each; beyond it none is added."""
    max_key_values: Positive = 20_000
    """Keys of the key-value configuration, in all namespaces."""
    idle_seconds: Positive = 120
    metrics: str = ""
    """``host:port`` that serves ``/metrics`` for Prometheus, ``/livez`` and ``/readyz``; empty serves none."""
    tls_mode: Literal["disabled", "permissive", "enforcing"] = "permissive"
    """tls.server.mode: clients may encrypt (permissive), must (enforcing) or cannot; without a certificate they
    cannot."""
    tls_certificate: str = ""
    """tls.server.certPath: this server's certificate and those up to its authority."""
    tls_key: str = ""
    """tls.server.keyPath: the certificate's private key."""
    tls_key_password: str = ""
    """tls.server.keyPassword: what the key is encrypted with; empty for a key that is not."""
    tls_client_auth: Literal["none", "optional", "required"] = "none"
    """tls.server.need.client.auth: clients must show a certificate, may, or are not asked."""
    tls_client_ca: str = ""
    """tls.server.trustCertPath: authorities whose certificates clients may show."""
    tls_broker_ca: str = ""
    """Authority that certifies nothing but brokers, their ``[tls] peer_ca``: who shows a certificate of it may register
    as one that knows the secret."""
    registration_secret: str = ""
    """Secret that a broker must know to register, the same on all; never sent (docs/security.md). Empty lets everyone
    register, unless ``tls_broker_ca`` is given."""
    acl_file: str = ""
    """File of accounts (TOML), as a broker's; empty lets everyone do everything but register."""
    acl_signatures: Literal["any", "frame"] = "any"
    """Signatures that count, as a broker's ``[acl] signatures``."""
    acl_allow_plaintext: bool = False
    """Take accounts over plain connections, too, as a broker's ``[acl] allow_plaintext``."""
    acl_routes: Literal["anyone", "accounts"] = "anyone"
    """The clients that may ask for the route of a topic; every other request needs an account."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least important event that is logged."""
    warnings: tuple[str, ...] = ()
    """Settings that the reader accepted without effect; not part of the file."""

    @property
    def knows_brokers(self) -> bool:
        """A broker proves that it is one."""
        return bool(self.registration_secret or self.tls_broker_ca)

    @property
    def tls(self) -> TlsSettings:
        """The settings that begin with ``tls_``, as a broker's."""
        return TlsSettings(
            mode=self.tls_mode,
            certificate=self.tls_certificate,
            key=self.tls_key,
            key_password=self.tls_key_password,
            client_auth=self.tls_client_auth,
            client_ca=self.tls_client_ca,
        )

    @property
    def acl(self) -> AclSettings:
        """The settings that begin with ``acl_``, as far as a broker has them, too."""
        return AclSettings(
            file=self.acl_file, signatures=self.acl_signatures, allow_plaintext=self.acl_allow_plaintext
        )


def follower_broker_id(node_id: str) -> int:
    """The brokerId under which a node registers while it follows; a leader's is 0 (RocketMQ's
    DLedgerRoleChangeHandler)."""
    return int(node_id[1:]) + 1


def has_port(address: str) -> bool:
    """Tells whether an address is ``host:port`` and no host alone."""
    try:
        split_address(address)
    except ValueError:
        return False
    return True


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Milliseconds of each level of a messageDelayLevel text; raises ValueError naming the bad word."""
    levels = []
    for word in text.split():
        match = _DELAY_LEVEL.fullmatch(word)
        if match is None:
            raise ValueError(f"{word!r} is not a number followed by s, m, h or d")
        levels.append(int(match[1]) * _MILLISECONDS[match[2]])
    return tuple(levels)
