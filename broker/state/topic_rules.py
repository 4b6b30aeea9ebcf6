"""Topics and consumer groups of every broker, and the rules for names (`TopicConfigManager`, `TopicValidator`)."""

import re
from collections.abc import Container, Iterator
from typing import Final

from broker.remoting.bodies import SubscriptionGroupConfig, TopicConfig
from broker.remoting.codes import Permission, ResponseCode
from broker.requests.errors import RequestError
from log.formats import own_topics

DEFAULT_TOPIC: Final = "TBW102"
"""The template of automatically created topics."""

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
CONSUMER_GROUP_PREFIXES: Final = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
"""Topics that belong to a consumer group, whose name follows."""

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_OPERATIONS_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_EXHAUSTED_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
INTERNAL_TOPIC: Final = own_topics.INTERNAL_TOPIC.decode()
"""Records of this topic are the group's own: the no-op of a term, metadata commands, membership changes."""

WAITING_TOPICS: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC})
"""Messages of all topics wait here, seen by nobody, until their time has come or their producer has decided."""

REPLY_SUFFIX: Final = "_REPLY_TOPIC"
"""Behind a cluster's name: the topic of the replies to all producers."""

FORBIDDEN_TO_SEND: Final = frozenset(
    {
        INTERNAL_TOPIC,
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC,
        HALF_OPERATIONS_TOPIC,
        CHECK_EXHAUSTED_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
"""Topics that producers may not send to, nor create by sending. Every replica would apply a message of the first one as
a command.
"""

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"

SYSTEM_TOPICS: Final = FORBIDDEN_TO_SEND | {DEFAULT_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}
"""Topics that cannot be created or deleted by administration, with the cluster's and the broker's own."""

_SYSTEM_PREFIXES: Final = ("TRIVET_SYS_", "RMQ_SYS_", "rmq_sys_", "SCHEDULE_TOPIC_")
"""With these begin names of Trivet's own and of RocketMQ's, whichever its release."""

_SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)

_READ_WRITE: Final = int(Permission.READ | Permission.WRITE)
_ALL: Final = int(Permission.READ | Permission.WRITE | Permission.INHERIT)

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
TOPIC_LENGTH_MAX: Final = 127
INTERNAL_TOPIC_LENGTH_MAX: Final = 255
GROUP_LENGTH_MAX: Final = INTERNAL_TOPIC_LENGTH_MAX - len(RETRY_PREFIX)
"""Not the reference's 255: a directory must bear the name of the group's retry topic."""


CLIENT_ID_LENGTH_MAX: Final = 255


class InvalidNameError(RequestError):
    """A name of a topic or consumer group that is not allowed; the text says which are. The client's fault; no retry
    helps.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, reason)


def check_topic_name(topic: str) -> None:
    """Raises `InvalidNameError` unless clients may use the name: 1 to 127 of `%|a-zA-Z0-9_-` (255 for retry topics)."""
    # Retry and dead letter topics are named by a prefix and their consumer group.
    longest = INTERNAL_TOPIC_LENGTH_MAX if topic.startswith(CONSUMER_GROUP_PREFIXES) else TOPIC_LENGTH_MAX
    _check("topic", topic, longest)


def check_group_name(group: str) -> None:
    """Raises `InvalidNameError` unless the name is 1 to 248 of ``%|a-zA-Z0-9_-``."""
    _check("group", group, GROUP_LENGTH_MAX)


def _check(kind: str, name: str, longest: int) -> None:
    """Raises `InvalidNameError` unless the name has 1 to `longest` of the characters that are allowed."""
    if not name.strip():
        raise InvalidNameError(f"the specified {kind} is blank")
    if len(name) > longest:
        raise InvalidNameError(
            f"the specified {kind} has {len(name)} characters, at most {longest} are allowed"
        )
    if not _NAME.fullmatch(name):
        raise InvalidNameError(
            f"the specified {kind} {name[:80]!r} contains illegal characters, allowed are %|a-zA-Z0-9_-"
        )


UNIT: Final = 1
UNIT_SUBSCRIPTION: Final = 2
"""Bits of `TopicSysFlag`: a topic of a unit of a deployment, and a retry topic of a unit's consumers."""


def topic_config(topic: str, queues: int, permission: int = _READ_WRITE, *, sys_flag: int = 0) -> TopicConfig:
    """A topic with as many read as write queues."""
    return TopicConfig(
        topic_name=topic,
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=permission,
        topic_sys_flag=sys_flag,
    )


def queues_of(config: TopicConfig) -> int:
    """The number of a topic's queues, those that may only be read or only be written counted."""
    return max(config.read_queue_nums, config.write_queue_nums)


def unit_sys_flag(topic: str, unit_mode: bool | None) -> int:
    """The flags of a topic that a client has created, by the client's `unit_mode`."""
    if not unit_mode:
        return 0
    return UNIT_SUBSCRIPTION if topic.startswith(RETRY_PREFIX) else UNIT


def default_template(queues: int, auto_create: bool) -> TopicConfig:
    """The topic TBW102, like which topics are created by their first message, if `auto_create` lets it be inherited."""
    return topic_config(DEFAULT_TOPIC, queues, _ALL if auto_create else _READ_WRITE)


def system_topics(
    cluster: str, broker: str, default_queues: int, auto_create: bool, trace: bool
) -> Iterator[TopicConfig]:
    """The topics that a broker creates by itself."""
    # Numbers of queues are those of RocketMQ's `TopicConfigManager`: 18 are one for each of its delay levels.
    yield default_template(default_queues, auto_create)
    if trace:
        yield topic_config(TRACE_TOPIC, 1)
    yield topic_config(SELF_TEST_TOPIC, 1)
    yield topic_config(BENCHMARK_TOPIC, 1024)
    yield topic_config(cluster, 16, _ALL)
    yield topic_config(broker, 1, _ALL)
    yield topic_config(OFFSET_MOVED_TOPIC, 1)
    yield topic_config(SCHEDULE_TOPIC, 18)
    yield topic_config(TIMER_TOPIC, 1)
    yield topic_config(HALF_TOPIC, 1)
    yield topic_config(HALF_OPERATIONS_TOPIC, 1)
    yield topic_config(cluster + REPLY_SUFFIX, 1)


def is_system_topic(topic: str, names: Container[str] = ()) -> bool:
    """Tells whether a topic is the brokers' own (`TopicValidator.isSystemTopic`).

    `names` are those of clusters and broker groups: each has a topic of its name, and a cluster one for replies. Retry
    topics and dead letters are consumer groups', and no system topics.
    """
    return (
        topic in SYSTEM_TOPICS
        or topic.startswith(_SYSTEM_PREFIXES)
        or topic.removesuffix(REPLY_SUFFIX) in names
    )


def is_system_group(group: str) -> bool:
    """Tells whether a consumer group exists without being created."""
    return group in _SYSTEM_GROUPS or group.startswith("CID_RMQ_SYS_")


def system_groups() -> Iterator[SubscriptionGroupConfig]:
    """The consumer groups that a broker creates by itself."""
    for group in _SYSTEM_GROUPS:
        yield SubscriptionGroupConfig(group_name=group)
