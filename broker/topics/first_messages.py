"""Topics that come into being by their first message (RocketMQ's `TopicConfigManager.createTopicInSendMessageMethod`).

The send that finds no topic has it created, with the queues and the permission of the topic that its producer names as
a template, TBW102 by default. It waits for that, with all sends that come meanwhile, and is handled anew then.
"""

from collections.abc import Callable

from broker.node.ports import Requests, State
from broker.remoting.bodies import TopicConfig
from broker.remoting.codes import Permission, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import SendHeader
from broker.requests.budget import Budget
from broker.requests.connection import Connection
from broker.requests.deadline import Time
from broker.requests.errors import RequestError, TooManyError
from broker.settings.live import LiveSettings
from broker.state.commands import PutTopic
from broker.state.topic_rules import (
    DEAD_LETTER_PREFIX,
    DEFAULT_TOPIC,
    RETRY_PREFIX,
    check_topic_name,
    default_template,
    topic_config,
    unit_sys_flag,
)
from broker.topics.creation import Creations


class NewTopics:
    """The topics that are being created by sends, and the sends that wait for them."""

    def __init__(
        self, state: State, requests: Requests, creations: Creations, settings: LiveSettings, time: Time
    ) -> None:
        self._state = state
        self._requests = requests
        self._creations = creations
        self._settings = settings
        self._time = time
        self._waiting: dict[str, list[tuple[Connection, RemotingCommand]]] = {}
        """By topic that is being created: one send at least, each counted by the budget."""
        self._budget = Budget("topics that are being created")

    def create(self, connection: Connection, command: RemotingCommand, header: SendHeader) -> None:
        """Has the send's topic created; the send is handled anew once the topic exists.

        Raises `RequestError` where the topic may not be created, `OverloadedError` where too many sends wait already,
        and as `Leadership.propose_command`.
        """
        topic = header.topic
        if topic in self._waiting:
            self._budget.take(connection, command)
            self._waiting[topic].append((connection, command))
            return
        config = self._config_of(header)

        def end(go_on: Callable[[Connection, RemotingCommand], None]) -> None:
            for waiting_connection, waiting_command in self._waiting.pop(topic):
                self._budget.give_back(waiting_connection, waiting_command)
                go_on(waiting_connection, waiting_command)

        # The budget counts what waits. A command that cannot be proposed leaves nothing waiting; the end of one that is
        # comes in a later step of this node, when the topic is among those that wait (below).
        self._budget.take(connection, command)
        try:
            self._creations.propose(
                [PutTopic(config, self._time.group_ms, if_absent=True)],
                lambda _: end(self._requests.handle_admitted),
                # Nothing of these sends is in the log: the next leader may have them.
                lambda: end(self._requests.forward),
            )
        except TooManyError as error:
            self._budget.give_back(connection, command)
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, and is not created: {error}"
            ) from error
        except BaseException:
            self._budget.give_back(connection, command)
            raise
        self._waiting[topic] = [(connection, command)]

    def _config_of(self, header: SendHeader) -> TopicConfig:
        """The topic as it is to be created; raises `RequestError` where that is not allowed."""
        topic = header.topic
        check_topic_name(topic)
        sys_flag = unit_sys_flag(topic, header.unit_mode)
        if topic.startswith(RETRY_PREFIX) or self._is_dead_letter_topic(topic):
            return topic_config(topic, 1, sys_flag=sys_flag)
        template: TopicConfig | None
        if header.default_topic == DEFAULT_TOPIC:
            # By the settings, which may have changed since the group's first leader made the topic.
            broker = self._settings.current.broker
            template = default_template(broker.default_queue_count, broker.auto_create_topics)
        else:
            template = self._state.metadata.topics.get(header.default_topic)
        if template is None or not template.perm & Permission.INHERIT:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic}] not exist, apply first please! (No automatic creation from "
                f"{header.default_topic!r}.)",
            )
        queues = max(1, min(header.default_topic_queue_nums, template.write_queue_nums))
        # The new topic is no template for others.
        config = topic_config(topic, queues, template.perm & ~Permission.INHERIT, sys_flag=sys_flag)
        config.topic_filter_type = template.topic_filter_type
        return config

    def _is_dead_letter_topic(self, topic: str) -> bool:
        """Tells whether it is that of a consumer group that exists; others of such names are topics like any."""
        return (
            topic.startswith(DEAD_LETTER_PREFIX)
            and topic.removeprefix(DEAD_LETTER_PREFIX) in self._state.metadata.groups
        )
