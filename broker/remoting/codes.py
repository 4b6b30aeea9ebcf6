"""Numbers of the remoting protocol: request and response codes, languages, versions, flag bits.

Everything on the wire is an int; the enums name them. A received code outside an enum is legal (another
version's request) and stays a plain int, so compare with ``==`` and never convert what a peer sent without
catching ValueError.
"""

import enum

FLAG_RESPONSE = 1
"""Header flag bit 0: a response."""
FLAG_ONE_WAY = 2
"""Header flag bit 1: the sender wants no response."""


class RequestCode(enum.IntEnum):
    """Request codes, as RocketMQ's class of this name has them."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    UPDATE_AND_CREATE_TOPIC_LIST = 18
    GET_ALL_TOPIC_CONFIG = 21
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    REGISTER_TOPIC_IN_NAMESRV = 217
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    QUERY_CORRECTION_OFFSET = 308
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = 320
    QUERY_CONSUME_QUEUE = 321
    QUERY_DATA_VERSION = 322
    RESUME_CHECK_HALF_MESSAGE = 323
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329
    QUERY_TOPICS_BY_CONSUMER = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345
    GET_TOPIC_CONFIG = 351
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
    LITE_PULL_MESSAGE = 361
    QUERY_ASSIGNMENT = 400
    SET_MESSAGE_REQUEST_MODE = 401
    GET_BROKER_MEMBER_GROUP = 901
    BROKER_HEARTBEAT = 904
    GET_BROKER_HA_STATUS = 907
    TRIVET_NODE_STATUS = 90001
    """Trivet's own: the replica's state as JSON (`broker.remoting.node_status.NodeStatus`); too large for a
    binary header.
    """
    TRIVET_CHANGE_GROUP = 90002
    """Trivet's own: adds, promotes or removes a member of the group
    (`broker.administration.group_changes_processor`)."""
    TRIVET_TRANSFER_LEADERSHIP = 90003
    """Trivet's own: has another member lead."""
    TRIVET_GREETING = 90004
    """Trivet's own: asks for the nonce with which requests of this connection are signed
    (`broker.requests.greeting`)."""
    TRIVET_BACKUP_BEGIN = 90005
    """Trivet's own: begins a backup of the node that is asked (`broker.administration.backup_processor`)."""
    TRIVET_BACKUP_LOG = 90006
    """Trivet's own: reads entries of the log for the backup that this connection has begun."""
    TRIVET_BACKUP_SNAPSHOT = 90007
    """Trivet's own: reads a piece of that backup's snapshot."""
    TRIVET_BEGIN_PORTION = 90008
    """Trivet's own: begins a writer's portion of messages, again perhaps (`broker.sending.portions_processor`)."""
    TRIVET_END_PORTION = 90009
    """Trivet's own: says that all messages of that portion are stored."""


class ResponseCode(enum.IntEnum):
    """Response codes, as RocketMQ's `ResponseCode` and `RemotingSysResponseCode` have them."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    BROKER_NOT_EXIST = 211
    BROKER_DISPATCH_NOT_COMPLETE = 212
    BROADCAST_CONSUMPTION = 213
    FLOW_CONTROL = 215
    NOT_LEADER_FOR_QUEUE = 501
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500
    ONCE_UNDECIDABLE = 3001
    """Trivet's own, given to those alone that asked for it (broker/sending/repeated_sends.py): nothing of this attempt
    was stored."""


class LanguageCode(enum.IntEnum):
    """Client languages (RocketMQ's class of this name); JSON carries the name, binary
    the number.
    """

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


class Version(enum.IntEnum):
    """Ordinals in RocketMQ's `MQVersion` at which behaviour changes."""

    V3_0_11 = 37
    V3_4_9 = 121
    V4_0_0 = 213
    V4_1_0 = 233
    V4_5_0 = 313
    V4_6_0 = 333
    V4_7_0 = 353
    V4_8_0 = 373
    V4_9_0 = 393
    V4_9_4 = 401
    V4_9_8 = 409
    V5_0_0 = 413
    V5_1_0 = 433
    V5_3_1 = 475
    V5_3_3 = 479


class PullSysFlag(enum.IntFlag):
    """Bits of a pull request's sysFlag; those of a message are in log/."""

    COMMIT_OFFSET = 1
    SUSPEND = 2
    SUBSCRIPTION = 4
    CLASS_FILTER = 8
    LITE_PULL = 16


class Permission(enum.IntFlag):
    """Bits of a topic's perm (RocketMQ's `PermName`)."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8


class TransactionOutcome(enum.IntEnum):
    """commitOrRollback of END_TRANSACTION: the message sysFlag's transaction bits."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


class TopicSysFlag(enum.IntFlag):
    """Bits of a topic's topicSysFlag (codes 311 to 313)."""

    UNIT = 1
    UNIT_SUBSCRIPTION = 2
