"""Many SIGKILLs, one after the other, and how long the group was without an acknowledgement behind each.

Each comes when the groups have recovered from the one before, and takes a machine: its node of each group. Of several
groups one is drawn, whose leader or follower it is that dies with its machine. What is measured is what a client feels:
behind the kill it sends a message, and what counts is when that is acknowledged, by whichever group.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import numpy as np
import trio

from broker.client.errors import ClientError
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.tools.cluster.local import LocalCluster
from broker.tools.cluster.recording import Recording
from simulation.randomness import Random

_TOPIC: Final = "Pulse"
"""The topic of sends that are not judged; those of the actors go to another one."""
_ROLES: Final = ("leader", "leader", "leader", "follower", "all")
"""Who may be killed; each is equally probable."""
_SHARES: Final = {"median": 50, "p90": 90, "p99": 99, "longest": 100}


class Gaps(msgspec.Struct, kw_only=True):
    """The times from SIGKILLs to the next acknowledgement, in milliseconds."""

    kills: dict[str, int] = {}
    """By who was killed: leader, follower, all."""
    leader_ms: list[float] = []
    all_ms: list[float] = []
    """After kills of all machines. These are started again at once, so the gap includes their start."""

    def rows(self) -> list[tuple[str, str]]:
        """Returns the counts and distributions as a table of facts."""
        rows = [("kills", ", ".join(f"{count} of {who}" for who, count in self.kills.items()))]
        for who, gaps in (("the leader", self.leader_ms), ("all", self.all_ms)):
            if gaps:
                values = np.percentile(gaps, [*_SHARES.values()], method="inverted_cdf")
                text = ", ".join(f"{name} {ms:,.0f}" for name, ms in zip(_SHARES, values, strict=True))
                rows.append((f"ms from a kill of {who} to an acknowledgement", text))
        return rows


class Kills:
    """Kills processes of one cluster."""

    def __init__(
        self, cluster: LocalCluster, recording: Recording, random: Random, tell: Callable[[str], None]
    ) -> None:
        self.gaps = Gaps()
        self._cluster = cluster
        self._recording = recording
        self._random = random
        self._tell = tell

    async def run(self, count: int, ready: Callable[[], Awaitable[object]]) -> None:
        """Kills `count` times; `ready` returns when the group may be hit again."""
        async with Producer(
            self._cluster.name_server_address, group="PULSE", send_timeout_s=60.0, attempt_timeout_s=1.0
        ) as producer:
            for number in range(1, count + 1):
                await self._acknowledged(producer)  # it now has a connection to the present leader
                await self._kill(producer, number)
                await ready()

    async def _kill(self, producer: Producer, number: int) -> None:
        cluster = self._cluster
        names = cluster.layout.options.group_names
        group = names[0] if len(names) == 1 else self._random.choice(names)
        leader = (await cluster.leader(group=group)).machine
        role = self._random.choice(_ROLES)
        machines = cluster.layout.machines()
        match role:
            case "leader":
                machines = [leader]
            case "follower":
                machines = [self._random.choice([machine for machine in machines if machine != leader])]
        victims = [node.id for machine in machines for node in cluster.layout.on_machine(machine)]
        self._recording.fault("kill", victims, f"number {number}")
        # Measured from the signal, which is sent to all victims before any of them is waited for.
        begin_s = trio.current_time()
        for child in [cluster.kill_nowait(node) for node in victims]:
            await child.exited.wait()
        # After a kill of all, nothing is acknowledged until they run again; otherwise the others are measured without
        # the victim.
        if role == "all":
            self._start(victims)
        await self._acknowledged(producer)
        gap_ms = round((trio.current_time() - begin_s) * 1000, 1)
        if role != "all":
            self._start(victims)
        self.gaps.kills[role] = self.gaps.kills.get(role, 0) + 1
        if role != "follower":
            (self.gaps.leader_ms if role == "leader" else self.gaps.all_ms).append(gap_ms)
        self._tell(f"kill {number}, {role} ({', '.join(victims)}): acknowledged after {gap_ms:,.0f} ms")

    def _start(self, nodes: list[str]) -> None:
        for node in nodes:
            self._recording.fault("start", [node])
            self._cluster.start(node)

    async def _acknowledged(self, producer: Producer) -> None:
        """Returns when one more message is acknowledged: at the next attempt if this one's outcome is unknown."""
        while True:
            try:
                await producer.send(Message(_TOPIC, b"pulse"))
            except ClientError as error:
                if not error.retry_may_help:
                    raise
            else:
                return
