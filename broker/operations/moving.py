"""A topic moves from one broker group to another: nothing more is written where it was, and once all is read it goes.

    move = TopicMove(admin, "Orders", source="broker-a", target="broker-b")
    while waits := await move.step():
        print("waits for", *waits)

Each step looks at what there is and does what follows, so a move that was broken off goes on where it was:

1. The target has no such topic: it gets one, as the source has it.
2. The source lets clients write: it does not any more. Producers learn it from their routes; sends by an old route are
   still taken, as RocketMQ's brokers do.
3. It waits until no producer can have the old route any more and nothing has come for as long, until each consumer
   group has read everything there, and until nothing hidden waits there that may yet become a message of the topic.
4. The source deletes the topic.

What is sent back for a retry is a message of the consumer group's retry topic, which stays. A consumer group that is
not used any more must be named, or the move waits for it; so must one that broadcasts, as no broker has its offsets.
"""

from collections.abc import Collection

from broker.client.admin import AdminClient, QueueStatus
from broker.client.errors import NoRoute, UsageError
from broker.client.transport.routes import ROUTE_REFRESH_S, TopicRoute
from broker.client.transport.runtime import Runtime
from broker.operations.asking import Groups, as_json
from broker.operations.errors import InUse, NotThere
from broker.operations.progress import consume_stats
from broker.operations.waiting_messages import delay_queues, runtime_table
from broker.remoting.admin_bodies import GroupList
from broker.remoting.bodies import TopicConfig
from broker.remoting.codes import Permission, RequestCode

SETTLE_S = ROUTE_REFRESH_S + 5
"""Clients of RocketMQ, and Trivet's, renew their routes every 30 s."""
_WRITE = int(Permission.WRITE)
_READ_WRITE = int(Permission.READ | Permission.WRITE)


class TopicMove:
    """A move of a topic. `step` does what can be done now.

    ``without`` names consumer groups that are not waited for; with ``ignore_hidden`` neither are delayed and half
    messages, which may be of any topic; ``drop_unread`` lets messages go that no consumer group reads.
    """

    def __init__(
        self,
        admin: AdminClient,
        topic: str,
        source: str,
        target: str,
        *,
        without: Collection[str] = (),
        ignore_hidden: bool = False,
        drop_unread: bool = False,
        settle_s: float = SETTLE_S,
    ) -> None:
        """Raises UsageError for a move to where the topic is."""
        if source == target:
            raise UsageError(f"topic {topic!r} is to move from {source!r} to the same group")
        self.topic = topic
        self.source = source
        self.target = target
        self._admin = admin
        self._without = without
        self._ignore_hidden = ignore_hidden
        self._drop_unread = drop_unread
        self._settle_ns = int(settle_s * 1e9)
        self._runtime: Runtime = admin.core.runtime
        self._ends: dict[int, int] = {}
        """Queue id -> its end in the source group, when it was looked at last."""
        self._quiet_since_ns: int | None = None
        """Since when nothing has come there."""

    async def step(self) -> list[str]:
        """Do what can be done; returns what the move waits for, one sentence each, and nothing when it is done.

        Raises NotThere if neither group has the topic, InUse if nobody reads what it has, and what all calls of
        `AdminClient` raise: another step may follow then.
        """
        try:
            route = await self._admin.route(self.topic)
        except NoRoute as error:
            if self._quiet_since_ns is not None:
                raise  # it was there: a name server has begun anew
            raise NotThere(str(error)) from error
        if self.source not in route.counts:
            if self.target not in route.counts:
                raise NotThere(f"neither {self.source} nor {self.target} has topic {self.topic!r}")
            return []
        groups = await Groups.registered(self._admin)
        await self._close(groups, route)
        queues = [
            status
            for status in await self._admin.describe_topic(self.topic)
            if status.queue.broker_name == self.source
        ]
        waits = self._arrivals(queues)
        waits += await self._readers(groups, route, queues)
        waits += await self._hidden(groups)
        if not waits:
            await self._admin.delete_topic_in_group(self.topic, self.source)
        return waits

    async def _close(self, groups: Groups, route: TopicRoute) -> None:
        """Have the target take what comes, and the source nothing more, as far as they do not yet."""
        code, fields = RequestCode.GET_TOPIC_CONFIG, {"topic": self.topic}
        config = await groups.body(self.source, code, fields, as_json(TopicConfig))
        queues = max(config.read_queue_nums, config.write_queue_nums)
        if not route.permissions.get(self.target, 0) & _WRITE:
            await self._admin.create_topic(
                self.topic,
                queues=max(queues, route.counts.get(self.target, 0)),
                perm=config.perm | _READ_WRITE,
                groups=[self.target],
                ordered=config.order,
            )
        if config.perm & _WRITE:
            await self._admin.create_topic(
                self.topic,
                queues=queues,
                perm=config.perm & ~_WRITE,
                groups=[self.source],
                ordered=config.order,
            )

    def _arrivals(self, queues: list[QueueStatus]) -> list[str]:
        """Say for how long producers may still have the old route."""
        now_ns = self._runtime.now_ns()
        ends = {status.queue.queue_id: status.max_offset for status in queues}
        if self._quiet_since_ns is None or ends != self._ends:
            self._ends, self._quiet_since_ns = ends, now_ns
        left_ns = self._quiet_since_ns + self._settle_ns - now_ns
        if left_ns <= 0:
            return []
        return [
            f"producers with the old route: {left_ns / 1e9:.0f} s more, if nothing comes to {self.source}"
        ]

    async def _readers(self, groups: Groups, route: TopicRoute, queues: list[QueueStatus]) -> list[str]:
        """Say which consumer groups have something to read in the source group. Raises InUse if nobody reads it.

        One that has read the topic in another group, and is away, has yet to read all of it here.
        """
        waits = []
        found: set[str] = set()
        for broker in sorted(route.brokers):
            code, fields = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": self.topic}
            found.update((await groups.body(broker, code, fields, as_json(GroupList))).group_list)
        readers = sorted(found.difference(self._without))
        for name in readers:
            progress = (await consume_stats(groups, self.source, name, self.topic)).offsets
            offsets = {queue.queue_id: at.consumer_offset for queue, at in progress.items()}
            lag = sum(
                max(0, status.max_offset - max(status.min_offset, offsets.get(status.queue.queue_id, 0)))
                for status in queues
            )
            if lag:
                waits.append(f"consumer group {name}: {lag} messages to read in {self.source}")
        unread = sum(status.max_offset - status.min_offset for status in queues)
        if unread and not readers and not self._drop_unread:
            raise InUse(
                f"topic {self.topic!r} has {unread} messages in {self.source}, and no consumer group reads them"
            )
        return waits

    async def _hidden(self, groups: Groups) -> list[str]:
        """Say what waits in the source group that may become a message of the topic, which would have no place.

        A group notes within a minute that the last of its delayed messages was delivered.
        """
        if self._ignore_hidden:
            return []
        table = await runtime_table(groups, self.source)
        delayed = int(table.get("timerCongestNum", 0))
        delayed += sum(max(0, end - delivered) for delivered, end in delay_queues(table).values())
        waits = [f"{delayed} delayed messages in {self.source}, of whatever topic"] if delayed else []
        half = int(table.get("halfMessages", 0))
        return [*waits, f"{half} half messages in {self.source}, of whatever topic"] if half else waits
