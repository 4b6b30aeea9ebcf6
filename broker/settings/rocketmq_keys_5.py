"""Settings keys that RocketMQ 5.x has and 4.9 has not, and why each has no effect here.

A broker.conf that serves RocketMQ 5.3 must start Trivet, as one of 4.9 does (see `rocketmq_keys.py`). Most of these
keys steer parts that 5.x has added to its broker and that Trivet leaves out (POP, controllers, tiered and RocksDB
stores), or parts of its machinery that have no counterpart here.
"""

_POP = "there is no POP consumption"
_RAFT = "the Raft group elects its leader and replicates"
_STORE = "it tunes RocketMQ's store"
_ROCKSDB = "there is no RocksDB"
_COLD = "readers of old messages are pointed at a follower, and their pages are loaded by a worker"
_TIMER = "messages for a time of their own are in an index without settings"
_METRICS = "observe.metrics serves metrics in Prometheus' format"
_THREADS = "there are no thread pools"
_WHOLE = "registrations and tables are sent whole"
_COMPACTION = "no topic is compacted"
_LOGGING = "it tunes what RocketMQ logs"
_NETTY = "it tunes Netty"
_CONTAINER = "there are no broker containers"

_KEYS_BY_REASON: dict[str, str] = {
    _POP: """
        ackMessageThreadPoolNums ackThreadPoolQueueCapacity waitTimeMillsInAckQueue popPollingSize popPollingMapSize
        popPollingMapExpireTimeSeconds maxPopPollingSize reviveQueueNum reviveInterval reviveMaxSlow reviveScanTime
        enableSkipLongAwaitingAck reviveAckWaitMs enablePopLog enablePopBufferMerge popCkStayBufferTime
        popCkStayBufferTimeOut popCkMaxBufferSize popCkOffsetMaxQueueSize enablePopBatchAck
        popLongPollingForceNotifyInterval enableNotifyBeforePopCalculateLag enableNotifyAfterPopOrderLockRelease
        initPopOffsetByCheckMsgInMem retrieveMessageFromPopRetryTopicV1 enableRetryTopicV2 popFromRetryProbability
        popConsumerFSServiceInit popConsumerKVServiceLog popConsumerKVServiceInit popConsumerKVServiceEnable
        popReviveMaxReturnSizePerRead popReviveMaxAttemptTimes serverLoadBalancerEnable defaultMessageRequestMode
        defaultPopShareQueueNum loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity
        loadBalancePollNameServerInterval popResponseReturnActualRetryTopic popInflightMessageThreshold
        enablePopMessageThreshold skipWhenCKRePutReachMaxTimes appendAckAsync appendCkAsync enablePopMetrics
    """,
    _RAFT: """
        syncBrokerMemberGroupPeriod cleanOfflineBrokerInterval enableSlaveActingMaster enableRemoteEscape skipPreOnline
        controllerAddr fetchControllerAddrByDnsLookup syncBrokerMetadataPeriod checkSyncStateSetPeriod
        syncControllerMetadataPeriod controllerHeartBeatTimeoutMills brokerElectionPriority storePathEpochFile
        storePathBrokerIdentity haMaxGapNotInSync totalReplicas inSyncReplicas minInSyncReplicas
        enableAutoInSyncReplicas haFlowControlEnable maxHaTransferByteInSecond haMaxTimeSlaveNotCatchup
        syncMasterFlushOffsetWhenStartup maxChecksumRange maxSlaveResendLength syncFromLastFile asyncLearner
        forwardTimeout brokerHeartbeatInterval brokerNotActiveTimeoutMillis sendHeartbeatTimeoutMillis
        compatibleWithOldNameSrv lockInStrictMode allAckInSyncStateSet
    """,
    _STORE: """
        recoverConcurrently mapperFileSizeBatchConsumeQueue maxRecoveryCommitlogFiles deleteFileBatchMax
        putMessageTimeout writeWithoutMmap maxBatchDeleteFilesNum dispatchCqThreads dispatchCqCacheNum enableAsyncReput
        recheckReputOffsetFromCq maxTopicLength autoMessageVersionOnTopicLen enableRunningFlagsInFlush
        travelCqFileNumWhenGetMessage correctLogicMinOffsetSleepInterval correctLogicMinOffsetForceInterval
        mappedFileSwapEnable commitLogForceSwapMapInterval commitLogSwapMapInterval commitLogSwapMapReserveFileNum
        logicQueueForceSwapMapInterval logicQueueSwapMapInterval cleanSwapedMapInterval logicQueueSwapMapReserveFileNum
        searchBcqByCacheEnable dispatchFromSenderThread wakeCommitWhenPutMessage wakeFlushWhenPutMessage
        enableCleanExpiredOffset maxAsyncPutMessageRequests pullBatchMaxMessageCount replicasPerDiskPartition
        logicalDiskSpaceCleanForciblyThreshold maxConsumeQueueScan sampleCountThreshold sampleSteps
        accessMessageInMemoryHotRatio enableBuildConsumeQueueConcurrently batchDispatchRequestThreadPoolNums
        topicQueueLockNum readUnCommitted putConsumeQueueDataByFileChannel enableAcceleratedRecovery
        spinLockCollisionRetreatOptimalDegree useABSLock enableLogConsumeQueueRepeatedlyBuildWhenRecover
        asyncSendEnable maxFilterMessageSize dataReadAheadEnable
    """,
    _ROCKSDB: """
        cleanRocksDBDirtyCQIntervalMin statRocksDBCQIntervalSec memTableFlushIntervalMs realTimePersistRocksDBConfig
        enableRocksDBLog rocksdbCQDoubleWriteEnable combineCQLoadingCQTypes combineCQPreferCQType
        combineAssignOffsetCQType combineCQEnableCheckSelf combineCQMaxExtraSearchCommitLogFiles
        bottomMostCompressionTypeForConsumeQueueStore rocksdbCompressionType rocksdbFlushWalFrequency
        rocksdbWalFileRollingThreshold configManagerVersion storeType
    """,
    _COLD: """
        coldCtrStrategyEnable usePIDColdCtrStrategy cgColdReadThreshold globalColdReadThreshold
        coldDataFlowControlEnable coldDataScanEnable timerColdDataCheckIntervalMs
    """,
    _TIMER: """
        mappedFileSizeTimerLog timerPrecisionMs timerRollWindowSlot timerFlushIntervalMs timerGetMessageThreadNum
        timerPutMessageThreadNum timerEnableDisruptor timerEnableCheckMetrics timerInterceptDelayLevel timerWheelEnable
        disappearTimeAfterStart timerStopEnqueue timerCheckMetricsWhen timerSkipUnknownError timerWarmEnable
        timerStopDequeue timerEnableRetryUntilSuccess timerCongestNumEachSlot timerMetricSmallThreshold
        timerProgressLogIntervalMs
    """,
    _METRICS: """
        metricsExporterType metricsOtelCardinalityLimit metricsGrpcExporterTarget metricsGrpcExporterHeader
        metricGrpcExporterTimeOutInMills metricGrpcExporterIntervalInMills metricLoggingExporterIntervalInMills
        metricsPromExporterPort metricsPromExporterHost metricsLabel metricsInDelta enableRemotingMetrics
        enableMessageStoreMetrics enableConnectionMetrics enableTransactionMetrics enableStatsMetrics
        enableRequestMetrics enableLagAndDlqMetrics estimateAccumulation transactionMetricFlushInterval
    """,
    _THREADS: """
        recoverThreadPoolNums waitTimeMillsInLitePullQueue waitTimeMillsInAdminBrokerQueue
        enableFastChannelEventProcess realTimeNotifyConsumerChange
    """,
    _WHOLE: """
        enableSingleTopicRegister enableSplitRegistration splitRegistrationSize enableSplitMetadata splitMetadataSize
        consumerOffsetUpdateVersionStep delayOffsetUpdateVersionStep enableRegisterProducer
    """,
    _COMPACTION: """
        compactionMappedFileSize compactionCqMappedFileSize compactionScheduleInternal maxOffsetMapSize
        compactionThreadNum enableCompaction
    """,
    _LOGGING: """
        accountStatsEnable accountStatsPrintZeroValues commercialSizePerMsg maxStatsIdleTimeInMinutes
        printChannelGroups printChannelGroupsMinNum enableLmqStats
    """,
    _NETTY: """
        enableShutdownGracefully shutdownWaitTimeSeconds isScanAvailableNameSrv socksProxyConfig
        disableCallbackExecutor disableNettyWorkerGroup maxReconnectIntervalTimeSeconds enableReconnectForGoAway
    """,
    _CONTAINER: "isBrokerContainer isInBrokerContainer localHostName brokerConfigPath",
    "name servers are found by namesrvAddr": (
        "fetchNameSrvAddrByDnsLookup updateNameServerAddrPeriod fetchNamesrvAddrInterval"
    ),
    "requests are bounded by number and size": "enableNetWorkFlowControl",
    "pull consumers are served": "rejectPullConsumerEnable",
    "members of a broadcasting consumer group keep their offsets themselves": (
        "enableBroadcastOffsetStore broadcastOffsetExpireSecond broadcastOffsetExpireMaxSecond"
    ),
    "operation messages have up to 4,096 bytes, and follow at once": (
        "transactionOpMsgMaxSize transactionOpBatchInterval"
    ),
    "resets of offsets are stored until consumers have followed": "useServerSideResetOffset",
    "system topics are never changed": "validateSystemTopicWhenUpdateTopic",
    "subscriptions are what heartbeats say": "useStaticSubscription",
    "a topic takes messages of all kinds": "enableMixedMessageType",
    "what cannot change at run time is refused": "configBlackList",
    "retry topics are topics like others": "clearRetryTopicWhenDeleteTopic",
    "messages cannot be recalled": "allowRecallWhenBrokerNotWriteable recallMessageEnable",
    "the system's consumer groups are always there": "enableCreateSysGroup",
    "entries have checksums": "enabledAppendPropCRC forceVerifyPropCRC",
}


def by_key(keys_by_reason: dict[str, str]) -> dict[str, str]:
    """Each key with its reason. `keys_by_reason`: the keys of a reason, with spaces between."""
    return {key: reason for reason, keys in keys_by_reason.items() for key in keys.split()}


BROKER_KEYS_OF_5: dict[str, str] = by_key(_KEYS_BY_REASON)
"""Keys of 5.3 with no effect here, each with the reason given in the warning."""

REFUSED_VALUES_OF_5: dict[str, dict[str, str]] = {
    "allAckInSyncStateSet": {"true": "false: a majority of the group acknowledges"},
    "useServerSideResetOffset": {"false": "true: resets are stored until consumers have followed"},
    "rejectPullConsumerEnable": {"true": "false: pull consumers are served"},
    "useStaticSubscription": {"true": "false: subscriptions are what heartbeats say"},
    "isInBrokerContainer": {"true": f"false: {_CONTAINER}"},
    "timerWheelEnable": {"false": "true: messages may name a time of their own"},
}
"""Values that ask for what Trivet does not do; the text says what is allowed."""
