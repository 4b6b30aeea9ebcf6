"""Offsets that are reported and nobody waits for: one way, or with a pull, as RocketMQ's clients do.

A leader stages such a report, may lose it with its leadership or for want of room, and says nothing of it. What holds
all the same: one connection keeps its order, so on a connection that stays, to a leader that stays and drops none, the
last report counts, whether it says more than the one before or less, as after a seek. That is what the leader tells
whoever asks there next, and what is stored in the end. Of all other reports nobody knows whether they count, and when.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.errors import BrokerError, ClientError
from broker.client.message import MessageQueue, trace_key
from broker.client.transport.calls import PendingCall
from broker.client.transport.connection import Connection
from broker.client.transport.runtime import Runtime
from broker.offsets.commits import OffsetCommits
from broker.remoting.codes import PullSysFlag, RequestCode, ResponseCode
from broker.remoting.headers import OffsetResponseHeader
from broker.trace import TraceWriter
from raft.effects import Role
from simulation.journal import Violation
from simulation.judges.group_model import CommittedQueue
from simulation.randomness import Random
from simulation.scheduler import SECOND
from simulation.workload.context import Context, Invariant
from simulation.workload.names import TOPIC

_PAUSE_S: Final = 0.7
_BETWEEN_S: Final = (0.0, 0.02, 0.15)
"""Pauses between reports: a leader stages them for 0.1 s."""
_GOES_BACK: Final = 0.4
"""The share of reports that say again what was stored last."""
_ASKS: Final = 0.7
_HELD_S: Final = 1.0
_PULL_MARGIN_S: Final = 2.0
_STORED_WITHIN_NS: Final = 2 * SECOND
_PULL_RESPONSES: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
)
_COMMITS: Final = PullSysFlag.COMMIT_OFFSET | PullSysFlag.SUBSCRIPTION


_Leadership = tuple[object, int, int]
"""The leader's process and term, and how many reports it has dropped."""


@dataclass(frozen=True, slots=True)
class _Report:
    offset: int
    pull: PendingCall | None
    """The pull that it came with."""

    @property
    def may_not_count(self) -> bool:
        """True if the pull that it came with was refused: an answer that came says so."""
        response = self.pull.response if self.pull is not None else None
        return response is not None and response.code not in _PULL_RESPONSES


@dataclass(slots=True)
class _Chain:
    """Reports on one connection to one leader, in their order."""

    connection: Connection
    leadership: _Leadership | None
    """None if the node did not lead."""
    last_ns: int = 0
    is_last_stored: bool = False
    """Found so at the end, however often that was looked at."""
    reports: list[_Report] = field(default_factory=list)

    def may_count(self) -> Iterator[int]:
        """Yields the offsets that may be the stored one: the last one, and that before each that may be refused."""
        for report in reversed(self.reports):
            yield report.offset
            if not report.may_not_count:
                return


class _Reporter:
    """A machine that reports for a group of its own, with what is known of all its processes."""

    def __init__(self, context: Context, name: str) -> None:
        self._context = context
        self.group = f"report-{name}"
        self._chains: dict[MessageQueue, _Chain] = {}
        self._open: dict[MessageQueue, list[int]] = {}
        """Offsets that may be stored at any time, or never."""
        self._stored: dict[MessageQueue, int] = {}
        """The offsets that a leader told last."""
        self.is_known = False
        """Its group exists: the first pull of a new one waits until it does, and others overtake it."""

    def next_offset(self, queue: MessageQueue, random: Random) -> int:
        """Draws where the reader is: where it was, or anywhere in the queue."""
        end = len(self._context.model.queues.get((TOPIC, queue.queue_id), CommittedQueue()).keys)
        if random.random() < _GOES_BACK:
            return self._stored.get(queue, 0)
        return random.randrange(end + 1)

    def reports(
        self, queue: MessageQueue, connection: Connection, offset: int, pull: PendingCall | None
    ) -> None:
        """Notes a report that leaves now."""
        if self.is_known:
            self._chain(queue, connection).reports.append(_Report(offset, pull))
        else:
            # Where its group cannot be made, for want of room, nothing of it counts.
            self._open.setdefault(queue, []).append(offset)
        judge = self._context.judge
        # Asked for at any rate: that it is stored must not surprise the judge of all offsets, whatever is said of it
        # here.
        judge.asked_to_store(judge.asked(self.group, trace_key(queue), self.group, (), offset))
        self._context.journal.did(
            "offset reported one way" if pull is None else "offset reported with a pull"
        )

    def _chain(self, queue: MessageQueue, connection: Connection) -> _Chain:
        """Returns the chain that a report which leaves now belongs to."""
        leadership = self._leadership(connection)
        chain = self._chains.get(queue)
        if chain is None or (chain.connection, chain.leadership) != (connection, leadership):
            # Nobody knows any more in which order the reports of the old chain and of the new one are stored.
            if chain is not None:
                self._open.setdefault(queue, []).extend(report.offset for report in chain.reports)
            chain = self._chains[queue] = _Chain(connection, leadership)
        chain.last_ns = self._context.scheduler.now_ns
        return chain

    def was_told(self, queue: MessageQueue, connection: Connection, offset: int | None) -> None:
        """Judges a leader's answer to a question that came behind all reports on this connection. Raises Violation."""
        if offset is not None:
            self._stored[queue] = offset
        chain = self._chains.get(queue)
        if chain is not None and chain.connection is connection and self._stays(chain):
            self._check(queue, chain, "told", offset)
            del chain.reports[:-1]
            self._context.journal.did("report found stored")

    def check_end(self) -> None:
        """Checks that the last reports are stored. Raises Violation."""
        for queue, chain in self._chains.items():
            if self._context.scheduler.now_ns - chain.last_ns > _STORED_WITHIN_NS and self._stays(chain):
                key = (self.group, queue.topic, queue.queue_id)
                history = self._context.model.offsets.get(key, [])
                self._check(queue, chain, "stored is", history[-1][1] if history else None)
                if not chain.is_last_stored:
                    chain.is_last_stored = True
                    self._context.journal.did("last report stored")

    def _check(self, queue: MessageQueue, chain: _Chain, what: str, offset: int | None) -> None:
        last, unknown = [*chain.may_count()], self._open.get(queue, [])
        # A consumer group without an offset starts at 0 on a queue from which nothing was deleted yet.
        if (offset or 0) not in (*last, *unknown):
            raise Violation(
                "what is reported last is stored",
                self.group,
                f"{queue.topic}/{queue.queue_id}: {what} {offset}, reported last {last} at "
                f"{chain.last_ns / SECOND:.6f} s to {chain.connection.address}, perhaps {unknown}",
            )

    def _stays(self, chain: _Chain) -> bool:
        """True if connection and leader are what they were at the first report."""
        is_led = chain.leadership is not None and chain.leadership == self._leadership(chain.connection)
        return is_led and not chain.connection.closed

    def _leadership(self, connection: Connection) -> _Leadership | None:
        """Returns that of the leader at the other end; None if none serves there."""
        for host in self._context.members.machines:
            if host.address == connection.address and host.process is not None:
                replica = host.process.replica
                if replica.raft.role is Role.LEADER and replica.serving:
                    dropped = host.process.node.part(OffsetCommits).dropped
                    return host.process, replica.raft.term, dropped
        return None


class Reports(Invariant):
    """On a connection that stays, to a leader that stays, the last report counts."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._reporters: dict[str, _Reporter] = {}

    def reporter(self, address: str) -> _Reporter:
        """Returns the reporter of a machine."""
        name = address.replace(".", "-")
        return self._reporters.setdefault(name, _Reporter(self.context, name))

    def check_end(self) -> None:
        """Checks that the last reports are stored."""
        for reporter in self._reporters.values():
            reporter.check_end()


async def report(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Reports offsets one way and with pulls, on and back, and asks now and then what is stored."""
    reporter = context.invariant(Reports).reporter(runtime.local_address())
    random = runtime.random
    is_over = False
    async with PullConsumer(context.name_servers, group=reporter.group, runtime=runtime) as consumer:
        while True:
            await runtime.sleep(random.expovariate(1 / _PAUSE_S))
            if is_over:
                continue
            # Once the load has stopped it reports a last time: that report must be what is stored at the end.
            is_last = context.load_stopped
            try:
                queue = random.choice(await consumer.queues(TOPIC))
                address = (await consumer.core.routes.get(TOPIC)).address(queue.broker_name)
                if address is not None:
                    connection = await consumer.core.pool.get(address)
                    session = _Session(context, runtime, reporter, queue, connection)
                    if not reporter.is_known:
                        await session.introduce()
                    await session.report(random.randrange(1, 4))
                    if not is_last and random.random() < _ASKS:
                        await session.ask()
                    is_over = is_last
            except ClientError:
                pass


class _Session:
    """Some reports of one queue on one connection, and a question behind them."""

    def __init__(
        self,
        context: Context,
        runtime: Runtime,
        reporter: _Reporter,
        queue: MessageQueue,
        connection: Connection,
    ) -> None:
        self._judge = context.judge
        self._runtime = runtime
        self._reporter = reporter
        self._queue = queue
        self._connection = connection
        self._fields = {
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "consumerGroup": reporter.group,
        }

    async def introduce(self) -> None:
        """Pulls, so that the group is made. Raises ConnectionFailed."""
        response = await self._pull(0, PullSysFlag.SUBSCRIPTION).wait()
        self._reporter.is_known = response.code in _PULL_RESPONSES

    async def report(self, reports: int) -> None:
        """Reports so many offsets. Raises ConnectionLost."""
        random, connection = self._runtime.random, self._connection
        for _ in range(reports):
            offset = self._reporter.next_offset(self._queue, random)
            pull = None
            if random.random() < 0.5:
                fields = self._fields | {"commitOffset": str(offset)}
                connection.send_one_way(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
            else:
                pull = self._pull(offset, _COMMITS | random.choice((0, PullSysFlag.SUSPEND)))
            self._reporter.reports(self._queue, connection, offset, pull)
            await self._runtime.sleep(random.choice(_BETWEEN_S))

    def _pull(self, offset: int, flags: int) -> PendingCall:
        fields = self._fields | {
            "queueOffset": str(offset),
            "maxMsgNums": "1",
            "sysFlag": str(int(flags)),
            "commitOffset": str(offset),
            "suspendTimeoutMillis": str(int(_HELD_S * 1000)),
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        return self._connection.start_call(RequestCode.PULL_MESSAGE, fields, b"", _HELD_S + _PULL_MARGIN_S)

    async def ask(self) -> None:
        """Asks for the stored offset, behind all reports. Raises BrokerError, ConnectionFailed, Violation."""
        reporter, queue = self._reporter, self._queue
        asked = self._judge.asked(reporter.group, trace_key(queue), reporter.group, (), 0)
        response = await self._connection.call(RequestCode.QUERY_CONSUMER_OFFSET, self._fields)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            told = None
        elif response.code == ResponseCode.SUCCESS:
            told = response.decode_fields(OffsetResponseHeader).offset
        else:
            raise BrokerError(response.code, response.remark or "", self._connection.address)
        self._judge.offset_was(asked, told)
        reporter.was_told(queue, self._connection, told)
