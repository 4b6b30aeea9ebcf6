"""Three groups over three machines: a machine that dies takes one leader, and no send of Trivet's client fails."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from broker.client.admin import AdminClient
from broker.client.consuming.consumer import Consumer
from broker.client.message import Message, MessageQueue, SendResult
from broker.client.producing.producer import Producer
from broker.tools.cluster.local import LocalCluster
from tests.cluster.support import LIMIT_S, TOPIC, options, read_everything

pytestmark = pytest.mark.cluster

GROUPS = ("broker-a", "broker-b", "broker-c")


class Senders:
    """Producers that send one numbered message after the other, without a choice of queue and with a key."""

    def __init__(self) -> None:
        self.sent: dict[str, SendResult] = {}
        self.stopping = False
        self.pauses_s: list[float] = []
        """From one acknowledgement to the next, of each sender."""
        self._progress = trio.Event()

    async def run(self, producer: Producer, name: str, key: str | None) -> None:
        number, last_s = 0, trio.current_time()
        while not self.stopping:
            body = f"{name}-{number}"
            self.sent[body] = await producer.send(Message(TOPIC, body.encode()), queue=key)
            self._progress.set()
            now_s = trio.current_time()
            self.pauses_s.append(now_s - last_s)
            number, last_s = number + 1, now_s
            await trio.sleep(0.002)

    async def more(self, count: int) -> None:
        wanted = len(self.sent) + count
        while len(self.sent) < wanted:
            self._progress = trio.Event()
            await self._progress.wait()


async def test_a_machine_dies_and_comes_back(tmp_path: Path) -> None:
    """Each key stays with its queue; leaders are where they were when the machine is back, and nothing is missing."""
    with trio.fail_after(LIMIT_S):
        async with LocalCluster(options(tmp_path, groups=3)) as cluster:
            await cluster.wait_ready()
            assert [(await cluster.leader(group=group)).machine for group in GROUPS] == [0, 1, 2]
            async with AdminClient(cluster.name_server_address) as admin:
                await admin.create_topic(TOPIC, queues=2)
            senders = Senders()
            seen: set[str] = set()
            async with (
                Producer(cluster.name_server_address, group="p", send_timeout_s=60) as producer,
                Consumer(cluster.name_server_address, group="c", topics=TOPIC, start="first") as consumer,
                trio.open_nursery() as tasks,
            ):
                for number in range(4):
                    tasks.start_soon(senders.run, producer, f"any{number}", None)
                    tasks.start_soon(senders.run, producer, f"key{number}", f"key-{number}")
                await senders.more(200)
                assert await cluster.kill_machine(1) == ["n1", "n101", "n201"]
                await senders.more(400)
                cluster.start_machine(1)
                await cluster.wait_ready()  # its leader is back, too
                assert (await cluster.leader(group="broker-b")).machine == 1
                await senders.more(200)
                senders.stopping = True
                async for message in consumer:
                    seen.add(message.body.decode())
                    if len(seen) == len(senders.sent):
                        break
            stored = await read_everything(cluster.name_server_address)
    check(senders, {queue: [body.decode() for body in bodies] for queue, bodies in stored.items()})


def check(senders: Senders, stored: dict[MessageQueue, list[str]]) -> None:
    for body, result in senders.sent.items():
        assert stored[result.queue][result.queue_offset] == body
    bodies = [body for found in stored.values() for body in found]
    assert sorted(bodies) == sorted(senders.sent), "each is there once"
    print(f"longest pause of a sender {max(senders.pauses_s):.3f} s")
    assert {queue.broker_name for queue in stored} == set(GROUPS)
    for number in range(4):
        queues = {result.queue for body, result in senders.sent.items() if body.startswith(f"key{number}")}
        assert len(queues) == 1, "a key stays with its queue"
