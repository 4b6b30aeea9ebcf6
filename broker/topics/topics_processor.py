"""Topics and consumer groups: creating, changing, deleting, listing them, as RocketMQ's `AdminBrokerProcessor` does.

Every change is a command in the log and answered when it is committed; the name servers hear of it because the node's
registration version has risen. A leader that begins to serve creates what every broker has and this group lacks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from broker.node.listeners import Listeners
from broker.node.long_responses import LongResponses
from broker.node.ports import Proposals, Requests
from broker.offsets.commits import OffsetCommits
from broker.remoting.admin_headers import (
    CreateTopicHeader,
    DeleteSubscriptionGroupHeader,
    GroupHeader,
    TopicHeader,
)
from broker.remoting.bodies import (
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
    TopicConfigList,
    TopicList,
    check_retry_policy,
)
from broker.remoting.codes import Permission, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.json_body import decode_request, encode_body
from broker.requests.connection import Connection
from broker.requests.deadline import Time
from broker.requests.errors import ReplicaError, RequestError, TooManyError
from broker.requests.long_bodies import table
from broker.requests.processing import HandledOn, Route
from broker.requests.responses import reply, reply_json, reply_unknown
from broker.settings.live import LiveSettings
from broker.state.commands import DeleteGroup, DeleteTopic, PutGroup, PutTopic, Several
from broker.state.topic_rules import (
    REPLY_SUFFIX,
    SYSTEM_TOPICS,
    check_group_name,
    check_topic_name,
)
from broker.topics.creation import Creations, missing_of_the_broker
from log.errors import DiskFullError

QUEUES_MAX = 65_536
"""More queues in one topic are a slip of the pen, and a burden on every client."""

RETRIES_MAX = 10_000

ATTRIBUTES_LENGTH_MAX = 4_096
"""Characters of all attributes of a topic, names and values."""
GROUP_BYTES_MAX = 8_192
"""The settings of a consumer group as JSON."""

_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")

LIST_MAX = 1_000
"""Topics or consumer groups in one request: they become one entry of the log."""

_ALONE_ALLOWED = {"queue.type": "SimpleCQ", "cleanup.policy": "DELETE", "reserve.time": "-1"}
"""Attributes of 5.x that change how a topic is stored, and the value that is true here."""

_PERMISSION_BITS = int(Permission.READ | Permission.WRITE | Permission.INHERIT | Permission.PRIORITY)


class TopicsProcessor:
    """Requests 17, 18, 21, 200, 201, 207, 215, 225, 305, 351 and 352."""

    def __init__(
        self,
        leadership: Proposals,
        requests: Requests,
        creations: Creations,
        offsets: OffsetCommits,
        settings: LiveSettings,
        time: Time,
        listeners: Listeners,
        long_responses: LongResponses,
    ) -> None:
        self._leadership = leadership
        self._requests = requests
        self._long_responses = long_responses
        self._settings = settings
        self._time = time
        self._offsets = offsets
        self._creations = creations
        self._was_serving = False
        names = settings.current.node
        self._reserved = SYSTEM_TOPICS | {
            names.cluster,
            names.group,
            names.cluster + REPLY_SUFFIX,
        }
        listeners.role_changes.append(self._role_changed)

    def routes(self) -> Iterable[Route]:
        """Everything is the leader's: a list tells what the group has, and not what one node knows of it."""
        return (
            Route(RequestCode.UPDATE_AND_CREATE_TOPIC, self.put_topic, HandledOn.LEADER),
            Route(RequestCode.DELETE_TOPIC_IN_BROKER, self.delete_topic, HandledOn.LEADER),
            Route(RequestCode.GET_ALL_TOPIC_CONFIG, self.all_topics, HandledOn.LEADER_READ),
            Route(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, self.put_topics, HandledOn.LEADER),
            Route(RequestCode.GET_TOPIC_CONFIG, self.topic, HandledOn.LEADER_READ),
            Route(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, self.system_topics, HandledOn.ANY),
            Route(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, self.put_group, HandledOn.LEADER),
            Route(RequestCode.DELETE_SUBSCRIPTIONGROUP, self.delete_group, HandledOn.LEADER),
            Route(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self.all_groups, HandledOn.LEADER_READ),
            Route(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, self.put_groups, HandledOn.LEADER),
            Route(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, self.group, HandledOn.LEADER_READ),
        )

    # ------------------------------------------------------------------ topics

    def put_topic(self, connection: Connection, command: RemotingCommand) -> None:
        """Creates a topic or changes its queues and permissions."""
        header = command.decode_fields(CreateTopicHeader)
        config = TopicConfig(
            order=header.order,
            perm=header.perm,
            read_queue_nums=header.read_queue_nums,
            topic_filter_type=header.topic_filter_type,
            topic_name=header.topic,
            topic_sys_flag=header.topic_sys_flag or 0,
            write_queue_nums=header.write_queue_nums,
        )
        self._create(connection, command, [self._put_topic(config, header.attributes or "")])

    def put_topics(self, connection: Connection, command: RemotingCommand) -> None:
        """Creates or changes several topics, all of them or none (5.x)."""
        configs = decode_request(command.body, TopicConfigList).topic_config_list
        _check_number(len(configs), "topics")
        puts = [
            self._put_topic(config, ",".join(f"{name}={value}" for name, value in config.attributes.items()))
            for config in configs
        ]
        self._create(connection, command, puts)

    def _put_topic(self, wanted: TopicConfig, attribute_changes: str) -> PutTopic:
        self._check_topic(wanted.topic_name)
        for name, count in (
            ("readQueueNums", wanted.read_queue_nums),
            ("writeQueueNums", wanted.write_queue_nums),
        ):
            if not 0 <= count <= QUEUES_MAX:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR, f"{name} is {count}, allowed are 0 to {QUEUES_MAX}"
                )
        if wanted.perm & ~_PERMISSION_BITS:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"perm is {wanted.perm}, allowed are sums of priority 8, read 4, write 2, inherit 1",
            )
        if wanted.topic_filter_type not in _FILTER_TYPES:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"topicFilterType is {wanted.topic_filter_type[:80]!r}, allowed are {' and '.join(_FILTER_TYPES)}",
            )
        # Attributes are changed one by one (+name=value, -name): what the topic has already counts, too.
        known = self._leadership.metadata.topics.get(wanted.topic_name)
        attributes = _changed_attributes({} if known is None else known.attributes, attribute_changes)
        for name, allowed in _ALONE_ALLOWED.items():
            if attributes.get(name, allowed) != allowed:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the attribute {name} is {attributes[name][:80]!r}, supported is {allowed} alone",
                )
        size = sum(len(name) + len(value) for name, value in attributes.items())
        if size > ATTRIBUTES_LENGTH_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the topic's attributes have {size} characters, at most {ATTRIBUTES_LENGTH_MAX} are allowed",
            )
        return PutTopic(msgspec.structs.replace(wanted, attributes=attributes), self._time.group_ms)

    def delete_topic(self, connection: Connection, command: RemotingCommand) -> None:
        """Deletes a topic, its queues and the offsets in it; a topic that does not exist is deleted already."""
        topic = command.decode_fields(TopicHeader).topic
        self._check_topic(topic)
        self._delete(
            connection,
            command,
            DeleteTopic(topic, self._time.group_ms),
            lambda _, of_topic: of_topic == topic,
        )

    def _check_topic(self, topic: str) -> None:
        check_topic_name(topic)
        if topic in self._reserved:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"The topic[{topic}] is conflict with system topic."
            )

    def all_topics(self, connection: Connection, command: RemotingCommand) -> Iterator[None]:
        """Tells every topic that the client may see, with the version of the table, in steps."""
        metadata, sight = self._leadership.metadata, self._requests.sight(connection, command)
        begin = b'{"dataVersion":%s,"topicConfigTable":{' % encode_body(metadata.topics_version)
        return self._long_responses.tell(connection, command, table(begin, metadata.topics, sight.topic))

    def topic(self, connection: Connection, command: RemotingCommand) -> None:
        """Tells one topic. Raises `RequestError` if it does not exist."""
        name = command.decode_fields(TopicHeader).topic
        config = self._leadership.metadata.topics.get(name)
        if config is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
        reply_json(connection, command, config)

    def system_topics(self, connection: Connection, command: RemotingCommand) -> None:
        """Tells the names that administration leaves alone."""
        reply_json(connection, command, TopicList(topics=sorted(self._reserved)))

    # ------------------------------------------------------------------ groups

    def put_group(self, connection: Connection, command: RemotingCommand) -> None:
        """Creates a consumer group or replaces its settings."""
        config = decode_request(command.body, SubscriptionGroupConfig)
        self._create(connection, command, [self._put_group(config)])

    def put_groups(self, connection: Connection, command: RemotingCommand) -> None:
        """Creates or replaces several consumer groups, all of them or none (5.x)."""
        configs = decode_request(command.body, SubscriptionGroupList).group_config_list
        _check_number(len(configs), "groups")
        self._create(connection, command, [self._put_group(config) for config in configs])

    def _put_group(self, config: SubscriptionGroupConfig) -> PutGroup:
        check_group_name(config.group_name)
        if not 0 <= config.retry_queue_nums <= QUEUES_MAX or config.retry_max_times > RETRIES_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"retryQueueNums is {config.retry_queue_nums}, allowed are 0 to {QUEUES_MAX}; retryMaxTimes is "
                f"{config.retry_max_times}, allowed are up to {RETRIES_MAX}",
            )
        try:
            check_retry_policy(config)
        except msgspec.ValidationError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"groupRetryPolicy: {error}") from error
        # The settings are replaced; the attributes alone are changed one by one, as those of topics.
        known = self._leadership.metadata.groups.get(config.group_name)
        changes = ",".join(f"{name}={value}" for name, value in config.attributes.items())
        attributes = _changed_attributes({} if known is None else known.attributes, changes)
        config = msgspec.structs.replace(config, attributes=attributes)
        size = len(encode_body(config))
        if size > GROUP_BYTES_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the consumer group's settings have {size} bytes, at most {GROUP_BYTES_MAX} are allowed",
            )
        return PutGroup(config, self._time.group_ms)

    def delete_group(self, connection: Connection, command: RemotingCommand) -> None:
        """Deletes a consumer group, with its offsets if asked."""
        header = command.decode_fields(DeleteSubscriptionGroupHeader)
        clean, name = bool(header.clean_offset) or bool(header.remove_offset), header.group_name
        self._delete(
            connection, command, DeleteGroup(name, clean, self._time.group_ms), lambda group, _: group == name
        )

    def all_groups(self, connection: Connection, command: RemotingCommand) -> Iterator[None]:
        """Tells every consumer group that the client may see, with the version of the table, in steps."""
        metadata, sight = self._leadership.metadata, self._requests.sight(connection, command)
        begin = b'{"dataVersion":%s,"forbiddenTable":{},"subscriptionGroupTable":{' % encode_body(
            metadata.groups_version
        )
        return self._long_responses.tell(connection, command, table(begin, metadata.groups, sight.group))

    def group(self, connection: Connection, command: RemotingCommand) -> None:
        """Tells one consumer group. Raises `RequestError` if it does not exist."""
        name = command.decode_fields(GroupHeader).group
        config = self._leadership.metadata.groups.get(name)
        if config is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {name}"
            )
        reply_json(connection, command, config)

    # ------------------------------------------------------------------ inside

    def _delete(
        self,
        connection: Connection,
        request: RemotingCommand,
        command: DeleteTopic | DeleteGroup,
        concerns: Callable[[str, str], bool],
    ) -> None:
        # What is reported until then goes before the deletion: behind it, it would be of a new topic or consumer group
        # of that name.
        end = self._offsets.begin_deletion(concerns)

        def done(_: object) -> None:
            end()
            reply(connection, request, ResponseCode.SUCCESS)

        def lost() -> None:
            end()
            reply_unknown(connection, request)

        try:
            self._leadership.propose_command(command, done, lost)
        except BaseException:
            end()
            raise

    def _create(
        self, connection: Connection, request: RemotingCommand, commands: Sequence[PutTopic | PutGroup]
    ) -> None:
        try:
            self._creations.propose(
                commands,
                lambda _: reply(connection, request, ResponseCode.SUCCESS),
                lambda: reply_unknown(connection, request),
            )
        except TooManyError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"nothing was changed: {error}") from error

    def _role_changed(self) -> None:
        serving = self._leadership.serving
        if serving and not self._was_serving:
            self._create_missing()
        self._was_serving = serving

    def _create_missing(self) -> None:
        settings = self._settings.current
        missing = missing_of_the_broker(
            self._leadership.metadata,
            cluster=settings.node.cluster,
            broker=settings.node.group,
            default_queues=settings.broker.default_queue_count,
            auto_create=settings.broker.auto_create_topics,
            trace=settings.broker.trace_topic,
            group_ms=self._time.group_ms,
        )
        if not missing:
            return
        try:
            self._leadership.propose_command(Several(tuple(missing)))
        except (ReplicaError, DiskFullError):
            pass  # the next leader does it


def _check_number(count: int, what: str) -> None:
    if not 1 <= count <= LIST_MAX:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"the list has {count} {what}, allowed are 1 to {LIST_MAX}"
        )


def _changed_attributes(known: dict[str, str], change: str) -> dict[str, str]:
    """Attributes after a change such as ``+message.type=FIFO,-other`` (5.x)."""
    attributes = dict(known)
    for item in change.split(","):
        name, _, value = item[1:].partition("=")
        if item.startswith("+") and name:
            attributes[name] = value
        elif item.startswith("-") and name:
            attributes.pop(name, None)
        elif item:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the attribute change {item!r} is neither +name=value nor -name"
            )
    return attributes
