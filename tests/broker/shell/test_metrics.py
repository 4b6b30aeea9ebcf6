"""Metrics and health checks of servers that run, as Prometheus and probes read them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import trio

from broker.client.admin import AdminClient
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.settings.tables import NameServerSettings, ObserveSettings, Settings
from broker.shell.http import HttpServer
from tests.broker.shell.servers import running
from tests.prometheus_text import Scrape, parse


async def got(server: HttpServer | None, target: str) -> tuple[int, str]:
    assert server is not None
    async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
        await stream.send_all(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while data := await stream.receive_some():
            answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


async def scraped(server: HttpServer | None) -> Scrape:
    status, text = await got(server, "/metrics")
    assert status == 200
    return parse(text)


def observed(config: Settings) -> Settings:
    return msgspec.structs.replace(config, observe=ObserveSettings(metrics="127.0.0.1:0"))


async def test_a_broker_tells_its_metrics_and_its_health(tmp_path: Path) -> None:
    async with running(tmp_path, change=observed) as servers:
        broker = await servers.wait_leader()
        await servers.wait_registered()
        async with (
            AdminClient(servers.name_server) as admin,
            Producer(servers.name_server, group="p", send_timeout_s=60) as producer,
        ):
            await admin.create_topic("T", queues=1)
            await producer.send(Message("T", b"one"))
            scrape = await scraped(broker.operators)
        node = broker.node
        common = {"cluster": "DefaultCluster", "group": node.group, "node": node.replica.node_id}
        assert scrape.value("trivet_server_serving", **common) == 1
        broker_labels = {"node_type": "broker", "node_id": node.group}
        assert scrape.value("rocketmq_messages_in_total", topic="T", **common, **broker_labels) == 1
        assert scrape.value("trivet_connections", kind="name_server") == 1
        assert scrape.value("trivet_turn_duration_seconds_count") > 0
        assert scrape.value("trivet_disk_wal_write_duration_seconds_sum") > 0
        assert scrape.value("process_open_fds") > 0

        assert await got(broker.operators, "/livez") == (200, "ok\n")
        status, text = await got(broker.operators, "/readyz?verbose")
        while "[+]registered ok" not in text:  # the name server knows it before it has heard the answer
            await trio.sleep(0.01)
            status, text = await got(broker.operators, "/readyz?verbose")
        assert (status, text.splitlines()[-1]) == (200, "ok")
        node.replica.disk_space.refuses_sends = True
        status, text = await got(broker.operators, "/readyz")
        assert status == 503
        assert "[-]disk failed: it is full: sends are refused\n" in text
        assert text.endswith("\nreadyz check failed\n")
        assert await got(broker.operators, "/readyz?exclude=disk") == (200, "ok\n")
        assert (await got(broker.operators, "/"))[0] == 404


async def test_metrics_are_made_once_a_second_however_many_ask(tmp_path: Path) -> None:
    async with running(tmp_path, change=observed) as servers:
        broker = await servers.wait_leader()
        answers: list[str] = []

        async def ask() -> None:
            answers.append((await got(broker.operators, "/metrics"))[1])

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ask)
        assert len(set(answers)) <= 1 + (trio.current_time() - began)


async def test_a_name_server_tells_its_metrics_and_its_health(tmp_path: Path) -> None:
    base = NameServerSettings(kv_config_path="", metrics="127.0.0.1:0")
    async with running(tmp_path, name_server=base) as servers:
        await servers.wait_registered()
        (process,) = servers.name_servers.values()
        scrape = await scraped(process.operators)
        assert scrape.value("trivet_namesrv_brokers", node=process.address) == 1
        assert scrape.value("trivet_namesrv_requests_total", code="REGISTER_BROKER") >= 1
        assert await got(process.operators, "/livez") == (200, "ok\n")
        assert await got(process.operators, "/readyz?verbose") == (200, "[+]loop ok\nok\n")
