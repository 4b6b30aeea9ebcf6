"""The course of the demonstration, step by step.

Nothing in it waits for a length of time. The leader is killed when a third of the messages is acknowledged, in the
midst of the rest. It is started again when two thirds are. Readers are done when they have seen every message. So the
same things happen on a fast and on a slow machine.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import trio

from broker.client.admin import AdminClient
from broker.client.consuming.consumer import Consumer
from broker.client.errors import SendOutcomeUnknown
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.tools.cluster.compare import Comparison, compare_stores
from broker.tools.cluster.layout import LocalClusterOptions
from broker.tools.cluster.local import LocalCluster
from broker.tools.cluster.recording import Recording

TOPIC = "DemoText"
GROUP = "DemoReaders"
QUEUES = 8
SENDERS = 16
"""Tasks that send one line after the other; all lines of a task go to one queue, so their order can be checked."""
READERS = 3
SEND_TIMEOUT_S = 30.0
READ_TIMEOUT_S = 120.0

Narrate = Callable[[str], None]
"""Takes one line about what has just happened."""


class DemoFailed(Exception):  # noqa: N818 - a finding, which may or may not be an error of the demonstration
    """Clients or files show something that a reliable log cannot show."""


class Summary(msgspec.Struct, kw_only=True):
    """The events and figures of a demonstration; while it runs, those so far."""

    messages_sent: int = 0
    messages_of_unknown_outcome: int = 0
    messages_read: int = 0
    read_again: int = 0
    """Messages that readers got more than once: allowed after a failure, by at-least-once delivery."""
    killed: str = ""
    new_leader: str = ""
    failover_ms: float = 0.0
    """Time from SIGKILL to the first acknowledgement of a send begun after it."""
    entries_compared: int = 0
    bytes_compared: int = 0
    verdict: str = "not asked"
    seconds: float = 0.0
    directory: str = ""
    traces: str = ""
    report: str | None = None


class Demonstration:
    """One run of it."""

    def __init__(self, directory: Path, lines: Sequence[bytes], narrate: Narrate) -> None:
        self.directory = directory
        self.summary = Summary(directory=str(directory), traces=str(directory / "traces"))
        self._lines = lines
        self._narrate = narrate
        self.failed_over = trio.Event()
        """Set when the killed leader's successor has acknowledged a message: from then on, other work does not disturb
        the failover."""
        self.serving = trio.Event()
        """Set when the group serves, at the name server of `name_server_address`."""
        self.name_server_address = ""
        self._third = trio.Event()
        self._two_thirds = trio.Event()
        self._killed = trio.Event()
        self._all_read = trio.Event()
        self._all_sent = trio.Event()
        self._reading: list[trio.CancelScope] = []
        self._killed_ns: int | None = None
        self._acknowledged: dict[str, int] = {}
        """Line number by message id."""
        self._read: dict[str, int] = {}
        """Number of times each message id was read."""

    async def run(self) -> Summary:
        """Run everything but the verdict. Raises DemoFailed, and ClientError and others when the group does not
        serve."""
        begin = time.monotonic()
        options = LocalClusterOptions(self.directory, trace_directory=self.directory / "traces")
        async with LocalCluster(options) as cluster:
            await cluster.wait_ready()
            self.name_server_address = cluster.name_server_address
            self.serving.set()
            leader = await cluster.leader()
            self._narrate(f"a name server and {options.nodes} brokers serve; {leader.id} leads")
            async with AdminClient(cluster.name_server_address) as admin:
                await admin.create_topic(TOPIC, queues=QUEUES)
            with Recording(self.directory / "traces") as recording:
                await self._drive(cluster, recording)
            # Nobody sends any more: what is committed now is what each store must end with.
            commit_index = (await cluster.wait_caught_up())[options.group]
            self._narrate(f"all nodes have applied entry {commit_index:,}")
            unclean = [node_id for node_id in cluster.nodes if not await cluster.stop(node_id)]
            if unclean:
                raise DemoFailed(
                    f"{', '.join(unclean)} did not stop cleanly; see the logs in {self.directory}"
                )
            self._compare(cluster, commit_index)
        self.summary.seconds = time.monotonic() - begin
        return self.summary

    async def _drive(self, cluster: LocalCluster, recording: Recording) -> None:
        """Send, read and kill, all at the same time, until everything that was acknowledged has been read."""
        async with trio.open_nursery() as background:
            background.start_soon(recording.run)
            async with trio.open_nursery() as readers:
                for number in range(READERS):
                    await readers.start(self._read_lines, cluster, recording, number)
                await self._send_and_kill(cluster, recording)
                await self._wait_read()
                for scope in self._reading:
                    scope.cancel()
            background.cancel_scope.cancel()

    async def _send_and_kill(self, cluster: LocalCluster, recording: Recording) -> None:
        async with (
            Producer(
                cluster.name_server_address,
                group="DemoSenders",
                send_timeout_s=SEND_TIMEOUT_S,
                attempt_timeout_s=1.0,
                trace=recording.writer("producer"),
            ) as producer,
            trio.open_nursery() as work,
        ):
            work.start_soon(self._break_leader, cluster, recording)
            async with trio.open_nursery() as senders:
                for number in range(SENDERS):
                    senders.start_soon(self._send_lines, producer, number)
            self._all_sent.set()
            self._narrate(f"all {self.summary.messages_sent:,} messages are acknowledged")

    async def _wait_read(self) -> None:
        self._check_read()
        with trio.move_on_after(READ_TIMEOUT_S):
            await self._all_read.wait()
        missing = self._acknowledged.keys() - self._read.keys()
        if missing:
            raise DemoFailed(
                f"{len(missing):,} acknowledged messages were not read within {READ_TIMEOUT_S:g} s"
            )
        again = self.summary.read_again = sum(self._read.values()) - len(self._read)
        self._narrate(f"the readers have seen all of them, {again:,} more than once")

    async def _send_lines(self, producer: Producer, number: int) -> None:
        summary, lines = self.summary, len(self._lines)
        for line_number in range(number, lines, SENDERS):
            message = Message(TOPIC, self._lines[line_number], keys=(f"line-{line_number + 1}",))
            begun_ns = time.monotonic_ns()
            try:
                result = await producer.send(message, queue=f"sender-{number}")
            except SendOutcomeUnknown:
                summary.messages_of_unknown_outcome += 1
                continue
            if self._killed_ns is not None and begun_ns > self._killed_ns and not summary.failover_ms:
                summary.failover_ms = (time.monotonic_ns() - self._killed_ns) / 1e6
                self._narrate(f"the first send after it is acknowledged {summary.failover_ms:,.0f} ms later")
                self.failed_over.set()
            self._acknowledged[result.message_id] = line_number
            summary.messages_sent += 1
            if summary.messages_sent * 3 >= lines:
                self._third.set()
            if summary.messages_sent * 3 >= lines * 2:
                self._two_thirds.set()
                # The rest is sent after the kill, however long it takes to hear who leads.
                await self._killed.wait()

    async def _read_lines(
        self,
        cluster: LocalCluster,
        recording: Recording,
        number: int,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        writer = recording.writer(f"consumer-{number}")
        async with Consumer(
            cluster.name_server_address, group=GROUP, topics=TOPIC, start="first", trace=writer
        ) as consumer:
            task_status.started()
            # It ends inside of the consumer's block, so that this stores its offsets and says goodbye.
            with trio.CancelScope() as scope:
                self._reading.append(scope)
                async for messages in consumer.batches():
                    for message in messages:
                        if message.body != self._lines[int(message.keys[0].removeprefix("line-")) - 1]:
                            raise DemoFailed(f"{message!r} is not the line that was sent")
                        self._read[message.message_id] = self._read.get(message.message_id, 0) + 1
                    self.summary.messages_read = len(self._read)
                    if self._all_sent.is_set():
                        self._check_read()

    def _check_read(self) -> None:
        if self._acknowledged.keys() <= self._read.keys():
            self._all_read.set()

    async def _break_leader(self, cluster: LocalCluster, recording: Recording) -> None:
        await self._third.wait()
        leader = await cluster.leader()
        recording.fault("kill", [leader.id], "SIGKILL")
        killed = cluster.kill_nowait(leader.id)
        self._killed_ns = time.monotonic_ns()
        self._killed.set()
        self.summary.killed = leader.id
        self._narrate(f"{leader.id}, the leader, is killed with SIGKILL (pid {killed.pid})")
        await killed.exited.wait()
        successor = await cluster.leader()
        self.summary.new_leader = successor.id
        self._narrate(f"{successor.id} leads now")
        await self._two_thirds.wait()
        recording.fault("restart", [leader.id])
        cluster.start(leader.id)
        self._narrate(f"{leader.id} is started again and catches up")

    def _compare(self, cluster: LocalCluster, commit_index: int) -> None:
        comparison: Comparison = compare_stores(
            {node.id: node.data_directory for node in cluster.nodes.values()}, commit_index
        )
        self.summary.entries_compared = comparison.entries
        self.summary.bytes_compared = comparison.bytes
        self._narrate(
            f"the {len(cluster.nodes)} stores are byte-identical up to the commit index: "
            f"{comparison.entries:,} entries, {comparison.bytes:,} bytes"
        )
