"""Name servers and routes: both JSON dialects, rotation, sharing of requests, choice of addresses."""

from __future__ import annotations

import pytest
import trio

from broker.client.errors import NameServerUnavailable, NoRoute, UsageError
from broker.client.message import Message, MessageQueue
from broker.client.producing.producer import Producer
from broker.client.transport.core import ClientCore
from broker.client.transport.options import ConnectionOptions
from broker.client.transport.routes import TopicRoute, failed_last, parse_name_servers, parse_route
from broker.remoting.codes import RequestCode
from tests.broker.client.cancellation import cancel_at_step
from tests.broker.client.cluster import Broker, Cluster, NameServerHost, one_group
from tests.broker.client.links import ClientRuntime, World, code, reset, silent

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


@pytest.mark.parametrize("quote", ['"', ""], ids=["quoted", "bare"])
def test_both_dialects_are_read(quote: str) -> None:
    text = """{"brokerDatas":[{"brokerAddrs":{'0':"a:1",'1':"b:1"},"brokerName":"b","cluster":"c"}],
        "filterServerTable":{},"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":2,"topicSysFlag":0,
        "writeQueueNums":1}]}"""
    route = parse_route("t", text.replace("'", quote).encode())
    assert route.brokers == {"b": {0: "a:1", 1: "b:1"}}


def _route(
    queue_datas: str, addresses: str = '"0":"a:1"', extra: str = "", names: tuple[str, ...] = ("b",)
) -> TopicRoute:
    brokers = ",".join(
        f'{{"brokerAddrs":{{{addresses}}},"brokerName":"{name}","cluster":"c"}}' for name in names
    )
    return parse_route("t", f'{{"brokerDatas":[{brokers}],"queueDatas":[{queue_datas}]{extra}}}'.encode())


def _queues(name: str, perm: int, read: int, write: int) -> str:
    return f'{{"brokerName":"{name}","perm":{perm},"readQueueNums":{read},"writeQueueNums":{write}}}'


def test_permissions_and_counts_make_queues() -> None:
    route = _route(_queues("b", 6, 2, 1))
    assert route.readable == (MessageQueue("t", "b", 0), MessageQueue("t", "b", 1))
    assert route.writable == (MessageQueue("t", "b", 0),)
    assert _route(_queues("b", 4, 2, 2)).writable == ()
    assert _route(_queues("b", 2, 2, 2)).readable == ()
    assert _route(_queues("unknown", 6, 2, 2)).readable == (), "a group without address has no queues"


def test_groups_with_a_leader_come_first_for_writing() -> None:
    assert [queue.queue_id for queue in _route(_queues("b", 6, 1, 1), '"1":"a:1"').writable] == [0]
    text = (
        '{"brokerDatas":[{"brokerAddrs":{"1":"a:1"},"brokerName":"a","cluster":"c"},'
        '{"brokerAddrs":{"0":"b:1"},"brokerName":"b","cluster":"c"}],"queueDatas":['
        + _queues("a", 6, 1, 1)
        + ","
        + _queues("b", 6, 1, 1)
        + "]}"
    )
    route = parse_route("t", text.encode())
    assert [queue.broker_name for queue in route.writable] == ["b"]
    assert [queue.broker_name for queue in route.readable] == ["a", "b"]


def test_the_order_configuration_fixes_the_queues() -> None:
    route = _route(_queues("b", 6, 8, 8), extra=',"orderTopicConf":"b:3;gone:2"')
    assert [queue.queue_id for queue in route.writable] == [0, 1, 2]


@pytest.mark.parametrize("count", ["²", "-1", "", "9" * 12, "9" * 5000])
def test_numbers_that_are_none_are_passed_over(count: str) -> None:
    assert _route(_queues("b", 6, 8, 8), extra=f',"orderTopicConf":"b:{count}"').writable == ()


def test_the_address_asked_next() -> None:
    brokers = {
        "b": {0: "l:1", 1: "f:1", 2: "g:1"},
        "leaderless": {1: "f:1", 2: "g:1"},
        "other": {0: "o:1", 1: "o:2"},
    }
    route = TopicRoute("t", brokers, (), (), ())
    assert route.address("b") == "l:1"
    assert route.address("b", 2) == "g:1"
    assert route.address("b", avoid=["l:1"]) == "f:1"
    avoid: list[str] = []
    asked: list[str] = []
    for _ in range(6):
        address = route.address("b", avoid=avoid)
        assert address is not None
        asked.append(address)
        avoid = failed_last(avoid, address)
    assert asked == ["l:1", "f:1", "l:1", "g:1", "l:1", "f:1"], "the others take turns"
    asked, avoid = [], []
    for name in ("b", "other", "b", "other", "b", "other", "b"):
        address = route.address(name, avoid=avoid)
        assert address is not None
        avoid = failed_last(avoid, address)
        if name == "b":
            asked.append(address)
    assert asked == ["l:1", "f:1", "l:1", "g:1"], "though attempts at another group's members are in between"
    assert route.address("leaderless") == "f:1"
    assert route.address("unknown") is None


def test_name_server_lists() -> None:
    assert parse_name_servers("a:1; b:2,c:3;") == ["a:1", "b:2", "c:3"]
    nothing: list[str] = []
    for wrong in ("", nothing, "a", "a:", ":1", "a:b", "a:0", "a:65536"):
        with pytest.raises(UsageError):
            parse_name_servers(wrong)


def registered_with(world: World, *addresses: str) -> list[NameServerHost]:
    """The name servers at these addresses, which all know a group with a topic."""
    cluster = Cluster(world, *addresses)
    (broker,) = cluster.add_group()
    broker.create_topic("t")
    return list(cluster.name_servers.values())


async def test_a_name_server_that_fails_is_left_for_the_next(world: World, runtime: ClientRuntime) -> None:
    first, second = registered_with(world, "n1:1", "n2:1")
    for trouble in (reset, silent):
        first.script(ROUTE, trouble)
        second.script(ROUTE, trouble)
    async with ClientCore(ConnectionOptions("n1:1;n2:1", runtime)) as core:
        with pytest.raises(NameServerUnavailable) as caught:
            await core.routes.get("t")
        assert len(caught.value.failures) == 2
        first.scripts.clear()
        second.scripts.clear()
        asked = core.name_servers.addresses[0]
        await core.routes.get("t")
        world.servers[asked].kill()
        for _ in range(3):
            await core.routes.refresh("t")
        world.servers["n1:1" if asked == "n2:1" else "n2:1"].kill()
        with pytest.raises(NameServerUnavailable):
            await core.routes.refresh("t")
        assert core.routes.find("t") is not None, "the old route stays"


async def test_a_name_server_that_hangs_is_left_for_the_next_within_a_send(
    world: World, runtime: ClientRuntime
) -> None:
    """It takes connections and says nothing, as a stopped process does; whichever of them a client begins with."""
    servers = registered_with(world, "n1:1", "n2:1", "n3:1")
    for server in servers[:2]:
        server.script(ROUTE, *[silent] * 100)
    for _ in range(8):
        async with Producer("n1:1;n2:1;n3:1", group="p", runtime=runtime) as producer:
            await producer.send(Message("t", b"x"))
    assert all(server.received(ROUTE) for server in servers[:2]), "both were asked, and left"


async def test_name_servers_that_are_all_slow_are_asked_with_more_patience(
    world: World, runtime: ClientRuntime
) -> None:
    slow = registered_with(world, "n1:1", "n2:1")
    for server in slow:
        server.script(ROUTE, silent)
    async with ClientCore(ConnectionOptions("n1:1;n2:1", runtime)) as core:
        await core.routes.get("t")
    assert [len(server.received(ROUTE)) for server in slow] in ([2, 1], [1, 2])


async def test_askers_share_one_request(world: World, runtime: ClientRuntime) -> None:
    one_group(world)
    async with ClientCore(ConnectionOptions("ns:9876", runtime)) as core:
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(core.routes.refresh, "t")
        assert len(world.servers["ns:9876"].received(ROUTE)) == 1


async def test_a_cancelled_asker_takes_nobody_down(world: World, runtime: ClientRuntime) -> None:
    one_group(world)
    world.connect_delay_s = 0.1
    step = 0
    cancelled = True
    while cancelled:
        step += 1
        async with ClientCore(ConnectionOptions("ns:9876", runtime)) as core, trio.open_nursery() as nursery:

            async def ask(core: ClientCore = core) -> None:
                await core.routes.refresh("t")

            nursery.start_soon(ask)
            cancelled = await cancel_at_step(step, ask)
            await ask()
    assert step > 1


async def test_known_routes_are_renewed(world: World, broker: Broker, runtime: ClientRuntime) -> None:
    async with ClientCore(ConnectionOptions("ns:9876", runtime)) as core:
        await core.routes.get("t")
        (other,) = broker.cluster.add_group("other")
        other.create_topic("t")
        broker.kill()
        world.servers["ns:9876"].script(ROUTE, code(1))
        await trio.sleep(31)
        assert list(core.routes.known()[0].brokers) == ["g"], "an error changes nothing"
        await trio.sleep(30)
        assert list(core.routes.known()[0].brokers) == ["other"]
        with pytest.raises(NoRoute):
            await core.routes.get("unknown")
