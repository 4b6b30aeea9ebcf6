"""Keys over several groups: the messages of a key go to one queue, whoever sends them and whatever its group suffers.

Which queue that is follows from the route, in which all groups stand that have a node registered. While every route
that was given lately had all of them, no message of a key may be anywhere else.
"""

from typing import Final

from broker.client.errors import ClientError
from broker.client.message import Message, MessageQueue
from broker.client.producing.producer import Producer
from broker.client.transport.runtime import Runtime
from broker.name_server import NameServer
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.frame import FrameDecoder
from broker.remoting.route import TopicRouteData
from broker.trace import TraceWriter
from simulation.journal import Violation
from simulation.machines.name_server_host import NameServerHost
from simulation.scheduler import SECOND
from simulation.workload.context import Context, Invariant
from simulation.workload.names import TOPIC

_KEYS: Final = 6
_LANES: Final = 2
_ROUTE_LIFE_NS: Final = 45 * SECOND
"""A client renews its routes every 30 s by its own clock, and may have to ask twice."""


class Keys(Invariant):
    """Each key has one queue."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._queues: dict[str, MessageQueue] = {}
        self._partial_ns: int | None = None
        """The time at which a route was given last in which a group was missing."""
        context.name_server_watchers.append(self)

    def stored(self, sender: str, key: str, queue: MessageQueue) -> None:
        """Judges where a message with a key has gone. Raises Violation."""
        known = self._queues.setdefault(key, queue)
        self._queues[key] = queue
        if known == queue:
            self.context.journal.did("key sent to its queue")
            return
        now_ns = self.context.scheduler.now_ns
        if self._partial_ns is None or self._partial_ns + _ROUTE_LIFE_NS < now_ns:
            detail = f"{key} was stored in {known} and then in {queue}; all routes had all groups"
            raise Violation("a key keeps its queue", sender, detail)
        self.context.journal.did("key moved behind a route without a group")

    def name_server_asked(
        self, host: NameServerHost, number: int, command: RemotingCommand, now_ns: int, answer: bytes | None
    ) -> None:
        """Notes a route of the topic in which not all groups stand."""
        if command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC or command.fields.get("topic") != TOPIC:
            return
        if answer is None:
            return
        (given,) = FrameDecoder().feed(answer)
        if given.code != ResponseCode.SUCCESS:
            return
        names = {data.broker_name for data in TopicRouteData.decode(given.body).broker_datas}
        if names != set(self.context.groups):
            self._partial_ns = self.context.scheduler.now_ns

    def name_server_started(self, host: NameServerHost, core: NameServer) -> None:
        """Does nothing: a name server that knows nothing yet is found by its responses."""

    def name_server_stopped(self, host: NameServerHost) -> None:
        """Does nothing: nobody asks it any more."""

    def name_server_interrupted(self, host: NameServerHost, command: RemotingCommand) -> None:
        """Does nothing: it stops next."""

    def name_server_lost(self, host: NameServerHost, number: int) -> None:
        """Does nothing: a name server that has forgotten something is found by its later responses."""

    def name_server_expired(self, host: NameServerHost) -> None:
        """Does nothing, for the same reason."""


async def keep(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Sends messages with keys for ever, and asks where they are."""
    invariant = context.invariant(Keys)
    random = runtime.random
    async with Producer(context.name_servers, group="keepers", trace=writer, runtime=runtime) as producer:

        async def lane() -> None:
            while True:
                await runtime.sleep(random.expovariate(1000 / context.think_ms))
                if context.load_stopped:
                    continue
                key = f"kept{random.randrange(_KEYS)}"
                try:
                    result = await producer.send(Message(TOPIC, random.randbytes(20)), queue=key)
                except ClientError:
                    await runtime.sleep(0.05)
                    continue
                context.sent(producer.core.client_id, [result], once=True)
                invariant.stored(producer.core.client_id, key, result.queue)

        async with runtime.task_group() as tasks:
            for _ in range(_LANES):
                tasks.start_soon(lane)
