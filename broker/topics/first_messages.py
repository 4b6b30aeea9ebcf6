"""Topics that come into being by their first message (RocketMQ's `TopicConfigManager.createTopicInSendMessageMethod`).

The send that finds no topic has it created, with the queues and the permission of the topic that its producer names as
a template, TBW102 by default. It waits for that, with all sends that come meanwhile, and is handled anew then: these
may be thousands, of which a turn handles some. A send that comes while others of its address are left of them goes
behind these, so that messages of one client are stored in the order in which it sent them.
"""

from broker.node.listeners import Listeners
from broker.node.ports import Appends, Requests
from broker.remoting.bodies import TopicConfig
from broker.remoting.codes import Permission, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import SendHeader
from broker.requests.budget import Budget
from broker.requests.connection import Connection
from broker.requests.deadline import NEVER, Time
from broker.requests.errors import (
    BatchUnderWayError,
    NotServingError,
    OverloadedError,
    RequestError,
    TooManyError,
)
from broker.requests.in_turn import InTurn
from broker.requests.work import work_of
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
from log.errors import DiskFullError

_Attempts = list[tuple[Connection, RemotingCommand]]


class NewTopics:
    """The topics that are being created by sends, and the sends that wait for them."""

    def __init__(
        self,
        leadership: Appends,
        requests: Requests,
        creations: Creations,
        settings: LiveSettings,
        time: Time,
        listeners: Listeners,
    ) -> None:
        self._leadership = leadership
        self._requests = requests
        self._creations = creations
        self._settings = settings
        self._time = time
        self._waiting: dict[str, _Attempts] = {}
        """By topic that is being created: one send at least."""
        self.leaving: InTurn[tuple[Connection, RemotingCommand]] = InTurn()
        """Sends whose topic is there, and those that have come behind them: they are handled anew. Of a topic that is
        being created, as it was deleted meanwhile, they came after those that wait. To be looked at only."""
        requests.stops_behind(self.leaving)
        self._handled: RemotingCommand | None = None
        """The send that is being handled anew."""
        self._leave_at = time.add_deadline(self._begin_turn)
        self._left = 0
        self._left_ns = -1
        """The work that a turn may still do for sends that leave (`_left`), and when that turn began."""
        self._budget = Budget("topics that are being created")
        """The budget of sends that wait, or are leaving."""
        listeners.role_changes.append(self._role_changed)

    def goes_behind(self, connection: Connection, command: RemotingCommand) -> bool:
        """Puts a send that has come behind those of its address that are leaving, if there are any; else returns False.

        The first of these is handled in its place: so a client that sends and sends does not wait here for ever.
        Raises `OverloadedError` where too many wait already.
        """
        share = connection.share
        if command is self._handled or share not in self.leaving.by_share:
            return False
        self._budget.take(connection, command)
        self.leaving.add(share, (connection, command))
        if self._may_handle():
            self._handle(*self.leaving.take_of(share))
        return True

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

        # The budget counts what waits. A command that cannot be proposed leaves nothing waiting; the end of one that is
        # comes in a later step of this node, when the topic is among those that wait (below).
        self._budget.take(connection, command)
        waiting = [(connection, command)]
        try:
            self._creations.propose(
                [PutTopic(config, self._time.group_ms, if_absent=True)],
                lambda _: self._leave(topic, waiting),
                lambda: self._leave(topic, waiting),
            )
        except TooManyError as error:
            self._budget.free(connection, command)
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, and is not created: {error}"
            ) from error
        except BaseException:
            self._budget.free(connection, command)
            raise
        self._waiting[topic] = waiting

    def _leave(self, topic: str, waiting: _Attempts) -> None:
        """Ends the wait for a topic: as many sends as this turn may yet take are handled anew, the others later."""
        # A leader that is lost hears of its command some turns later: it has handed these sends on by then, and may
        # lead again, with others waiting for the same topic.
        if self._waiting.get(topic) is not waiting:
            return
        del self._waiting[topic]
        for attempt in reversed(waiting):
            self.leaving.add_before(attempt[0].share, attempt, is_next=False)
        # One turn may see many topics come to be: all of them have its share together.
        if self._left_ns == self._time.now_ns:
            self._handle_some()
        else:
            self._begin_turn()

    def _begin_turn(self) -> None:
        self._left, self._left_ns = self._leadership.limits.held_at_once, self._time.now_ns
        self._handle_some()

    def _handle_some(self) -> None:
        while self._left > 0 and self.leaving and self._may_handle():
            connection, command = self.leaving.take()
            self._left -= work_of(command)
            self._handle(connection, command)
        # Those that a batch keeps waiting go on when it is over, whatever else waits for that (`_may_handle`).
        self._leave_at.due_ns = self._time.now_ns if self.leaving and self._left <= 0 else NEVER

    def _may_handle(self) -> bool:
        """Tells whether sends may be handled anew now. If a leader is wanted that takes them, hands them all on; if a
        batch is under way, some are handled when it is over."""
        try:
            self._leadership.check_may_append()
        except BatchUnderWayError:
            # Kept behind the batch they would come anew when others of their client are still here.
            self._leadership.batches.when_over(self._begin_turn)
            return False
        except NotServingError:
            self._hand_on()
            return False
        except (OverloadedError, DiskFullError):
            pass  # it is for each of them to be told so
        return True

    def _handle(self, connection: Connection, command: RemotingCommand) -> None:
        self._budget.free(connection, command)
        assert self._handled is None, "one at a time, as it goes behind none"
        self._handled = command
        try:
            self._requests.handle_late(connection, command)
        finally:
            self._handled = None

    def _role_changed(self) -> None:
        if not self._leadership.serving:
            self._hand_on()

    def _hand_on(self) -> None:
        """Has all sends wait for the next leader, each client's in their order: nothing of them is in the log.

        At once, as what their clients send from now on may go to that leader without coming by here.
        """
        waiting = [attempt for attempts in self._waiting.values() for attempt in attempts]
        self._waiting.clear()
        while self.leaving:
            waiting.append(self.leaving.take())
        self._leave_at.due_ns = NEVER
        for connection, command in waiting:
            self._budget.free(connection, command)
            self._requests.hold_late(connection, command)

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
            template = self._leadership.metadata.topics.get(header.default_topic)
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
            and topic.removeprefix(DEAD_LETTER_PREFIX) in self._leadership.metadata.groups
        )
