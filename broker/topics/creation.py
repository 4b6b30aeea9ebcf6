"""The creation of topics and consumer groups, by use or by an administrator, and the limits on it.

Whether a first message creates its topic, and with what, decides first_messages.py.

What use creates never replaces what exists (`if_absent`): several clients may cause it at once, and an administrator
may come in between. Only the leader proposes it.

Anybody who may send can create topics, and anybody who may pull, consumer groups; each is memory on every node and on
every client that asks for it, and part of every registration with a name server. So there are limits
(`limits.max_topics`, `max_groups`, `max_queues`), at whose defaults all that is told of topics or of consumer groups
fits into one frame. They are checked by the leader when it proposes, what is under way counted, also what is there and
would come into being anew if its deletion, which may be under way, too, is applied before; what is there already stays.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from broker.node.group_limit import GroupLimit
from broker.node.ports import Proposals
from broker.remoting.bodies import SubscriptionGroupConfig
from broker.remoting.codes import ResponseCode
from broker.requests.errors import RequestError, TooManyError
from broker.settings.live import LiveSettings
from broker.state.commands import PutGroup, PutTopic, Several, SingleCommand
from broker.state.metadata import Metadata
from broker.state.topic_rules import (
    RETRY_PREFIX,
    InvalidNameError,
    check_group_name,
    is_system_group,
    queues_of,
    system_groups,
    system_topics,
    topic_config,
    unit_sys_flag,
)


class Creations:
    """Proposes what creates topics and consumer groups, within the limits of the node's settings."""

    def __init__(self, leadership: Proposals, settings: LiveSettings, group_limit: GroupLimit) -> None:
        self._leadership = leadership
        self._group_limit = group_limit
        self._settings = settings
        self._topics: dict[str, int] = {}
        """By topic that was not there, the number of commands under way that create it."""
        self._replaced: dict[str, tuple[int, int]] = {}
        """By topic that was there, the number of commands under way that would create it if it were deleted before
        them, and the number of queues that the last of them then adds beside what `_queues` counts."""
        self._queues = 0
        """The number of queues that all commands under way add. As the two above and what `_group_limit` was claimed of
        it tells of a command from when it is proposed until it is applied or lost: what were left of one would count
        against the limits for as long as this node runs."""

    def taken(self) -> Mapping[str, int]:
        """Returns how many topics, queues and consumer groups (whoever makes these known) count before they are there,
        as they are under way."""
        return {"topics": len(self._topics), "queues": self._queues, "groups": self._group_limit.claimed}

    def propose(
        self, commands: Sequence[SingleCommand], done: Callable[[Any], None], lost: Callable[[], None]
    ) -> None:
        """Proposes the commands, of which there is one at least, as one; `done` and `lost` as in
        `Leadership.propose_command`.

        Raises `TooManyError`, and as `Leadership.propose_command`, with nothing proposed.
        """
        assert commands, "nothing would be committed, and nobody answered"
        # Count what will be new: what exists stays, however many there are of it.
        metadata = self._leadership.metadata
        topics: dict[str, None] = {}
        replaced: dict[str, int] = {}
        groups: dict[str, None] = {}
        queues = 0
        for command in commands:
            if isinstance(command, PutTopic):
                name, wanted = command.config.topic_name, queues_of(command.config)
                known = metadata.topics.get(name)
                if known is None:
                    topics[name] = None
                    queues += wanted
                elif command.if_absent:
                    replaced[name] = wanted
                else:
                    replaced[name] = queues_of(known)
                    # Negative where a topic is to have fewer: that makes room for the others of the same request.
                    queues += wanted - queues_of(known)
            elif isinstance(command, PutGroup):
                groups[command.config.group_name] = None
        self._check(topics, queues)
        # Last of the checks, as what is claimed must be freed.
        groups_settled = self._group_limit.claim(groups)

        # What is under way counts, too, until it is applied or lost: several clients may create much at once.
        counts = False

        def end() -> None:
            nonlocal counts
            assert counts, "a command is applied or lost once, and not while it is proposed"
            counts = False
            groups_settled()
            self._queues -= queues
            for name in topics:
                self._topics[name] -= 1
                if not self._topics[name]:
                    del self._topics[name]
            for name in replaced:
                times, more = self._replaced.pop(name)
                if times > 1:
                    self._replaced[name] = times - 1, more

        def applied(result: object) -> None:
            end()
            done(result)

        def not_applied() -> None:
            end()
            lost()

        together = commands[0] if len(commands) == 1 else Several(tuple(commands))
        try:
            self._leadership.propose_command(together, applied, not_applied)
        except BaseException:
            groups_settled()
            raise
        counts = True
        self._queues += queues
        for name in topics:
            self._topics[name] = self._topics.get(name, 0) + 1
        for name, more in replaced.items():
            self._replaced[name] = self._replaced.get(name, (0, 0))[0] + 1, more

    def create_group(
        self, group: str, group_ms: int, created: Callable[[], None], lost: Callable[[], None]
    ) -> bool:
        """Creates a consumer group by its use. Returns False, with nothing done, if it is there or may not be created.

        Raises `RequestError` where there is no room for it, and as `propose`.
        """
        try:
            check_group_name(group)
        except InvalidNameError:
            return False
        auto_create = self._settings.current.broker.auto_create_groups
        missing = missing_for_consumers(self._leadership.metadata, (group,), auto_create, group_ms)
        if not missing:
            return False
        try:
            self.propose(missing, lambda _: created(), lost)
        except TooManyError as error:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group}] does not exist, and is not created: {error}",
            ) from error
        return True

    def _check(self, topics: dict[str, None], queues: int) -> None:
        # Only what adds something is refused: where a limit was lowered below what is there, changes still go through.
        if not topics and queues <= 0:
            return
        limits, metadata = self._settings.current.limits, self._leadership.metadata
        # Of topics that are gone by now and come again, which most of `_replaced` are not.
        again = {
            name: more
            for name, (_, more) in self._replaced.items()
            if name not in metadata.topics and name not in self._topics
        }
        count = len(metadata.topics) + len(self._topics) + len(again)
        new = sum(name not in self._topics and name not in again for name in topics)
        if topics and count + new > limits.max_topics:
            raise TooManyError(
                f"there are {count} topics, at most {limits.max_topics} are allowed (limits.max_topics)"
            )
        if queues > 0:
            count = metadata.queue_count + self._queues + sum(again.values())
            if count + queues > limits.max_queues:
                raise TooManyError(
                    f"the topics have {count} queues, {queues} more would be too many: at most {limits.max_queues} "
                    f"are allowed (limits.max_queues)"
                )


def missing_for_consumers(
    metadata: Metadata,
    groups: Iterable[str],
    auto_create: bool,
    group_ms: int,
    unit_groups: Container[str] = (),
) -> list[SingleCommand]:
    """Returns commands that create the settings and retry topics which these consumer groups lack. `unit_groups` get
    unitMode.

    A consumer group that does not exist and may not be created by use is left alone: its pulls are answered with code
    26.
    """
    commands: list[SingleCommand] = []
    for name in dict.fromkeys(groups):
        group = metadata.groups.get(name)
        if group is None:
            if not auto_create and not is_system_group(name):
                continue
            group = SubscriptionGroupConfig(group_name=name)
            commands.append(PutGroup(group, group_ms, if_absent=True))
        # A consumer subscribes to its retry topic before anything was sent back: its route must be there.
        retry_topic = RETRY_PREFIX + name
        if retry_topic not in metadata.topics and group.retry_queue_nums > 0:
            sys_flag = unit_sys_flag(retry_topic, name in unit_groups)
            config = topic_config(retry_topic, group.retry_queue_nums, sys_flag=sys_flag)
            commands.append(PutTopic(config, group_ms, if_absent=True))
    return commands


def missing_of_the_broker(
    metadata: Metadata,
    *,
    cluster: str,
    broker: str,
    default_queues: int,
    auto_create: bool,
    trace: bool,
    group_ms: int,
) -> list[SingleCommand]:
    """Returns the commands that create what every broker has, and this group lacks."""
    commands: list[SingleCommand] = [
        PutTopic(config, group_ms, if_absent=True)
        for config in system_topics(cluster, broker, default_queues, auto_create, trace)
        if config.topic_name not in metadata.topics
    ]
    commands += [
        PutGroup(config, group_ms, if_absent=True)
        for config in system_groups()
        if config.group_name not in metadata.groups
    ]
    return commands
