"""The permissions that a request needs (RocketMQ's `PlainAccessValidator` and `Permission`).

A topic is published to or subscribed, a group is subscribed; the retry topic of a group counts as the group. What
changes a broker needs an administrator. Everything else needs a good signature and no more.

Where RocketMQ asks for less than it should (a batch may go to any topic, any account may read any message by its
position, clean a broker's files or read along under another's group), this asks for what the request does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from broker.access.accounts import Permission
from broker.remoting.bodies import CheckClientConfigBody, HeartbeatData, LockBatchBody
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from broker.remoting.json_body import decode_request
from broker.state.topic_rules import RETRY_PREFIX, TRACE_TOPIC

ADMIN_CODES: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.TRIVET_CHANGE_GROUP,
        RequestCode.TRIVET_TRANSFER_LEADERSHIP,
    }
)


class Need(NamedTuple):
    """A permission on a topic or group; ``name`` None is any topic: the account's default decides."""

    is_group: bool
    name: str | None
    permission: Permission


def needs(command: RemotingCommand) -> list[Need]:
    """Returns what a request needs, beside an administrator for `ADMIN_CODES`. Raises `RemotingError` if it is
    unreadable.
    """
    find = _FINDERS.get(command.code)
    return [] if find is None else find(command)


def publishing(topic: str) -> list[Need]:
    """Returns what publishing to a topic needs: for requests that only point to a message (END_TRANSACTION)."""
    return _topic(topic, Permission.PUB)


def _topic(name: str | None, permission: Permission) -> list[Need]:
    if name is None:
        return []  # the processor refuses the request
    if name.startswith(RETRY_PREFIX):
        return [Need(True, name.removeprefix(RETRY_PREFIX), Permission.SUB)]
    if name == TRACE_TOPIC and permission is Permission.PUB:
        return []  # every account may write its traces
    return [Need(False, name, permission)]


def _group(name: str | None) -> list[Need]:
    return [Need(True, name, Permission.SUB)] if name else []


def _fields(
    *, topic: str = "", permission: Permission = Permission.SUB, groups: tuple[str, ...] = ()
) -> Callable[[RemotingCommand], list[Need]]:
    """For requests that name topic and groups in their extFields."""

    def find(command: RemotingCommand) -> list[Need]:
        fields = command.fields
        found = _topic(fields.get(topic), permission) if topic else []
        for group in groups:
            found += _group(fields.get(group))
        return found

    return find


def _heartbeat(command: RemotingCommand) -> list[Need]:
    found: list[Need] = []
    for consumer in decode_request(command.body, HeartbeatData).consumer_data_set:
        found += _group(consumer.group_name)
        for subscription in consumer.subscription_data_set:
            found += _topic(subscription.topic, Permission.SUB)
    return found


def _locks(command: RemotingCommand) -> list[Need]:
    body = decode_request(command.body, LockBatchBody)
    found = _group(body.consumer_group)
    for queue in body.queues:
        found += _topic(queue.topic, Permission.SUB)
    return found


def _subscription_check(command: RemotingCommand) -> list[Need]:
    body = decode_request(command.body, CheckClientConfigBody)
    return [*_group(body.group), *_topic(body.subscription_data.topic, Permission.SUB)]


def _message_by_id(command: RemotingCommand) -> list[Need]:
    topic = command.fields.get("topic")  # 5.x names it; from 4.x any message may be meant
    return _topic(topic, Permission.SUB) if topic else [Need(False, None, Permission.SUB)]


_send = _fields(topic="topic", permission=Permission.PUB)
_send_short = _fields(topic="b", permission=Permission.PUB)
_pull = _fields(topic="topic", groups=("consumerGroup",))
_any_use = _fields(topic="topic", permission=Permission.ANY)
_of_group = _fields(groups=("consumerGroup",))

_FINDERS: Final[dict[int, Callable[[RemotingCommand], list[Need]]]] = {
    RequestCode.SEND_MESSAGE: _send,
    RequestCode.SEND_MESSAGE_V2: _send_short,
    RequestCode.SEND_BATCH_MESSAGE: _send_short,
    RequestCode.SEND_REPLY_MESSAGE: _send,
    RequestCode.SEND_REPLY_MESSAGE_V2: _send_short,
    RequestCode.CONSUMER_SEND_MSG_BACK: _fields(topic="originTopic", groups=("group",)),
    RequestCode.PULL_MESSAGE: _pull,
    RequestCode.LITE_PULL_MESSAGE: _pull,
    RequestCode.QUERY_MESSAGE: _fields(topic="topic"),
    RequestCode.VIEW_MESSAGE_BY_ID: _message_by_id,
    RequestCode.QUERY_CONSUME_QUEUE: _fields(topic="topic"),
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _of_group,
    RequestCode.CHECK_CLIENT_CONFIG: _subscription_check,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _of_group,
    RequestCode.QUERY_CONSUMER_OFFSET: _pull,
    RequestCode.UPDATE_CONSUMER_OFFSET: _pull,
    RequestCode.LOCK_BATCH_MQ: _locks,
    RequestCode.UNLOCK_BATCH_MQ: _locks,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _any_use,
    RequestCode.GET_MAX_OFFSET: _any_use,
    RequestCode.GET_MIN_OFFSET: _any_use,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _any_use,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _fields(topic="topic", groups=("group",)),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _fields(topic="topic", groups=("group",)),
    RequestCode.CLONE_GROUP_OFFSET: _fields(groups=("srcGroup", "destGroup")),
    RequestCode.GET_CONSUMER_RUNNING_INFO: _of_group,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _of_group,
}
