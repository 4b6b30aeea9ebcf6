"""The permissions that a request needs (RocketMQ's `PlainAccessValidator` and `Permission`).

A topic is published to or subscribed, a consumer group is subscribed; the retry topic of a consumer group counts as the
consumer group. What changes a broker needs an administrator, and so does what tells of a whole broker or of clients
that belong to nobody (producer groups). Lists need a good signature and no more: their processors leave out what the
account may not see (`broker.access.control.Sight`).

Where RocketMQ asks for less than it should (a batch may go to any topic, any account may read any message by its
position, list all positions and connections, clean a broker's files or read along under another's group), this asks for
what the request does and tells.
"""

import enum
from collections.abc import Callable
from typing import Final, NamedTuple

from broker.access.accounts import Permission
from broker.remoting.bodies import CheckClientConfigBody, HeartbeatData, LockBatchBody
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from broker.remoting.json_body import decode_request
from broker.state.topic_rules import RETRY_PREFIX, TRACE_TOPIC


class Subject(enum.Enum):
    """The kinds of things that a permission may be on."""

    TOPIC = "topic"
    GROUP = "group"
    BROKER = "broker"
    """The whole broker: what administrators alone may change or see."""


class Need(NamedTuple):
    """A permission on a topic or consumer group, or on the broker, which has no name."""

    subject: Subject
    name: str
    permission: Permission

    @property
    def words(self) -> str:
        """The permission as files of accounts have it."""
        return "PUB or SUB" if self.permission is Permission.ANY else str(self.permission.name)


ADMINISTRATOR: Final = Need(Subject.BROKER, "", Permission.ANY)


def is_judged(code: int) -> bool:
    """Tells whether this table says what a request needs."""
    return code in _FINDERS


def needs(command: RemotingCommand) -> list[Need]:
    """Returns what a request needs. Nothing for a code that the table lacks: no processor handles such a request.

    Raises `RemotingError` for a request whose fields cannot be read.
    """
    find = _FINDERS.get(command.code)
    return [] if find is None else find(command)


def using(topic: str) -> list[Need]:
    """Returns what a request needs that asks whether a topic exists, or for anything about it."""
    return _topic(topic, Permission.ANY)


def reading(topic: str) -> list[Need]:
    """Returns what reading the messages of a topic needs."""
    return _topic(topic, Permission.SUB)


def publishing(topic: str) -> list[Need]:
    """Returns what publishing to a topic needs: for requests that only point to a message (END_TRANSACTION)."""
    return _topic(topic, Permission.PUB)


def _topic(name: str | None, permission: Permission) -> list[Need]:
    if name is None:
        return []  # the processor refuses the request
    if name.startswith(RETRY_PREFIX):
        return [Need(Subject.GROUP, name.removeprefix(RETRY_PREFIX), Permission.SUB)]
    if name == TRACE_TOPIC and permission is Permission.PUB:
        return []  # every account may write its traces
    return [Need(Subject.TOPIC, name, permission)]


def consuming(group: str | None) -> list[Need]:
    """Returns what a request needs that consumes as a consumer group, or asks for anything about it."""
    return [Need(Subject.GROUP, group, Permission.SUB)] if group else []


def _fields(
    *, topic: str = "", permission: Permission = Permission.SUB, groups: tuple[str, ...] = ()
) -> Callable[[RemotingCommand], list[Need]]:
    """Returns a finder for requests that name a topic and consumer groups in these of their extFields."""

    def find(command: RemotingCommand) -> list[Need]:
        fields = command.fields
        found = _topic(fields.get(topic), permission) if topic else []
        for group in groups:
            found += consuming(fields.get(group))
        return found

    return find


def _heartbeat(command: RemotingCommand) -> list[Need]:
    found: list[Need] = []
    for consumer in decode_request(command.body, HeartbeatData).consumer_data_set:
        found += consuming(consumer.group_name)
        for subscription in consumer.subscription_data_set:
            found += _topic(subscription.topic, Permission.SUB)
    return found


def _locks(command: RemotingCommand) -> list[Need]:
    body = decode_request(command.body, LockBatchBody)
    found = consuming(body.consumer_group)
    for queue in body.queues:
        found += _topic(queue.topic, Permission.SUB)
    return found


def _subscription_check(command: RemotingCommand) -> list[Need]:
    body = decode_request(command.body, CheckClientConfigBody)
    return [*consuming(body.group), *_topic(body.subscription_data.topic, Permission.SUB)]


def _message_by_id(command: RemotingCommand) -> list[Need]:
    topic = command.fields.get("topic")  # 5.x names it; the processor asks who may read the message's own
    return _topic(topic, Permission.SUB) if topic else []


def _consume_stats(command: RemotingCommand) -> list[Need]:
    fields = command.fields
    found = consuming(fields.get("consumerGroup"))
    for name in (fields.get("topic"), *(fields.get("topicList") or "").split(";")):
        found += _topic(name or None, Permission.ANY)
    return found


def _figure(command: RemotingCommand) -> list[Need]:
    """Returns what a request for a figure needs: the topic, or topic and consumer group, by which it is counted; an
    administrator for figures of the whole broker.
    """
    name, key = command.fields.get("statsName", ""), command.fields.get("statsKey", "")
    if name.startswith("TOPIC_"):
        return _topic(key or None, Permission.ANY)
    if name.startswith(("GROUP_", "SNDBCK_")) and "@" in key:
        topic, _, group = key.partition("@")
        return _topic(topic or None, Permission.ANY) + consuming(group)
    return [ADMINISTRATOR]


def _administrator(command: RemotingCommand) -> list[Need]:
    return [ADMINISTRATOR]


def _nothing(command: RemotingCommand) -> list[Need]:
    """Returns nothing: such requests tell no more than the account may see anyway, and change nothing of others."""
    return []


_send = _fields(topic="topic", permission=Permission.PUB)
_send_short = _fields(topic="b", permission=Permission.PUB)
_pull = _fields(topic="topic", groups=("consumerGroup",))
_any_use = _fields(topic="topic", permission=Permission.ANY)
_of_group = _fields(groups=("consumerGroup",))
_group_in_topic = _fields(topic="topic", groups=("group",))

_FINDERS: Final[dict[int, Callable[[RemotingCommand], list[Need]]]] = {
    # Messages.
    RequestCode.SEND_MESSAGE: _send,
    RequestCode.SEND_MESSAGE_V2: _send_short,
    RequestCode.SEND_BATCH_MESSAGE: _send_short,
    RequestCode.TRIVET_BEGIN_PORTION: _send,
    RequestCode.TRIVET_END_PORTION: _send,
    RequestCode.SEND_REPLY_MESSAGE: _send,
    RequestCode.SEND_REPLY_MESSAGE_V2: _send_short,
    RequestCode.CONSUMER_SEND_MSG_BACK: _fields(topic="originTopic", groups=("group",)),
    RequestCode.END_TRANSACTION: _nothing,  # judged by the message that it points to (`check_publish`)
    RequestCode.PULL_MESSAGE: _pull,
    RequestCode.LITE_PULL_MESSAGE: _pull,
    RequestCode.QUERY_MESSAGE: _fields(topic="topic"),
    RequestCode.VIEW_MESSAGE_BY_ID: _message_by_id,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _of_group,
    # Members.
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _of_group,
    RequestCode.CHECK_CLIENT_CONFIG: _subscription_check,
    RequestCode.LOCK_BATCH_MQ: _locks,
    RequestCode.UNLOCK_BATCH_MQ: _locks,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _of_group,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _of_group,  # and the topics that the account may see
    RequestCode.GET_CONSUMER_RUNNING_INFO: _of_group,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _fields(
        topic="topic", permission=Permission.ANY, groups=("group",)
    ),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _administrator,
    RequestCode.GET_ALL_PRODUCER_INFO: _administrator,
    # Offsets.
    RequestCode.QUERY_CONSUMER_OFFSET: _pull,
    RequestCode.UPDATE_CONSUMER_OFFSET: _pull,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _any_use,
    RequestCode.GET_MAX_OFFSET: _any_use,
    RequestCode.GET_MIN_OFFSET: _any_use,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _any_use,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _group_in_topic,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _group_in_topic,
    RequestCode.CLONE_GROUP_OFFSET: _fields(topic="topic", groups=("srcGroup", "destGroup")),
    RequestCode.GET_ALL_CONSUMER_OFFSET: _nothing,  # filtered
    RequestCode.GET_ALL_DELAY_OFFSET: _administrator,
    RequestCode.QUERY_CORRECTION_OFFSET: _administrator,  # the lowest offset of all groups
    # Topics and groups.
    RequestCode.GET_ALL_TOPIC_CONFIG: _nothing,  # filtered
    RequestCode.GET_TOPIC_CONFIG: _any_use,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _nothing,  # the same names everywhere
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _nothing,  # filtered
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _fields(groups=("group",)),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _any_use,  # and the groups that the account may see
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _fields(groups=("group",)),  # and the topics, likewise
    RequestCode.UPDATE_AND_CREATE_TOPIC: _administrator,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _administrator,
    RequestCode.DELETE_TOPIC_IN_BROKER: _administrator,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _administrator,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _administrator,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _administrator,
    # Figures.
    RequestCode.GET_TOPIC_STATS_INFO: _any_use,
    RequestCode.GET_CONSUME_STATS: _consume_stats,  # without a topic, of those that the account may see
    RequestCode.QUERY_CONSUME_TIME_SPAN: _fields(topic="topic", permission=Permission.ANY, groups=("group",)),
    RequestCode.QUERY_CONSUME_QUEUE: _pull,
    RequestCode.VIEW_BROKER_STATS_DATA: _figure,
    RequestCode.GET_BROKER_CONSUME_STATS: _nothing,  # filtered
    # The node and its group.
    RequestCode.GET_BROKER_RUNTIME_INFO: _administrator,
    RequestCode.TRIVET_NODE_STATUS: _administrator,
    RequestCode.GET_BROKER_CONFIG: _administrator,
    RequestCode.UPDATE_BROKER_CONFIG: _administrator,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _administrator,
    RequestCode.CLEAN_UNUSED_TOPIC: _administrator,
    RequestCode.DELETE_EXPIRED_COMMITLOG: _administrator,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _administrator,
    RequestCode.TRIVET_CHANGE_GROUP: _administrator,
    RequestCode.TRIVET_TRANSFER_LEADERSHIP: _administrator,
    RequestCode.TRIVET_BACKUP_BEGIN: _administrator,
    RequestCode.TRIVET_BACKUP_LOG: _administrator,
    RequestCode.TRIVET_BACKUP_SNAPSHOT: _administrator,
}
