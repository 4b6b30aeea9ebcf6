"""The queues that one member of a consumer group reads: computed anew as members come and go, taken up, given up.

A rebalance follows at the start, when a broker says that members have come or gone, and every 20 s. A queue that is
lost is read no more, and its consumer offset stored; one that is gained is read from the stored offset.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from broker.client.consuming.consumer_offsets import StoredOffsets
from broker.client.consuming.first_offsets import FirstOffsets
from broker.client.consuming.intake import Intake, QueueReader
from broker.client.consuming.order_locks import OrderLocks
from broker.client.consuming.queue_calls import QueueCalls
from broker.client.consuming.strategies import Strategy
from broker.client.consuming.subscription import Subscription
from broker.client.errors import (
    BrokerError,
    ClientError,
    ConnectionFailed,
    NameServerUnavailable,
    NoRoute,
    UsageError,
)
from broker.client.message import MessageQueue
from broker.client.transport.connection import Connection
from broker.client.transport.core import ClientCore
from broker.client.transport.runtime import Event
from broker.remoting.admin_bodies import QueueOffsets
from broker.remoting.bodies import ConsumerListBody
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import RemotingError
from broker.remoting.json_body import decode_body
from broker.state.topic_rules import RETRY_PREFIX

logger = logging.getLogger("trivet.client")

REBALANCE_S = 20.0
"""Time between rebalances, in seconds."""
REBALANCE_AFTER_FAILURE_S = 0.5
REBALANCE_AFTER_FAILURES_S = 5.0
"""After a failed rebalance the next one follows soon, after failures in a row each one later, up to this. Name servers
that have just started know no routes until brokers register, and nobody tells the consumer of that."""


@dataclass(eq=False)
class Assignment:
    """This member's queues; their readers are those of ``_intake``.

    What befalls a queue comes here: that its lock is lost, that members have come or gone, that an administrator has
    reset its offset.
    """

    _core: ClientCore
    _calls: QueueCalls
    _group: str
    _subscriptions: Mapping[str, Subscription]
    _intake: Intake
    _stored: StoredOffsets
    _first_offsets: FirstOffsets
    _strategy: Strategy | None
    """None for a member that reads all queues."""
    _locks: OrderLocks | None
    """None for a member that needs no lock to read."""
    _given_up: dict[QueueReader, None] = field(default_factory=dict)
    """Readers of queues that this member reads no more, as long as their consumer offsets are being stored."""
    _complaints: dict[str, str] = field(default_factory=dict)
    """For each topic that is not read, the kind of error that the log was last told."""
    _rebalance_wanted: Event = field(init=False)
    is_known: Event = field(init=False)
    """Set once this member has found its share of the queues for the first time, or the client is closed."""

    def __post_init__(self) -> None:
        core = self._core
        self._rebalance_wanted, self.is_known = core.runtime.event(), core.runtime.event()
        core.at_close.append(self.is_known.set)
        self._intake.on_reset = self.begin_anew
        if self._locks is not None:
            self._locks.on_lost = self.lost_lock
        core.on_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._on_members_changed)
        core.on_request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._on_reset_offsets)

    # Rebalances ----------------------------------------------------------------------------------------------------

    def _on_members_changed(self, connection: Connection, command: RemotingCommand) -> None:
        self._rebalance_wanted.set()

    async def run(self) -> None:
        """Rebalance again and again, until it is cancelled."""
        for topic in self._subscriptions:
            await self._core.routes.refresh_quietly(topic)
        await self._core.heartbeat()
        failure_wait_s = REBALANCE_AFTER_FAILURE_S
        while True:
            failed = await self._rebalance()
            # The retry topic comes into being by this member's own heartbeat: nobody waits for its queues.
            if all(topic.startswith(RETRY_PREFIX) for topic in failed):
                self.is_known.set()
            wait_s = failure_wait_s if failed else REBALANCE_S
            failure_wait_s = (
                min(failure_wait_s * 1.25, REBALANCE_AFTER_FAILURES_S)
                if failed
                else REBALANCE_AFTER_FAILURE_S
            )
            with self._core.runtime.move_on_after(wait_s):
                await self._rebalance_wanted.wait()
            # Before the rebalance and not after it: who comes or goes meanwhile sets this one, and another rebalance
            # follows.
            self._rebalance_wanted = self._core.runtime.event()

    async def _rebalance(self) -> list[str]:
        """Take up the queues that are this member's share, give up the others; returns the topics that must wait."""
        failed = []
        away: dict[str, ConnectionFailed] = {}
        for topic in self._subscriptions:
            try:
                queues = (await self._core.routes.get(topic)).readable
                share = await self._share_of(topic, queues, away)
            except (NoRoute, BrokerError, ConnectionFailed, NameServerUnavailable) as error:
                self._complain(topic, error)
                await self._core.routes.refresh_quietly(topic)
                failed.append(topic)
                continue
            self._complaints.pop(topic, None)
            if share is None:
                failed.append(topic)
                # The brokers have not heard of this member yet, or have forgotten it.
                await self._core.heartbeat()
            else:
                await self._take_up(topic, share)
        return failed

    def _complain(self, topic: str, error: ClientError) -> None:
        """Log once why a topic is not read: its reader waits for as long as that lasts, and raises nothing."""
        if any(queue.topic == topic for queue in self._intake.readers):
            logger.info("consumer group %s: no rebalance of %s: %s", self._group, topic, error)
        elif not (isinstance(error, NoRoute) and topic.startswith(RETRY_PREFIX)):
            # A retry topic, which the first heartbeat makes, is not missed before that.
            complaint = type(error).__name__
            if self._complaints.get(topic) != complaint:
                logger.warning("consumer group %s does not read topic %s yet: %s", self._group, topic, error)
            self._complaints[topic] = complaint

    async def _share_of(
        self, topic: str, queues: Sequence[MessageQueue], away: dict[str, ConnectionFailed]
    ) -> list[MessageQueue] | None:
        """Return this member's queues, None when the brokers do not know this member yet. Raises as `_members`, and
        UsageError, which ends the consumer, for what is no share."""
        if self._strategy is None:
            return list(queues)
        members = await self._members(sorted({queue.broker_name for queue in queues}), topic, away)
        if self._core.client_id not in members:
            return None
        share = self._strategy(self._core.client_id, members, queues)
        if not isinstance(share, Sequence) or not set(share) <= set(queues):
            raise UsageError(
                f"the strategy returned {share!r}, and must return some of the queues it was given"
            )
        return list(share)

    async def _members(
        self, broker_names: Sequence[str], topic: str, away: dict[str, ConnectionFailed]
    ) -> list[str]:
        """Return the client ids of the consumer group's members, sorted, as the first broker that answers knows them.

        ``away`` has the broker groups that this rebalance has not reached; it is added to. Raises BrokerError,
        ConnectionFailed, NoRoute, NameServerUnavailable.
        """
        failure: ClientError = NoRoute(topic, "none of its queues can be read")
        # A broker that knows no member of the consumer group answers with a system error.
        accepted = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
        for name in broker_names:
            # Once is enough: with many topics it would take the time limit of a call for each of them.
            if name in away:
                failure = away[name]
                continue
            try:
                fields = {"consumerGroup": self._group}
                code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
                response = await self._calls.patient.ask(MessageQueue(topic, name, 0), code, fields, accepted)
                if response.code == ResponseCode.SYSTEM_ERROR:
                    return []
                return sorted(decode_body(response.body, ConsumerListBody).consumer_id_list)
            except ConnectionFailed as error:
                failure = away[name] = error
            except (BrokerError, NoRoute) as error:
                failure = error
            except RemotingError as error:
                failure = BrokerError(ResponseCode.SYSTEM_ERROR, f"unreadable member list: {error}", name)
        raise failure

    # Queues that are given up --------------------------------------------------------------------------------------

    async def _take_up(self, topic: str, share: Sequence[MessageQueue]) -> None:
        readers = self._intake.readers
        lost = [readers[queue] for queue in sorted(readers) if queue.topic == topic and queue not in share]
        for reader in lost:
            del readers[reader.queue]
            if self._locks is None:
                reader.drop()
            else:
                # What is in hand is finished first: until then no other member may have the lock.
                reader.retire()
                self._core.tasks.start_soon(self._hand_over, self._locks, reader)
        for queue in share:
            if queue not in readers:
                self._start_reader(queue)
        if lost:
            logger.info("consumer group %s: gave up %d queues of %s", self._group, len(lost), topic)
            if self._locks is None:
                await self._store_given_up(lost)

    async def _store_given_up(self, readers: Sequence[QueueReader]) -> None:
        # So that `begin_anew` finds them: an administrator may reset the offset while theirs is on its way.
        self._given_up.update(dict.fromkeys(readers))
        try:
            for error in await self._stored.store(readers):
                logger.warning(
                    "consumer group %s: the consumer offset of a queue given up was not stored: %s",
                    self._group,
                    error,
                )
        finally:
            for reader in readers:
                del self._given_up[reader]

    async def _hand_over(self, locks: OrderLocks, reader: QueueReader) -> None:
        async def store() -> None:
            await self._store_given_up([reader])
            reader.drop()

        await locks.hand_over(reader.queue, store)

    # Queues that are read ------------------------------------------------------------------------------------------

    def _start_reader(self, queue: MessageQueue, fixed_start: int | None = None) -> None:
        async def find_start() -> int:
            # The lock first: until it is this member's, the one before may store offsets.
            if self._locks is not None:
                await self._locks.acquire(queue)
            if fixed_start is not None:
                return fixed_start
            stored = await self._stored.find(queue, zero_if_young=not self._first_offsets.is_time)
            if stored is None:
                return await self._first_offsets.find(queue)
            reader.committed = stored
            return stored

        reader = QueueReader(self._intake, queue, self._subscriptions[queue.topic], find_start)
        self._intake.readers[queue] = reader
        self._core.tasks.start_soon(reader.run)

    def lost_lock(self, queue: MessageQueue) -> None:
        """Read the queue anew from the stored offset, once the lock is held again."""
        reader = self._intake.readers.get(queue)
        if reader is not None:
            reader.drop()
            self._start_reader(queue)

    def begin_anew(self, queue: MessageQueue, offset: int) -> None:
        """Go on at an offset to which an administrator has sent the consumer group, and report nothing of before."""
        for given_up in self._given_up:
            if given_up.queue == queue:
                given_up.abandon()  # its report would undo what an administrator has set, too
        reader = self._intake.readers.get(queue)
        if reader is not None:
            reader.abandon()
            self._start_reader(queue, fixed_start=offset)

    def _on_reset_offsets(self, connection: Connection, command: RemotingCommand) -> None:
        try:
            if command.fields.get("group") != self._group:
                return
            offsets = QueueOffsets.decode(command.body).offsets
        except RemotingError as error:
            logger.warning(
                "consumer group %s: unreadable offset reset from %s: %s",
                self._group,
                connection.address,
                error,
            )
            return
        for queue, offset in offsets.items():
            self.begin_anew(MessageQueue(queue.topic, queue.broker_name, queue.queue_id), offset)
