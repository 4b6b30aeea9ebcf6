"""What open pages are told: the cluster each second, and what has changed."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
import trio

from broker.client.admin import AdminClient
from broker.console import sessions
from broker.console.app import STREAMS_MAX
from broker.console.live import Live
from broker.console.sessions import IDLE_S_MAX
from broker.remoting.bodies import KeyValueTable
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import response
from broker.remoting.json_body import encode_body
from tests.broker.client.cluster import NAME_SERVER, Broker, one_group
from tests.broker.client.links import ClientRuntime, World, code
from tests.broker.console.conftest import Open, Page


class Stream:
    """A page's stream, read by hand: the server's sends wait while `reading` is not set."""

    def __init__(self, page: Page, nursery: trio.Nursery) -> None:
        self.events: list[tuple[str, Any]] = []
        self.status: int | None = None
        self.reading = trio.Event()
        self.reading.set()
        self.ended = trio.Event()
        self._leaves = trio.Event()
        cookie = "; ".join(f"{name}={value}" for name, value in page.client.cookies.items())
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/live",
            "query_string": b"",
            "scheme": "http",
            "headers": [(b"host", b"127.0.0.1:9880"), (b"cookie", cookie.encode())],
        }
        nursery.start_soon(self._run, page.app, scope)

    async def _run(self, app: Any, scope: Any) -> None:
        await app(scope, self._receive, self._send)
        self.ended.set()

    async def _receive(self) -> dict[str, str]:
        await self._leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.reading.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif body := message["body"].decode():
            name, _, data = body.partition("\n")
            self.events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))

    def leave(self) -> None:
        """The page is closed."""
        self._leaves.set()

    def changes(self) -> list[tuple[str, str | None]]:
        """What the page was told of changes."""
        return [
            (change["kind"], change["node"])
            for name, content in self.events
            if name == "moment"
            for change in content["changes"]
        ]


async def test_a_page_sees_the_leader_die_and_another_one_lead(
    open_console: Open, world: World, nursery: trio.Nursery
) -> None:
    leader, *others = one_group(world, members=3)
    page = await open_console()
    stream = Stream(page, nursery)
    await trio.sleep(3)
    leader.kill()
    await trio.sleep(15)
    leader.restart()
    await trio.sleep(15)
    kinds = stream.changes()
    assert kinds[0] == ("leader", leader.node_id)
    assert ("down", leader.node_id) in kinds
    assert kinds[-1] == ("back", leader.node_id)
    successors = {node for kind, node in kinds[1:] if kind == "leader"}
    assert successors <= {other.node_id for other in others}
    assert successors
    last = stream.events[-1][1]["snapshot"]["groups"][0]
    assert last["leader"] in successors
    assert [node["error"] for node in last["nodes"]] == [None, None, None]
    times = [content["snapshot"]["at_ms"] for name, content in stream.events if name == "moment"]
    assert all(later - sooner <= 3_000 for sooner, later in pairwise(times))


async def test_figures_are_differences_of_what_nodes_count(
    open_console: Open, broker: Broker, nursery: trio.Nursery
) -> None:
    page = await open_console()
    stream = Stream(page, nursery)
    await trio.sleep(3)
    for _ in range(50):
        broker.append("t", 0, b"body")
    await trio.sleep(2)
    stored = [content["points"]["g"][1] for name, content in stream.events if name == "moment"]
    assert sum(rate or 0 for rate in stored) == 50
    other = Stream(page, nursery)
    await trio.sleep(1)
    name, history = other.events[0]
    assert name == "history"
    assert sum(point[1] or 0 for point in history["history"]["points"]["g"]) == 50


async def test_a_page_that_does_not_read_gets_the_newest_moment_and_all_changes(
    open_console: Open, world: World, nursery: trio.Nursery
) -> None:
    leader, *_ = one_group(world, members=3)
    page = await open_console()
    stream = Stream(page, nursery)
    await trio.sleep(2.5)
    stream.reading = trio.Event()
    told = len(stream.events)
    leader.kill()
    await trio.sleep(60)
    assert len(stream.events) == told
    stream.reading.set()
    await trio.sleep(2)
    assert len(stream.events) <= told + 5
    assert ("down", leader.node_id) in stream.changes()


async def test_streams_are_counted_and_end_with_their_pages(
    open_console: Open, broker: Broker, nursery: trio.Nursery
) -> None:
    page = await open_console()
    streams = [Stream(page, nursery) for _ in range(STREAMS_MAX)]
    await trio.sleep(1)
    assert (await page.get("/api/live")).status_code == 503
    for stream in streams:
        stream.leave()
        await stream.ended.wait()
    stream = Stream(page, nursery)
    await trio.sleep(1)
    assert stream.status == 200


async def test_without_a_name_server_the_nodes_are_asked_where_they_were(
    world: World, runtime: ClientRuntime
) -> None:
    members = one_group(world, members=3)
    async with AdminClient(NAME_SERVER, runtime=runtime) as admin:
        live = Live(admin, runtime.wall_ms)
        await live.refresh()
        members[0].cluster.name_servers[NAME_SERVER].kill()
        snapshot = await live.refresh()
    assert "no name server answered" in snapshot.failure
    assert snapshot.groups[0].leader == members[0].node_id
    assert [node.error for node in snapshot.groups[0].nodes] == [None, None, None]


async def test_what_is_kept_of_changes_is_bounded(
    broker: Broker, runtime: ClientRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.console.live.CHANGES_MAX", 4)
    async with AdminClient(NAME_SERVER, runtime=runtime) as admin:
        live = Live(admin, runtime.wall_ms)
        for _ in range(4):
            broker.kill()
            await live.refresh()
            broker.restart()
            await trio.sleep(3)
            await live.refresh()
        moment = await live.moment(None, 0)
    assert len(moment.changes) == 4


async def test_an_account_that_may_not_see_the_nodes_is_told_so_and_not_that_they_are_down(
    broker: Broker, runtime: ClientRuntime
) -> None:
    async with AdminClient(NAME_SERVER, runtime=runtime) as admin:
        live = Live(admin, runtime.wall_ms)
        broker.script(RequestCode.TRIVET_NODE_STATUS, code(ResponseCode.NO_PERMISSION))
        refused = await live.refresh()
        assert (refused.refused, refused.groups) == (True, ())
        await live.refresh()
        moment = await live.moment(None, 0)
    assert [change.kind for change in moment.changes] == ["leader"]


@pytest.mark.parametrize("count", ["nan", "inf", "many"])
async def test_counts_that_are_no_numbers_are_unknown(
    broker: Broker, runtime: ClientRuntime, count: str
) -> None:
    """Whoever may register a broker says what it counts."""
    table = encode_body(
        KeyValueTable({"putMessageTimesTotal": count, "bootTimestamp": "5", "commitLogDiskRatio": count})
    )
    broker.script(RequestCode.GET_BROKER_RUNTIME_INFO, lambda link, command: response(command, 0, body=table))
    async with AdminClient(NAME_SERVER, runtime=runtime) as admin:
        (group,) = (await Live(admin, runtime.wall_ms).refresh()).groups
    (node,) = group.nodes
    assert (node.stored, node.started_ms, node.disk_used) == (None, 5, None)


async def test_a_console_that_comes_later_is_told_of_the_leaders_before(
    world: World, runtime: ClientRuntime
) -> None:
    first, *_ = one_group(world, members=3)
    await trio.sleep(20)
    first.kill()
    await trio.sleep(15)
    async with AdminClient(NAME_SERVER, runtime=runtime) as admin:
        live = Live(admin, runtime.wall_ms)
        await live.refresh()
        await live.refresh()
        moment = await live.moment(None, 0)
    (group,) = moment.snapshot.groups
    assert moment.changes[0].node == first.node_id
    assert moment.changes[-1].node == group.leader != first.node_id
    assert {change.kind for change in moment.changes} == {"leader"}
    terms = [change.term for change in moment.changes]
    assert terms == sorted(set(terms), key=lambda term: term or 0)
    times = [change.at_ms for change in moment.changes]
    assert times == sorted(times)
    assert times[-1] - times[0] >= 20_000, "each since it led, and not since somebody looked"


async def test_an_open_page_keeps_its_session_and_a_closed_one_loses_it(
    open_console: Open, broker: Broker, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "IDLE_S_MAX", idle_s := IDLE_S_MAX / 15)
    page = await open_console()
    broker.script(
        RequestCode.GET_ALL_TOPIC_CONFIG, code(ResponseCode.NO_PERMISSION), code(ResponseCode.SUCCESS)
    )
    await page.sign_in("operator", "a secret of mine")
    stream = Stream(page, nursery)
    await trio.sleep(idle_s + 10)
    assert stream.events[0][1]["account"] == "operator"
    assert (await page.get("/api/session")).json()["account"] == "operator"
    assert not stream.ended.is_set()
    stream.leave()
    await trio.sleep(idle_s + 10)
    assert (await page.get("/api/session")).json()["account"] is None
