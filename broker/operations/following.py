"""Following a topic: its messages as they are stored, from now or from a time on, through whatever leaders it has.

A follower is no member of a consumer group: it reads all queues, stores no offsets, and disturbs nobody. Broker
groups that do not answer keep it from nothing: they are `missing`, and are followed when they answer again.
"""

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from broker.client.admin import AdminClient
from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.consuming.subscription import SqlFilter, Subscription
from broker.client.errors import ClientError
from broker.client.message import MessageQueue
from broker.operations.asking import Groups, Missing, each
from broker.operations.own_groups import READER_GROUP
from broker.operations.queue_browsing import StoredMessage, queue_calls, stored_message

QUEUES_LOOKED_FOR_S = 10.0
"""Seconds after which new queues of a topic, in its broker groups or in new ones, are noticed."""


class Follower:
    """Reads a topic from ``since_ms`` on, or from now. ``wanted`` are tags (``a || b``) or an `SqlFilter`.

    async with Follower(admin, "topic") as follower:
        messages = await follower.take()

    Making one raises UsageError for tags that are not valid; entering it raises NoRoute for an unknown topic,
    BrokerError for a condition that the broker cannot read, or ClientError.
    """

    def __init__(
        self, admin: AdminClient, topic: str, *, wanted: str | SqlFilter = "*", since_ms: int | None = None
    ) -> None:
        options = admin.options
        self._admin = admin
        self._topic = topic
        self._wanted = Subscription.parse(topic, wanted, 0)
        self._since_ms = since_ms
        self._looked_ns: int | None = None
        """None while queues are looked for."""
        self._followed: dict[str, set[MessageQueue]] = {}
        """The queues that are read, by broker group."""
        self.missing: tuple[Missing, ...] = ()
        """The broker groups that could not be asked when this was last tried."""
        self._consumer = PullConsumer(
            options.name_servers,
            group=READER_GROUP,
            topics={topic: wanted},
            runtime=admin.core.runtime,
            tls=options.tls,
            credentials=options.credentials,
        )

    async def __aenter__(self) -> Self:
        await self._consumer.__aenter__()
        try:
            now_ms = self._admin.core.runtime.wall_ms()
            await self._take_up(await self._consumer.queues(self._topic))
            if self._since_ms is None:
                self._since_ms = now_ms  # for what is missing yet
            self._looked_ns = self._admin.core.runtime.now_ns()
        except BaseException as error:
            await self._consumer.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._consumer.__aexit__(kind, error, traceback)

    async def _check(self, queue: MessageQueue, begin: int) -> None:
        """Pull once, so that a condition which the broker will never accept is reported at once instead of being tried
        for ever.

        Raises BrokerError.
        """
        calls = queue_calls(self._admin)
        try:
            await calls.pull(queue, begin, self._wanted, max_messages=1, suspend_s=0)
        except ClientError as error:
            if not error.retry_may_help:
                raise

    async def take(self, timeout_s: float = 1.0) -> list[StoredMessage]:
        """Return messages of one queue, in their order; none if none comes in time. Brokers that are away are waited
        for. Raises ClientClosed outside the block."""
        runtime = self._admin.core.runtime
        if self._looked_ns is not None and runtime.now_ns() - self._looked_ns >= QUEUES_LOOKED_FOR_S * 1e9:
            self._looked_ns = None
            self._admin.core.tasks.start_soon(self._look_for_queues)
        return [stored_message(view) for view in await self._consumer.poll(timeout_s=timeout_s)]

    async def _look_for_queues(self) -> None:
        try:
            await self._take_up((await self._admin.route(self._topic)).readable)
        except ClientError:
            pass  # the queues that are known may serve all the same
        self._looked_ns = self._admin.core.runtime.now_ns()

    async def _take_up(self, queues: Iterable[MessageQueue]) -> None:
        """Read those of these queues that are not read yet, as far as their broker groups answer.

        A new queue of a group that is followed begins at 0: all that it has came after the beginning. Raises a
        ClientError where no group answers that has new queues.
        """
        new: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            if queue not in self._followed.get(queue.broker_name, ()):
                new.setdefault(queue.broker_name, []).append(queue)

        async def begins(name: str) -> dict[MessageQueue, int]:
            if name in self._followed:
                return dict.fromkeys(new[name], 0)
            since_ms = self._since_ms
            if since_ms is None:
                # Followed from now on: what is there already is not read.
                found = await each(self._admin, new[name], self._consumer.max_offset)
            else:
                found = await each(
                    self._admin, new[name], lambda queue: self._consumer.search_offset(queue, since_ms)
                )
            return dict(zip(new[name], found, strict=True))

        groups = await Groups.registered(self._admin)
        answers = await groups.ask(begins, new)
        self.missing = groups.missing
        # All queues are read with one condition: what the first one refuses for good, each would.
        first = [place for found in answers.values() for place in found.items()][:1]
        for queue, begin in () if self._followed else first:
            await self._check(queue, begin)
        for name, found in answers.items():
            self._followed.setdefault(name, set()).update(found)
            for queue, begin in found.items():
                self._consumer.seek(queue, begin)
