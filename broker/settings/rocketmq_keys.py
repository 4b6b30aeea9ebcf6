"""RocketMQ's own settings keys, and what each means to Trivet.

RocketMQ spreads its keys over BrokerConfig, MessageStoreConfig, NettyServerConfig and NettyClientConfig. Those that
steer something here name the setting they fill, with the function that turns their text into the setting's value; such
a function raises ValueError that says what is allowed. Those without a meaning here are listed too: a file that serves
RocketMQ must start Trivet, with a warning for each key that has no effect, while a key that neither knows is most
likely a typing mistake and is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass

from broker.settings.rocketmq_keys_5 import BROKER_KEYS_OF_5, REFUSED_VALUES_OF_5, by_key

Value = str | int | bool | list[str] | list[int] | dict[str, str]


@dataclass(frozen=True, slots=True)
class Meaning:
    """The ``table.field`` (or bare ``field`` of the name server) that a key fills, and how its text is read."""

    setting: str
    read: Callable[[str], Value]


def text(value: str) -> str:
    """Return the text as it is."""
    return value


def integer(value: str) -> int:
    """Read a whole number. Raises ValueError, whose text is what was expected; so do all below that raise it."""
    try:
        return int(value)
    except ValueError:
        raise ValueError("a whole number") from None


def boolean(value: str) -> bool:
    """Read ``true`` or ``false``, in whatever case. Raises ValueError."""
    match value.lower():
        case "true":
            return True
        case "false":
            return False
    raise ValueError("true or false")


def listed(value: str) -> list[str]:
    """Read addresses, or ids of nodes, that are joined by ";"; empty ones are left out."""
    return [item.strip() for item in value.split(";") if item.strip()]


def hours(value: str) -> list[int]:
    """Read hours of the day that are joined by ";". Raises ValueError."""
    try:
        return [int(hour) for hour in value.split(";") if hour.strip()]
    except ValueError:
        raise ValueError('hours of the day joined by ";", such as 04 or 04;16') from None


def _one_of(words: dict[str, str], allowed: str) -> Callable[[str], str]:
    """Return a function that reads one of these words; it raises ValueError with `allowed` for others."""

    def read(value: str) -> str:
        if value not in words:
            raise ValueError(allowed)
        return words[value]

    return read


flush = _one_of({"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}, "SYNC_FLUSH or ASYNC_FLUSH")
client_auth = _one_of(
    {"none": "none", "optional": "optional", "require": "required"}, "none, optional or require"
)
permission = _one_of(
    {"0": "none", "2": "write", "4": "read", "6": "read-write"},
    "6 (read and write), 4 (read), 2 (write) or 0 (neither)",
)


def peers(value: str) -> dict[str, str]:
    """Read ``n0-host:port;n1-host:port``. A repeated id is refused here, where it would otherwise vanish.

    Raises ValueError.
    """
    found: dict[str, str] = {}
    for peer in listed(value):
        node_id, dash, address = peer.partition("-")
        if not dash or not node_id or not address:
            raise ValueError('peers joined by ";", each id-host:port, such as n0-127.0.0.1:40911')
        if node_id in found:
            raise ValueError(f"each id once; {node_id} stands twice")
        found[node_id] = address
    return found


BROKER_KEYS: dict[str, Meaning] = {
    "brokerClusterName": Meaning("node.cluster", text),
    "brokerName": Meaning("node.group", text),
    "dLegerGroup": Meaning("node.group", text),
    "dLegerSelfId": Meaning("node.id", text),
    "dLegerPeers": Meaning("raft.peers", peers),
    "preferredLeaderId": Meaning("raft.preferred_leaders", listed),
    "preferredLeaderIds": Meaning("raft.preferred_leaders", listed),
    "brokerIP1": Meaning("node.advertise", text),
    "namesrvAddr": Meaning("node.name_servers", listed),
    "storePathRootDir": Meaning("storage.path", text),
    "storePathDLedgerCommitLog": Meaning("storage.log_path", text),
    "flushDiskType": Meaning("storage.flush", flush),
    "flushIntervalCommitLog": Meaning("storage.flush_interval_ms", integer),
    "mappedFileSizeCommitLog": Meaning("storage.data_file_bytes", integer),
    "mapedFileSizeCommitLog": Meaning("storage.data_file_bytes", integer),
    "mappedFileSizeConsumeQueue": Meaning("storage.consume_queue_file_bytes", integer),
    "mapedFileSizeConsumeQueue": Meaning("storage.consume_queue_file_bytes", integer),
    "maxHashSlotNum": Meaning("storage.index_file_slots", integer),
    "maxIndexNum": Meaning("storage.index_file_entries", integer),
    "maxMessageSize": Meaning("storage.max_message_bytes", integer),
    "transientStorePoolEnable": Meaning("storage.write_buffer", boolean),
    "accessMessageInMemoryMaxRatio": Meaning("storage.memory_percent", integer),
    "deleteWhen": Meaning("retention.delete_hours", hours),
    "fileReservedTime": Meaning("retention.reserved_hours", integer),
    "cleanResourceInterval": Meaning("retention.interval_ms", integer),
    "diskMaxUsedSpaceRatio": Meaning("retention.disk_clean_percent", integer),
    "diskSpaceCleanForciblyRatio": Meaning("retention.disk_force_percent", integer),
    "diskSpaceWarningLevelRatio": Meaning("retention.disk_full_percent", integer),
    "cleanFileForciblyEnable": Meaning("retention.force_clean", boolean),
    "autoCreateTopicEnable": Meaning("broker.auto_create_topics", boolean),
    "autoCreateSubscriptionGroup": Meaning("broker.auto_create_groups", boolean),
    "defaultTopicQueueNums": Meaning("broker.default_queue_count", integer),
    "traceTopicEnable": Meaning("broker.trace_topic", boolean),
    "brokerPermission": Meaning("broker.permission", permission),
    "messageDelayLevel": Meaning("broker.delay_levels", text),
    "enablePropertyFilter": Meaning("broker.sql_filters", boolean),
    "timerMaxDelaySec": Meaning("broker.timer_max_delay_s", integer),
    "slaveReadEnable": Meaning("broker.follower_reads", boolean),
    "longPollingEnable": Meaning("broker.long_polling", boolean),
    "rejectTransactionMessage": Meaning("broker.reject_transactions", boolean),
    "startAcceptSendRequestTimeStamp": Meaning("broker.accept_sends_from_ms", integer),
    "litePullMessageEnable": Meaning("broker.lite_pulls", boolean),
    "notifyConsumerIdsChangedEnable": Meaning("broker.notify_consumers", boolean),
    "transactionTimeOut": Meaning("broker.transaction_timeout_ms", integer),
    "transactionCheckInterval": Meaning("broker.transaction_check_interval_ms", integer),
    "transactionCheckMax": Meaning("broker.transaction_check_max", integer),
    "storeReplyMessageEnable": Meaning("broker.store_replies", boolean),
    "registerNameServerPeriod": Meaning("broker.register_interval_ms", integer),
    "sendThreadPoolQueueCapacity": Meaning("limits.max_pending_proposals", integer),
    "pullThreadPoolQueueCapacity": Meaning("limits.max_held_pulls", integer),
    "serverChannelMaxIdleTimeSeconds": Meaning("limits.idle_seconds", integer),
    "tls.server.mode": Meaning("tls.mode", text),
    "tls.server.certPath": Meaning("tls.certificate", text),
    "tls.server.keyPath": Meaning("tls.key", text),
    "tls.server.keyPassword": Meaning("tls.key_password", text),
    "tls.server.need.client.auth": Meaning("tls.client_auth", client_auth),
    "tls.server.trustCertPath": Meaning("tls.client_ca", text),
    "tls.client.trustCertPath": Meaning("tls.name_server_ca", text),
    "aclFile": Meaning("acl.file", text),
    "aclAllowPlaintext": Meaning("acl.allow_plaintext", boolean),
}
"""Keys of a ``broker.conf`` with an effect. ``listenPort`` is not here: the reader joins it with the host to listen
on."""

NAME_SERVER_KEYS: dict[str, Meaning] = {
    "kvConfigPath": Meaning("kv_config_path", text),
    "orderMessageEnable": Meaning("ordered_messages", boolean),
    "serverChannelMaxIdleTimeSeconds": Meaning("idle_seconds", integer),
    "tls.server.mode": Meaning("tls_mode", text),
    "tls.server.certPath": Meaning("tls_certificate", text),
    "tls.server.keyPath": Meaning("tls_key", text),
    "tls.server.keyPassword": Meaning("tls_key_password", text),
    "tls.server.need.client.auth": Meaning("tls_client_auth", client_auth),
    "tls.server.trustCertPath": Meaning("tls_client_ca", text),
}

_NETTY = "it tunes Netty"
_LIGHT_QUEUES = "there are no light message queues"

_KEYS_BY_REASON: dict[str, str] = {
    "sends do not wait in a queue before they are appended": "waitTimeMillsInSendQueue",
    "the Raft group decides roles": "brokerId brokerRole",
    "peers connect to the addresses of dLegerPeers": """
        brokerIP2 haListenPort haMasterAddress haSendHeartbeatInterval haHousekeepingInterval haTransferBatchSize
        haSlaveFallbehindMax
    """,
    "nothing is read from an installation directory": "rocketmqHome",
    "replication is always batched": "isEnableBatchPush enableBatchPush",
    "the log is kept in storePathDLedgerCommitLog": "storePathCommitLog",
    "everything but the log is kept under storePathRootDir": (
        "storePathConsumeQueue storePathIndex storePathBatchConsumeQueue storeCheckpoint abortFile"
    ),
    "there are no thread pools": """
        sendMessageThreadPoolNums pullMessageThreadPoolNums queryMessageThreadPoolNums adminBrokerThreadPoolNums
        clientManageThreadPoolNums consumerManageThreadPoolNums heartbeatThreadPoolNums endTransactionThreadPoolNums
        processReplyMessageThreadPoolNums replyThreadPoolQueueCapacity queryThreadPoolQueueCapacity
        clientManagerThreadPoolQueueCapacity consumerManagerThreadPoolQueueCapacity heartbeatThreadPoolQueueCapacity
        endTransactionPoolQueueCapacity adminBrokerThreadPoolQueueCapacity useReentrantLockWhenPutMessage
        sendThreadPoolNums putMessageFutureThreadPoolNums putThreadPoolQueueCapacity litePullMessageThreadPoolNums
        litePullThreadPoolQueueCapacity
    """,
    _NETTY: """
        serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads serverOnewaySemaphoreValue
        serverAsyncSemaphoreValue serverSocketSndBufSize serverSocketRcvBufSize serverSocketBacklog
        serverPooledByteBufAllocatorEnable serverNettyWorkerGroupEnable useEpollNativeSelector
        writeBufferHighWaterMark writeBufferLowWaterMark clientWorkerThreads clientCallbackExecutorThreads
        clientOnewaySemaphoreValue clientAsyncSemaphoreValue clientCloseSocketIfTimeout
        clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize connectTimeoutMillis
        channelNotActiveInterval clientChannelMaxIdleTimeSeconds
    """,
    "responses are always written from the mapping": "transferMsgByHeap",
    "files are prepared ahead of the writer (storage.prepare_ahead_bytes)": (
        "warmMapedFileEnable warmMappedFileEnable"
    ),
    "files are prepared ahead of the writer": "preallocate",
    "a write buffer takes two data files": "transientStorePoolSize",
    "the log is written through its mapping": """
        fastFailIfNoBufferInStorePool commitIntervalCommitLog commitCommitLogLeastPages
        commitCommitLogThoroughInterval
    """,
    "flushes are by time only": """
        flushCommitLogLeastPages flushCommitLogThoroughInterval flushCommitLogTimed flushLeastPagesWhenWarmMapedFile
    """,
    "queues are rebuilt from the log": (
        "flushIntervalConsumeQueue flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval"
    ),
    "a send waits as long as its client does": "syncFlushTimeout slaveTimeout",
    "checksums are always checked": "checkCRCOnRecover",
    "a pull's limit is its own maxMsgNums and one frame": """
        maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInMemory maxTransferBytesOnMessageInDisk
        maxTransferCountOnMessageInDisk
    """,
    "the index is always kept": "messageIndexEnable",
    "the index is always rebuilt from the log": "messageIndexSafe",
    "a query returns at most 64 messages": "maxMsgsNumBatch defaultQueryMaxNum",
    "files are deleted one per pass": "deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval",
    "files are unmapped when their last reader is done": (
        "destroyMapedFileIntervalForcibly redeleteHangedFileInterval"
    ),
    "there is one log": "duplicationEnable readOnlyCommitLogStorePaths",
    _LIGHT_QUEUES: "enableMultiDispatch enableLmq maxLmqConsumeQueueNum",
    "delayed messages are always delivered many at a time": """
        enableScheduleAsyncDeliver scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked
    """,
    "delayed messages are counted with the others": "enableScheduleMessageStats",
    "there is one kind of statistics": "enableDetailStat",
    "the lag of consumer groups is always told": "diskFallRecorded",
    "a broker's log goes to its standard error": "isolateLogEnable",
    "consumer offsets are in the replicated log": (
        "offsetCheckInSlave flushConsumerOffsetInterval flushConsumerOffsetHistoryInterval"
    ),
    "it is false, as here": "enableControllerMode",
    "delay progress is in the replicated log": "flushDelayOffsetInterval",
    "everyone may use the cluster's topic": "clusterTopicEnable",
    "everyone may use the broker's topic": "brokerTopicEnable",
    "the trace topic is RMQ_SYS_TRACE_TOPIC": "msgTraceTopicName",
    "it is always allowed": "traceOn",
    "name servers are given by namesrvAddr": "fetchNamesrvAddrByAddressServer",
    "registration is not compressed": "compressedRegister",
    "registration is always complete": "forceRegister",
    "registration is tried again by itself": "registerBrokerTimeoutMills",
    "overload is always answered at once": """
        brokerFastFailureEnable waitTimeMillsInPullQueue waitTimeMillsInHeartbeatQueue waitTimeMillsInTransactionQueue
        osPageCacheBusyTimeOutMills
    """,
    "it has no meaning in the reference either": """
        highSpeedMode maxDelayTime putMsgIndexHightWater commercialEnable commercialTimerCount commercialTransCount
        commercialBigCount commercialBaseCount
    """,
    "it is not told to clients": "regionId",
    "slow consumers are pointed at a follower": (
        "disableConsumeIfConsumerReadSlowly consumerFallbehindThreshold"
    ),
    "a short poll waits for a second": "shortPollingTimeMills",
    "it is a debugging aid of the reference": "debugLockEnable",
    "it names a Java class": "messageStorePlugIn",
    "class filters are not supported": "filterServerNums",
    "a certificate and tls.server.mode say whether clients may encrypt": "useTLS",
    "name servers are connected to with TLS if tls.client.trustCertPath is given": "tls.enable",
    "there are no self-signed certificates": "tls.test.mode.enable",
    "certificates of clients are verified whenever they are asked for": "tls.server.authClient",
    "certificates of name servers are always verified": "tls.client.authServer",
    "brokers show the certificate of tls.server.certPath": "tls.client.certPath tls.client.keyPath",
    "a client expires after two minutes": "channelExpiredTimeout",
    "a subscription expires after ten minutes": "subscriptionExpiredTimeout",
    "statistics expire by themselves": "autoDeleteUnusedStats",
    "SQL filters are evaluated on the record": """
        enableConsumeQueueExt mappedFileSizeConsumeQueueExt bitMapLengthConsumeQueueExt enableCalcFilterBitMap
        expectConsumerNumUseFilter maxErrorRateOfBloomFilter filterDataCleanTimeSpan filterSupportRetry
    """,
    "aclFile says who may do what": "aclEnable",
}

BROKER_KEYS_WITHOUT_EFFECT: dict[str, str] = by_key(_KEYS_BY_REASON) | BROKER_KEYS_OF_5
"""Keys of the reference with no effect here, each with the reason given in the warning."""

NAME_SERVER_KEYS_WITHOUT_EFFECT: dict[str, str] = {
    "rocketmqHome": "nothing is read from an installation directory",
    "configStorePath": "the configuration is not rewritten at run time",
    "productEnvName": "it has no meaning in the reference either",
    "clusterTest": "it is a debugging aid of the reference",
    "returnOrderTopicConfigToBroker": "brokers keep their own topics",
    **{key: reason for key, reason in BROKER_KEYS_WITHOUT_EFFECT.items() if reason == _NETTY},
}

REFUSED_VALUES: dict[str, dict[str, str]] = {
    "enableDLegerCommitLog": {
        "false": "true, or leave the key out: every group is a Raft group, if only of one"
    },
    "enableControllerMode": {"true": "false: the Raft group elects its leader itself"},
    "duplicationEnable": {"true": "false: there is one log"},
    "enableMultiDispatch": {"true": f"false: {_LIGHT_QUEUES}"},
    "enableLmq": {"true": f"false: {_LIGHT_QUEUES}"},
    **REFUSED_VALUES_OF_5,
}
"""Values of otherwise harmless keys that ask for what Trivet does not do; the text says what is allowed."""

ALLOWED_VALUES: dict[str, frozenset[str]] = {
    "brokerRole": frozenset({"ASYNC_MASTER", "SYNC_MASTER", "SLAVE"}),
    "enableDLegerCommitLog": frozenset({"true", "false"}),
    "enableControllerMode": frozenset({"true", "false"}),
    "aclEnable": frozenset({"true", "false"}),
}

for _keys, _others in (
    (BROKER_KEYS, BROKER_KEYS_WITHOUT_EFFECT),
    (NAME_SERVER_KEYS, NAME_SERVER_KEYS_WITHOUT_EFFECT),
):
    # Who sets it would be told that it means nothing here, and it would mean something.
    assert not _keys.keys() & _others.keys(), f"with and without an effect: {_keys.keys() & _others.keys()}"
