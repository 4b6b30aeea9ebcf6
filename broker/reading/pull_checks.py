"""The checks that a pull passes, and the filter that it is read with, as RocketMQ's `PullMessageProcessor` has them."""

from collections.abc import Iterator
from typing import Final

from broker.node.client_registry import ClientRegistry
from broker.node.consumer_group import filter_of
from broker.node.ports import State
from broker.reading.subscriptions import SQL92, Filter, is_by_sql, parse_filter, parse_in_steps
from broker.remoting.bodies import MessageModel, SubscriptionData
from broker.remoting.codes import Permission, PullSysFlag, ResponseCode
from broker.remoting.headers import PullMessageHeader
from broker.requests.connection import Connection
from broker.requests.errors import RequestError
from broker.settings.live import LiveSettings
from broker.state.topic_rules import RETRY_PREFIX

# As plain numbers: every pull asks for them, and the operators of enum flags are Python functions.
COMMITS_OFFSET: Final = int(PullSysFlag.COMMIT_OFFSET)
MAY_BE_HELD: Final = int(PullSysFlag.SUSPEND)
_HAS_SUBSCRIPTION: Final = int(PullSysFlag.SUBSCRIPTION)
_MAY_READ: Final = int(Permission.READ)


class PullChecks:
    """Judges pulls by the settings, topics, consumer groups and subscriptions as they are now."""

    def __init__(self, state: State, registry: ClientRegistry[Connection], settings: LiveSettings) -> None:
        self._state = state
        self._registry = registry
        self._settings = settings

    def check_broker(self) -> None:
        """Raises `RequestError` where clients may not read from this broker at all."""
        if "read" not in self._settings.current.broker.permission:
            raise RequestError(ResponseCode.NO_PERMISSION, "the broker's permission does not include reading")

    def check(self, header: PullMessageHeader) -> None:
        """Raises `RequestError` for a consumer group, topic or queue that may not be pulled; call `check_broker`
        first."""
        # In the order of RocketMQ's PullMessageProcessor: where two things are wrong, clients get the code they know.
        metadata = self._state.metadata
        group = metadata.groups.get(header.consumer_group)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumer_group}] does not exist",
            )
        if not group.consume_enable:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {header.consumer_group}"
            )
        topic = metadata.topics.get(header.topic)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!"
            )
        if not topic.perm & _MAY_READ:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden"
            )
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}]",
            )

    def filter_for(self, header: PullMessageHeader) -> Filter:
        """Returns which messages a pull wants. Raises `RequestError` where its subscription cannot be used."""
        # Members subscribe to all of their retry topic (`DefaultMQPushConsumerImpl.copySubscription`).
        if header.topic.startswith(RETRY_PREFIX):
            return None
        sql_filters = self._settings.current.broker.sql_filters
        if header.sys_flag & _HAS_SUBSCRIPTION:
            return parse_filter(header.expression_type, header.subscription or "*", sql_filters=sql_filters)
        subscription = self.check_subscription(header)
        try:
            return parse_filter(
                subscription.expression_type, subscription.sub_string, sql_filters=sql_filters
            )
        except RequestError as error:
            if subscription.expression_type != SQL92 or error.code != ResponseCode.SUBSCRIPTION_PARSE_FAILED:
                raise
            # The heartbeat that brought it was taken, as the client could do nothing about it there.
            raise RequestError(ResponseCode.FILTER_DATA_NOT_EXIST, error.remark) from error

    def check_subscription(self, header: PullMessageHeader) -> SubscriptionData:
        """Returns what its consumer group subscribes to, for a pull that rests on that. Raises `RequestError` where it
        cannot be used.
        """
        self._check_broadcast(header.consumer_group)
        subscription = self._registry.subscription(header.consumer_group, header.topic)
        if subscription is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription to {header.topic} does not exist",
            )
        # The client has subscribed anew, and its heartbeat has yet to come: it tries again.
        if subscription.sub_version < header.subscription_version:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the consumer's subscription to {header.topic} is not the latest",
            )
        is_by_sql(subscription.expression_type, sql_filters=self._settings.current.broker.sql_filters)
        return subscription

    def parse_in_steps(self, header: PullMessageHeader) -> Iterator[None]:
        """Parses a long SQL92 condition in steps and remembers it, so that `filter_for` takes no time right behind."""
        if header.sys_flag & _HAS_SUBSCRIPTION:
            yield from parse_in_steps(header.expression_type, header.subscription or "*")
        elif subscription := self._registry.subscription(header.consumer_group, header.topic):
            yield from parse_in_steps(subscription.expression_type, subscription.sub_string)

    def is_filtered_by_sql(self, header: PullMessageHeader) -> bool:
        """Tells whether an SQL92 condition says what a pull wants: that may take milliseconds."""
        if header.sys_flag & _HAS_SUBSCRIPTION:
            return header.expression_type == SQL92
        subscription = self._registry.subscription(header.consumer_group, header.topic)
        return subscription is not None and subscription.expression_type == SQL92

    def subscribed(self, header: PullMessageHeader) -> tuple[str, str] | None:
        """Returns what the consumer group subscribes to, as type and expression; None for a pull that does not rest on
        that."""
        if not rests_on_heartbeats(header):
            return None
        subscription = self._registry.subscription(header.consumer_group, header.topic)
        return None if subscription is None else filter_of(subscription)

    def is_broadcast(self, group: str) -> bool:
        """Tells whether each member of the consumer group gets all messages; False while it has no members, who alone
        say so.
        """
        known = self._registry.consumer_group(group)
        return known is not None and known.message_model is MessageModel.BROADCASTING

    def _check_broadcast(self, group: str) -> None:
        config = self._state.metadata.groups[group]
        if not config.consume_broadcast_enable and self.is_broadcast(group):
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"the consumer group[{group}] can not consume by broadcast way"
            )


def rests_on_heartbeats(header: PullMessageHeader) -> bool:
    """Tells whether its consumer group's subscription says what a pull wants: it brings none and wants no retries, of
    which it gets all.
    """
    return not header.sys_flag & _HAS_SUBSCRIPTION and not header.topic.startswith(RETRY_PREFIX)
