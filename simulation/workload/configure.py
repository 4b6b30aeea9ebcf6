"""The actor that configures the name servers: keys and values, write permission of the brokers, topics.

Each name server is asked by its own address, as mqadmin does. Beside it newcomers, who know no route yet, send and
look for queues while brokers may not be written, and a resident asks where it may send: who has a route that may be
written keeps it, as with the reference's clients, and who has none asks again. Strangers pose as brokers, and change
nothing. `configure_rules` says what must hold.
"""

from typing import Final

from broker.client.admin import AdminClient
from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.errors import ClientError, ConnectionFailed, NoRoute
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.client.transport.routes import parse_route
from broker.client.transport.runtime import Runtime
from broker.remoting.bodies import DataVersion, TopicConfigTable
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import OWN_VERSION, RemotingCommand, header_fields
from broker.remoting.name_server_headers import BrokerIdentityHeader, KeyValueResponseHeader
from broker.remoting.register_body import RegisterBrokerBody
from broker.remoting.route import MASTER_ID, QueueData, TopicRouteData
from broker.trace import TraceWriter
from simulation.journal import Violation
from simulation.judges.name_server_model import Table, answer_of
from simulation.randomness import Random, stream
from simulation.scheduler import SECOND
from simulation.workload.configure_rules import NAMESPACES, TOPIC, Configurations
from simulation.workload.context import Context

_KEYS: Final = 3
"""The number of keys in each namespace."""
_KEY_PAUSE_S: Final = 0.5
_ROUTE_PAUSE_S: Final = 1.0
_WIPE_PAUSE_S: Final = 3.0
_WIPED_S_MAX: Final = 6.0
_SEND_PAUSE_S: Final = 0.7
_SEND_LIMIT_S: Final = 3.0
_INTRUDE_PAUSE_S: Final = 4.0
_ENTRIES: Final = ("entry0", "entry1")
"""Topics that only name servers know, if anybody does."""


async def configure(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Puts and deletes keys, wipes and adds write permission, enters and deletes topics; newcomers send and read."""
    rules = context.invariant(Configurations)
    rules.limits.starts(runtime.local_address())
    async with (
        AdminClient(context.name_servers, runtime=runtime) as admin,
        runtime.task_group() as group,
    ):
        group.start_soon(_permit, context, runtime, rules, admin)
        group.start_soon(_keep, context, runtime, rules, admin)
        group.start_soon(_keep, context, runtime, rules, admin)
        group.start_soon(_route, context, runtime, rules, admin)
        group.start_soon(_send, context, runtime, rules)
        group.start_soon(_look, context, runtime, rules)
        group.start_soon(_stay, context, runtime, rules)
        group.start_soon(_intrude, context, runtime, admin)


class _Keeper:
    """Puts, deletes and asks for keys and values, each time at the name server of an address."""

    def __init__(self, context: Context, random: Random, rules: Configurations, admin: AdminClient) -> None:
        self._context = context
        self._random = random
        self._rules = rules
        self._call = admin.call

    async def act(self) -> None:
        """Does one of these. Raises ConnectionFailed."""
        random = self._random
        address = random.choice(self._context.name_servers)
        namespace = random.choice(NAMESPACES)
        key = TOPIC if namespace == NAMESPACES[-1] else f"key{random.randrange(_KEYS)}"
        put, get = self._put, self._get
        act = random.choice((put, put, put, self._delete, get, get, self._list, self._order))
        await act(address, namespace, key)

    def _now_ns(self) -> int:
        return self._context.scheduler.now_ns

    async def _put(self, address: str, namespace: str, key: str) -> None:
        queues = self._context.facts.queues
        value = f"broker-a:{queues}" if key == TOPIC else f"{self._random.getrandbits(40):x}"
        since_ns = self._now_ns()
        fields = {"namespace": namespace, "key": key, "value": value}
        answer = await self._call(address, RequestCode.PUT_KV_CONFIG, fields)
        if answer.code == ResponseCode.SUCCESS:
            self._rules.changed(address, since_ns, namespace, key, value)

    async def _delete(self, address: str, namespace: str, key: str) -> None:
        since_ns = self._now_ns()
        fields = {"namespace": namespace, "key": key}
        answer = await self._call(address, RequestCode.DELETE_KV_CONFIG, fields)
        if answer.code == ResponseCode.SUCCESS:
            self._rules.changed(address, since_ns, namespace, key, None)

    async def _get(self, address: str, namespace: str, key: str) -> None:
        since_ns = self._now_ns()
        answer = await self._call(address, RequestCode.GET_KV_CONFIG, {"namespace": namespace, "key": key})
        said: str | None = None
        if answer.code != ResponseCode.QUERY_NOT_FOUND:
            said = answer.decode_fields(KeyValueResponseHeader).value

        def fits(table: Table) -> bool:
            return table.get(namespace, {}).get(key) == said

        self._rules.told(address, since_ns, f"{namespace}/{key}", fits, said)

    async def _list(self, address: str, namespace: str, key: str) -> None:
        since_ns = self._now_ns()
        answer = await self._call(address, RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": namespace})
        _, said = answer_of(RequestCode.GET_KVLIST_BY_NAMESPACE, answer)
        self._rules.told(address, since_ns, namespace, lambda table: table.get(namespace) == said, said)

    async def _order(self, address: str, namespace: str, key: str) -> None:
        """Tells it whether routes shall carry the order configuration, which is kept with keys and values."""
        value = self._random.choice(("true", "false", "false", "false"))
        body = f"orderMessageEnable={value}\n".encode()
        await self._call(address, RequestCode.UPDATE_NAMESRV_CONFIG, None, body)


async def _keep(context: Context, runtime: Runtime, rules: Configurations, admin: AdminClient) -> None:
    """Puts, deletes and asks for keys and values."""
    keeper = _Keeper(context, runtime.random, rules, admin)
    while True:
        await context.pause(runtime, _KEY_PAUSE_S)
        try:
            await keeper.act()
        except ConnectionFailed:
            pass


async def _route(context: Context, runtime: Runtime, rules: Configurations, admin: AdminClient) -> None:
    """Enters, deletes and asks for topics at single name servers."""
    random = runtime.random
    broker = context.members.machines[0].settings.node.group
    while True:
        await context.pause(runtime, _ROUTE_PAUSE_S)
        address = random.choice(context.name_servers)
        entry = random.choice(_ENTRIES)
        code = random.choice(
            (
                RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
                RequestCode.GET_BROKER_CLUSTER_INFO,
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
                RequestCode.REGISTER_TOPIC_IN_NAMESRV,
                RequestCode.REGISTER_TOPIC_IN_NAMESRV,
                RequestCode.DELETE_TOPIC_IN_NAMESRV,
            )
        )
        # No broker has these topics: a name server knows of them what it was told itself, and nothing else.
        body = b""
        if code == RequestCode.REGISTER_TOPIC_IN_NAMESRV:
            data = QueueData(broker_name=broker, perm=6, read_queue_nums=2, write_queue_nums=2)
            body = TopicRouteData(queue_datas=[data]).encode(OWN_VERSION, True)
        try:
            if random.random() < 0.5:
                await _see(context, rules, admin, address)
            else:
                answer = await admin.call(address, code, {"topic": entry}, body)
                if answer.code == ResponseCode.SUCCESS:
                    context.journal.did(f"name server: {code.name.lower()}")
        except ConnectionFailed:
            pass


async def _see(context: Context, rules: Configurations, admin: AdminClient, address: str) -> int | None:
    """Asks a name server what clients may do with the topic."""
    since_ns = context.scheduler.now_ns
    answer = await admin.call(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
    permission = _permission(answer)
    rules.routed(address, since_ns, permission)
    return permission


def _permission(answer: RemotingCommand) -> int | None:
    if answer.code != ResponseCode.SUCCESS:
        return None
    # Clients must be able to read it: this raises where they are not.
    parse_route(TOPIC, answer.body)
    return TopicRouteData.decode(answer.body).queue_datas[0].perm


# ---- strangers ----------------------------------------------------------------------------------------------


async def _intrude(context: Context, runtime: Runtime, admin: AdminClient) -> None:
    """Poses as a broker that leads in a later term, and as one that goes, without the brokers' secret."""
    random = stream(f"stranger {context.seed}")
    while True:
        await runtime.sleep(random.expovariate(1 / _INTRUDE_PAUSE_S))
        if context.load_stopped:
            continue
        # A broker's own address, or one that nobody has: either would lead clients astray if it were entered.
        node = random.choice(context.members.machines).settings.node
        address = random.choice((node.listen, "10.0.9.9:10911"))
        code: int = RequestCode.UNREGISTER_BROKER
        fields = header_fields(BrokerIdentityHeader(node.group, address, node.cluster, MASTER_ID))
        body = b""
        if random.random() < 0.5:
            code = RequestCode.REGISTER_BROKER
            fields["haServerAddr"] = address
            body = RegisterBrokerBody(topics=TopicConfigTable(DataVersion(0, 0, 1 << 40), {})).encode()
        name_server = random.choice(context.name_servers)
        try:
            answer = await admin.call(name_server, code, fields, body)
        except ConnectionFailed:
            continue
        if answer.code != ResponseCode.NO_PERMISSION:
            raise Violation("strangers register nothing", name_server, f"request {code}: code {answer.code}")
        context.journal.did("stranger refused by a name server")


# ---- write permission ----------------------------------------------------------------------------------------


async def _permit(context: Context, runtime: Runtime, rules: Configurations, admin: AdminClient) -> None:
    """Takes the permission to write at one name server or both, and restores it; once faults are over, to stay."""
    random = runtime.random
    fields = {"brokerName": context.members.machines[0].settings.node.group}

    async def restore(address: str) -> None:
        """Gives the permission to write back: an earlier request, or a late one, may have taken it."""
        while True:
            try:
                answer = await admin.call(address, RequestCode.ADD_WRITE_PERM_OF_BROKER, fields)
                if answer.code == ResponseCode.SUCCESS:
                    context.journal.did("write permission added")
                    return
            except ConnectionFailed:
                await runtime.sleep(0.2)

    async def all_again() -> None:
        async with runtime.task_group() as group:
            for address in context.name_servers:
                group.start_soon(restore, address)

    async def pause(seconds: float) -> None:
        """Waits, and no longer than until the faults are over."""
        until_ns = context.scheduler.now_ns + int(seconds * SECOND)
        while context.scheduler.now_ns < until_ns and not context.is_calm():
            await runtime.sleep(0.2)

    await all_again()
    while True:
        if context.is_calm():
            # Once faults are over messages must get through, so late requests of before are undone again and again.
            await all_again()
            await runtime.sleep(1.0)
            continue
        await pause(random.expovariate(1 / _WIPE_PAUSE_S))
        # Mostly at both: with one name server that shows the permission, clients may still find it.
        count = random.choice((1, 2, 2))
        wiped = random.sample(context.name_servers, count)
        for address in wiped:
            if context.is_calm():
                break
            since_ns = context.scheduler.now_ns
            try:
                answer = await admin.call(address, RequestCode.WIPE_WRITE_PERM_OF_BROKER, fields)
                if answer.code == ResponseCode.SUCCESS:
                    rules.wiped(address, since_ns)
                    await _see(context, rules, admin, address)
            except ConnectionFailed:
                pass
        await pause(random.random() * _WIPED_S_MAX)
        await all_again()


# ---- newcomers -----------------------------------------------------------------------------------------------


async def _send(context: Context, runtime: Runtime, rules: Configurations) -> None:
    """Sends each message by a producer of its own."""
    random = runtime.random
    while True:
        await context.pause(runtime, _SEND_PAUSE_S)
        # Each producer is new: one that has sent keeps the route that it knows, and would not ask again.
        limit_s = random.choice((0.3, 1.0, _SEND_LIMIT_S)) if not context.is_calm() else _SEND_LIMIT_S
        async with Producer(context.name_servers, group="newcomers", runtime=runtime) as producer:
            with rules.sending(runtime, limit_s) as name:
                error: ClientError | None = None
                try:
                    await producer.send(Message(TOPIC, random.randbytes(20), keys=[name]), timeout_s=limit_s)
                except ClientError as failure:
                    error = failure
            if error is None:
                rules.sent(name)
            else:
                rules.not_sent(name, error)


async def _look(context: Context, runtime: Runtime, rules: Configurations) -> None:
    """Looks for queues, each time with a client that did not know them."""
    random = runtime.random
    while True:
        await context.pause(runtime, _SEND_PAUSE_S)
        async with PullConsumer(context.name_servers, group="visitors", runtime=runtime) as consumer:
            since_ns = context.scheduler.now_ns
            try:
                queues = await consumer.queues(TOPIC)
            except ClientError as error:
                rules.found_queues(since_ns, [], error)
                continue
            rules.found_queues(since_ns, queues, None)
            if not queues:
                continue  # judged already: a reader's client says that there is no route
            try:
                await consumer.max_offset(random.choice(queues))
                context.journal.did("newcomer asked for an end")
            except ClientError:
                pass


async def _stay(context: Context, runtime: Runtime, rules: Configurations) -> None:
    """Keeps one producer, which knows the topic and renews what it knows more often than others do."""
    random = runtime.random
    async with Producer(context.name_servers, group="residents", runtime=runtime) as producer:
        while True:
            await context.pause(runtime, _SEND_PAUSE_S)
            try:
                if random.random() < 0.3:
                    await producer.core.routes.refresh(TOPIC)
                elif await _is_told_where(context, producer, rules):
                    context.journal.did("resident may send")
            except ClientError:
                pass


async def _is_told_where(context: Context, producer: Producer, rules: Configurations) -> bool:
    """Asks where to write, and once more if the answer is no: the first one may be of an earlier question."""
    for is_last in (False, True):
        since_ns = context.scheduler.now_ns
        try:
            await producer.queues(TOPIC)
        except NoRoute as error:
            if is_last:
                rules.not_writable(since_ns, error)
        else:
            return True
    return False
