"""`trivet.testing.broker`: servers in the test's process, for Trio, asyncio and neither; what can be done to them."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from broker.client.consuming.consumer import Consumer
from broker.client.errors import CallTimeout, ClientClosed, NotDelivered
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.client.threaded import sync
from broker.remoting.route import ClusterInfo
from broker.testing import servers
from broker.testing.broker import RunningBroker, broker
from broker.tools.cluster.query import cluster_info
from log.errors import DiskError

TOPIC = "Tried"
LIMIT_S = 60.0
"""Ends a test that hangs."""


def send(name_server: str, body: bytes) -> None:
    with sync.Producer(name_server, group="p", send_timeout_s=LIMIT_S) as producer:
        producer.send(Message(TOPIC, body))


def stored(name_server: str, count: int) -> set[bytes]:
    """So many messages, as a consumer group reads them that is there for the first time."""
    with sync.Consumer(name_server, group="g", topics=TOPIC, start="first") as consumer:
        found = {message.body for _ in range(count) if (message := consumer.poll(LIMIT_S)) is not None}
        assert consumer.poll(0.05) is None
    return found


async def test_on_trio() -> None:
    async with broker() as name_server:
        async with Producer(name_server, group="p") as producer:
            await producer.send(Message(TOPIC, b"hello"))
        async with Consumer(name_server, group="g", topics=TOPIC, start="first") as consumer:
            assert (await anext(consumer)).body == b"hello"


def test_on_asyncio() -> None:
    async def main() -> RunningBroker:
        async with broker() as name_server:
            assert name_server.leader == "n0"
            await asyncio.to_thread(send, name_server, b"hello")
            return name_server

    with pytest.raises(ClientClosed):
        asyncio.run(main()).wait_leader()


def test_what_was_acknowledged_outlives_killed_leaders() -> None:
    with broker(nodes=3) as name_server:
        send(name_server, b"first")
        killed = name_server.kill_leader()
        send(name_server, b"second")
        assert name_server.leader != killed
        with pytest.raises(ValueError, match="does not run"):
            name_server.kill(killed)
        name_server.start(killed)
        with pytest.raises(ValueError, match="no node that could be started"):
            name_server.start(killed)
        assert name_server.kill_leader() != killed
        assert name_server.wait_leader()
        assert stored(name_server, 2) == {b"first", b"second"}


def test_a_single_node_comes_back_with_its_messages() -> None:
    with broker() as name_server:
        name_server.create_topic(TOPIC, queues=1)
        with sync.Producer(name_server, group="p") as producer:
            producer.send(Message(TOPIC, b"first"))
            name_server.kill("n0")
            assert name_server.leader is None
            with pytest.raises(NotDelivered):
                producer.send(Message(TOPIC, b"nowhere"), timeout_s=0.2)
            name_server.start("n0")
            name_server.wait_leader()
            assert producer.send(Message(TOPIC, b"second"), timeout_s=LIMIT_S).queue_offset == 1
        assert stored(name_server, 2) == {b"first", b"second"}


def test_a_directory_is_kept_and_found_again(tmp_path: Path) -> None:
    with broker(directory=tmp_path) as name_server:
        send(name_server, b"first")
    with broker(directory=tmp_path) as name_server:
        assert stored(name_server, 1) == {b"first"}


def test_a_machine_with_much_else_to_do_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async def late(name_server: str) -> ClusterInfo:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise CallTimeout(name_server, "no response within 3 s", request_left=True)
        return await cluster_info(name_server)

    monkeypatch.setattr(servers, "cluster_info", late)
    with broker() as name_server:
        assert name_server.wait_leader() == "n0"
    assert asked > 1


def test_brokers_are_strangers_to_each_other_and_leave_the_process_as_it_was() -> None:
    threshold, frozen = gc.get_threshold(), gc.get_freeze_count()
    with broker() as one, broker() as other:
        send(one, b"one")
        send(other, b"other")
        assert stored(one, 1) == {b"one"}
        assert stored(other, 1) == {b"other"}
    assert (gc.get_threshold(), gc.get_freeze_count()) == (threshold, frozen)


def test_a_store_that_cannot_be_opened_is_the_blocks_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(DiskError, match="file"), broker(directory=file):
        pass
