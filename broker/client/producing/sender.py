"""The common part of all sends of one producer: routes, the choice of a queue, the heads of requests."""

from collections.abc import Callable, Sequence

from broker.client.errors import ClientError, NameServerUnavailable, NoRoute, UsageError
from broker.client.message import Message, MessageQueue, trace_key
from broker.client.producing.lane import Lane
from broker.client.producing.latency import LatencyClasses, SlowGroups
from broker.client.producing.outgoing import Outgoing
from broker.client.transport.core import ClientCore
from broker.client.transport.routes import NAME_SERVER_PATIENCE_S, TopicRoute
from log.formats.java_hash import java_hash

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Gets the writable queues, sorted, and the message; returns one of the queues."""
QueueChoice = MessageQueue | QueueSelector | str | int | None
"""A queue, a selector, a text that is hashed to a queue, a place in the list of queues, or None for all in turn."""


class Sender:
    """Gives routes, queues and heads of requests to all sends of one producer; `OneSend` makes the attempts.

    ``timeout_s`` bounds a send with all its attempts, ``attempt_timeout_s`` one attempt, in seconds; the other options
    are those of `Producer`.
    """

    def __init__(
        self,
        core: ClientCore,
        group: str,
        *,
        timeout_s: float,
        attempt_timeout_s: float,
        exactly_once: bool,
        retry_unknown: bool,
        avoid_slow: LatencyClasses | None,
    ) -> None:
        self.core = core
        self.group = group
        self.timeout_ns = int(timeout_s * 1e9)
        self.attempt_timeout_ns = int(attempt_timeout_s * 1e9)
        self.retry_unknown = retry_unknown
        self.floors: dict[str, int] = {}
        """A position that each broker group's log has reached, by broker name: the floor of its next send
        (sending/repeated_sends.py)."""
        self.slow = SlowGroups(avoid_slow, core.runtime.now_ns) if avoid_slow is not None else None
        self._exactly_once = exactly_once
        self._lanes: dict[MessageQueue, Lane] = {}
        self._turn = core.runtime.random.getrandbits(16)

    # Routes and queues ---------------------------------------------------------------------------------------------

    async def route(self, topic: str) -> TopicRoute:
        """Return a route with queues that can be written. Raises NoRoute, NameServerUnavailable, BrokerError."""
        route = self.core.routes.find(topic)
        if route is None:
            route = await self.core.routes.get(topic, create_like_default=True)
        elif not route.writable:
            # It may be written again by now, and the next renewal is half a minute away.
            route = await self.core.routes.refresh(topic)
        if not route.writable:
            raise NoRoute(topic, "none of its queues can be written")
        return route

    async def route_before(self, deadline_ns: int, topic: str) -> TopicRoute:
        """Return what `route` returns, before a time.

        Raises what it raises, and NameServerUnavailable when time is over.
        """
        with self.core.runtime.move_on_after((deadline_ns - self.core.runtime.now_ns()) / 1e9):
            return await self.route(topic)
        raise NameServerUnavailable(["no route within the send's time limit"])

    async def new_route(self, topic: str, deadline_ns: int, old: TopicRoute | None) -> TopicRoute | None:
        """Return a fresh route with queues that can be written; the old one when none is to be had in time."""
        limit_s = (deadline_ns - self.core.runtime.now_ns()) / 1e9
        # A name server that hangs must not use up the time in which another member of the old route could be asked.
        with self.core.runtime.move_on_after(
            limit_s if old is None else min(limit_s, NAME_SERVER_PATIENCE_S)
        ):
            try:
                fresh = await self.core.routes.refresh(topic)
            except ClientError:
                return old
            return fresh if fresh.writable else old
        return old

    def choose(
        self, route: TopicRoute, message: Message, choice: QueueChoice, avoid_groups: Sequence[str] = ()
    ) -> MessageQueue:
        """Return the queue that a message goes to. Raises UsageError for a choice that the message cannot go to.

        Without a choice the queues take turns, those of ``avoid_groups`` only when there are no others. A key, a place
        and a selector choose among all queues that may be written, so that the same key goes to the same queue while a
        group is without a leader, too: such a send waits for the next one.
        """
        if choice is None:
            queues: Sequence[MessageQueue] = route.writable
            if avoid_groups:
                queues = [queue for queue in queues if queue.broker_name not in avoid_groups] or queues
            self._turn += 1
            if self.slow is not None:
                return self.slow.choose(queues, self._turn)
            return queues[self._turn % len(queues)]
        if isinstance(choice, MessageQueue):
            if choice.topic != message.topic:
                raise UsageError(f"a message for topic {message.topic!r} cannot go to {choice}")
            return choice
        if isinstance(choice, bool) or not (isinstance(choice, str | int) or callable(choice)):
            raise UsageError(f"queue {choice!r} is no MessageQueue, number, text or function")
        queues = route.permitted
        if isinstance(choice, str):
            # As `SelectMessageQueueByHash` does: a program in Java sends the same text to the same queue.
            return queues[abs(java_hash(choice)) % len(queues)]
        if isinstance(choice, int):
            return queues[choice % len(queues)]
        chosen = choice(queues, message)
        if chosen not in queues:
            raise UsageError(f"the selector chose {chosen}, which is not among the writable queues")
        return chosen

    # Requests ------------------------------------------------------------------------------------------------------

    def lane(self, queue: MessageQueue) -> Lane:
        """Return the way to a queue."""
        lane = self._lanes.get(queue)
        if lane is None:
            lane = Lane(self.core.pool, self.group, queue, exactly_once=self._exactly_once)
            self._lanes[queue] = lane
        return lane

    def reached(self, broker_name: str, position: str, base: int) -> None:
        """Note that a group's log has reached a position, given as a number in this base. Ignores other text.

        A smaller position than before is noted as well: it is true, and of a log that began anew the only true one.
        """
        try:
            self.floors[broker_name] = int(position, base)
        except ValueError:
            pass  # a broker other than Trivet's, whose ids have no position

    async def send_one_way(self, outgoing: Outgoing, message: Message, choice: QueueChoice) -> None:
        """Write one request that nobody answers. Raises what `Producer.send_one_way` raises."""
        core = self.core
        route = await self.route(message.topic)
        target = self.choose(route, message, choice)
        address = route.address(target.broker_name)
        lacking = route.lacks(target)
        if lacking is not None:
            raise NoRoute(message.topic, lacking)
        assert address is not None, "a registered broker has an address"
        connection = core.pool.find(address) or await core.pool.get(address)
        if core.trace is not None:
            # Nothing completes this operation: its outcome stays unknown for ever.
            core.trace.invoke_append(
                core.runtime.now_ns(), core.client_id, trace_key(target), outgoing.unique_keys
            )
        # Without a floor: what nobody repeats need not be recognized.
        fields = self.lane(target).fields(outgoing, None)
        await connection.send_one_way_with_room(outgoing.code, fields, outgoing.body)
