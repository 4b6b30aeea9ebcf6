"""The rules of a topic and a consumer group whose settings change while they are used.

Each order to change them is done once for each request, and is in the log before it is acknowledged; a question for
the settings is answered by what they were at a moment since it was asked; every node that has applied everything
knows the same. Who may not read gets nothing, and who may is not refused: judged while all nodes know the newest
settings and none starts, since followers answer by what they have applied. In the end, with everything allowed again,
everything was read.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from broker.client.transport.connection import Fields
from broker.client.transport.runtime import Buffer
from broker.remoting.bodies import SubscriptionGroupConfig, TopicConfig
from broker.remoting.codes import Permission, ResponseCode
from broker.replica.replica import Replica
from broker.state.commands import Command, PutGroup, PutTopic
from simulation.journal import Violation
from simulation.judges.group_model import CommittedMessage, values_since
from simulation.machines.broker_host import BrokerHost, BrokerProcess
from simulation.workload.context import Context, Invariant
from simulation.workload.watched_pool import Attempt

TOPIC: Final = "rooms"
GROUP: Final = "guests"
NOTE: Final = "order"
"""The attribute that holds the number of an order."""

_READ: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
"""Answers to the pull of a member that may read."""

Config = TopicConfig | SubscriptionGroupConfig


@dataclass(slots=True)
class Order:
    """A change of the topic's permission, or of the consumer group's switch."""

    number: int
    is_topic: bool
    is_allowed: bool
    requests: int = 1
    done: int = 0


def _allows_reading(config: Config | None) -> bool:
    """True if these settings alone allow reading; what is not there yet is made by its first use."""
    if isinstance(config, TopicConfig):
        return bool(config.perm & Permission.READ)
    return config is None or config.consume_enable


class Restrictions(Invariant):
    """Settings are for everybody what they were made."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._orders: list[Order] = []
        self._states: dict[bool, list[tuple[int, Config | None]]] = {True: [(0, None)], False: [(0, None)]}
        """(true time, settings) of the topic (True) and of the consumer group (False), in the order of the log."""
        self._unread: dict[tuple[int, int], CommittedMessage] = {}

    # ---- orders --------------------------------------------------------------------------------------

    def order(self, *, is_topic: bool, is_allowed: bool) -> Order:
        """Notes a request that is about to leave."""
        order = Order(len(self._orders), is_topic, is_allowed)
        self._orders.append(order)
        return order

    def acknowledged(self, order: Order) -> None:
        """Judges an acknowledgement: the order is in the log. Raises Violation."""
        if not order.done:
            raise Violation("acknowledged settings are in the log", "clients", str(order))
        self.context.journal.did("topic's permission set" if order.is_topic else "group's switch set")

    def refused(self, order: Order, reason: str) -> None:
        """Judges a refusal: the order is not done, and will not be. Raises Violation."""
        order.requests -= 1
        if order.done > order.requests:
            raise Violation("refused requests leave nothing", "clients", f"{order}: {reason}")

    def applied(self, command: Command, now_ns: int) -> None:
        """Follows the settings in the log: each change has a request of its own. Raises Violation."""
        if not isinstance(command, PutTopic | PutGroup):
            return
        config = command.config
        name = config.topic_name if isinstance(config, TopicConfig) else config.group_name
        if name not in (TOPIC, GROUP):
            return
        states = self._states[isinstance(config, TopicConfig)]
        # Made by the first use, which takes nothing away from settings that are there.
        if command.if_absent:
            if states[-1][1] is None:
                states.append((now_ns, config))
            return
        order = self._orders[int(config.attributes[NOTE])]
        order.done += 1
        if order.done > order.requests:
            raise Violation("an order is done once", "group", str(order))
        states.append((now_ns, config))

    def told(self, since_ns: int, config: Config | None, *, is_topic: bool) -> None:
        """Judges an answer to a question for the settings. Raises Violation."""
        if config not in values_since(self._states[is_topic], since_ns):
            raise Violation("settings are linearizable", "clients", f"{config}, asked at {since_ns}")
        self.context.journal.did("settings asked for")

    @property
    def forbids(self) -> bool:
        """True while the topic or the consumer group must not be read from, as far as the group has committed."""
        return not all(_allows_reading(states[-1][1]) for states in self._states.values())

    # ---- reading -------------------------------------------------------------------------------------

    @contextmanager
    def pulling(self, fields: Fields, body: Buffer) -> Iterator[Attempt]:
        """Watches a pull, from its leaving to its answer. Raises Violation."""
        attempt = Attempt()
        since_ns = self.context.scheduler.now_ns
        processes = self._processes()
        is_known = self._is_known_everywhere(processes)
        yield attempt
        answer = attempt.answer
        is_ours = isinstance(fields, dict) and fields["topic"] == TOPIC
        # A process that began meanwhile may answer by an older state, until it has applied all again.
        if answer is None or not is_ours or not is_known or processes != self._processes():
            return
        allowed = {
            is_topic: [_allows_reading(config) for config in values_since(states, since_ns)]
            for is_topic, states in self._states.items()
        }
        # Topic and group change apart: each of them alone may forbid all the time.
        if answer.code in _READ:
            if not (any(allowed[True]) and any(allowed[False])):
                raise Violation("who may not read reads nothing", "clients", f"{answer.code} {fields}")
        elif answer.code == ResponseCode.NO_PERMISSION:
            if all(allowed[True]) and all(allowed[False]):
                raise Violation("who may read is not refused", "clients", f"{answer.remark} {fields}")
            self.context.journal.did("pull refused")

    def committed(self, message: CommittedMessage) -> None:
        """Notes a message to be read."""
        if message.record.topic == TOPIC:
            self._unread[message.record.queue_id, message.record.queue_offset] = message

    def read(self, queue_id: int, offset: int) -> None:
        """Notes that a member has got a message."""
        self._unread.pop((queue_id, offset), None)
        self.context.journal.did("message of a restricted topic read")

    # ---- at the end ----------------------------------------------------------------------------------

    def check_node(self, host: BrokerHost, replica: Replica) -> None:
        """Checks that the node knows the settings that are committed. Raises Violation."""
        metadata = replica.metadata
        for is_topic, held in ((True, metadata.topics.get(TOPIC)), (False, metadata.groups.get(GROUP))):
            known = self._states[is_topic][-1][1]
            if held != known:
                raise Violation("settings are known", host.name, f"{held}, not {known}")

    def check_end(self) -> None:
        """Checks that everything was read but what retention took before. Raises Violation."""
        model = self.context.model
        missing = [place for place, message in self._unread.items() if not model.may_be_gone(message)]
        if missing:
            queue_id, offset = missing[0]
            raise Violation(
                "liveness", "guests", f"{TOPIC}/{queue_id}: {len(missing)} never read, {offset} first"
            )

    # ---- inside --------------------------------------------------------------------------------------

    def _processes(self) -> list[BrokerProcess | None]:
        return [host.process for host in self.context.members.machines]

    def _is_known_everywhere(self, processes: list[BrokerProcess | None]) -> bool:
        topic, group = self._states[True][-1][1], self._states[False][-1][1]
        for process in processes:
            if process is not None:
                metadata = process.replica.metadata
                if (metadata.topics.get(TOPIC), metadata.groups.get(GROUP)) != (topic, group):
                    return False
        return True
