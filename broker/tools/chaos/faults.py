"""The faults of a group of real processes, and how they are undone.

Each fault runs as a task for its duration. One process fault at a time takes a node; a fault that finds no node to act
on, or would take more than an operator would, does not fire and is not counted:

- *new disk* waits for a moment in which every other node runs, is reached and holds everything: two nodes that lose
  what they had are more than Raft promises to survive. While an operator waits no other fault begins.
- *replace* adds a node, promotes it and removes another one. What it began is brought to its end, whatever happens
  meanwhile, because the group it leaves is one that operators would not leave either.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

import trio

from broker.client.admin import AdminClient
from broker.client.errors import ClientError
from broker.remoting.addresses import split_address
from broker.tools.chaos.proxy import CLIENTS, Network
from broker.tools.chaos.schedule import delay_of, pick
from broker.tools.cluster.layout import LocalNode
from broker.tools.cluster.local import LocalCluster
from broker.tools.cluster.recording import Recording
from simulation.plans.plan import Fault

_OPERATION_S = 30.0
_ASK_AGAIN_S = 0.2
_OPERATOR_WAITS_S = 20.0
_START_S = 15.0
_STARTS_INTERRUPTED = 0.25
"""In this share of cases the next fault may come while a node starts and recovers."""

Tell = Callable[[str], None]


class Faults:
    """Does faults to one cluster."""

    def __init__(
        self, cluster: LocalCluster, network: Network, recording: Recording, admin: AdminClient, tell: Tell
    ) -> None:
        self.fired: dict[str, int] = {}
        """How often each kind took effect."""
        self.current: dict[str, None] = {}
        """What is going on, in words."""
        self._cluster = cluster
        self._network = network
        self._recording = recording
        self._admin = admin
        self._tell = tell
        self._taken: dict[str, None] = {}
        self._cut_off: dict[str, int] = {}
        self._replacing: tuple[str, str] | None = None
        self._name_server_down = False
        self._waiting = 0
        """Operators who wait for a calm moment."""

    async def do(self, fault: Fault) -> None:
        """Does one fault from its beginning to its end."""
        if fault.kind in _OF_OPERATORS or not self._waiting:
            await _KINDS[fault.kind](self, fault)

    async def _possible(self, is_possible: Callable[[], Awaitable[bool]]) -> bool:
        """Waits as an operator does for a moment in which the group can bear it; False if none comes."""
        self._waiting += 1
        try:
            with trio.move_on_after(_OPERATOR_WAITS_S):
                while True:
                    if await is_possible():
                        return True
                    await trio.sleep(_ASK_AGAIN_S)
        finally:
            self._waiting -= 1
        return False

    def release(self) -> None:
        """Lets stopped processes go on: for the end of a run, however it came."""
        for node in self._cluster.nodes.values():
            if node.running:
                self._cluster.signal(node.id, signal.SIGCONT)

    # ------------------------------------------------------------------ shared

    def _fire(self, fault: Fault, targets: list[str], detail: str = "") -> str:
        self.fired[fault.kind] = self.fired.get(fault.kind, 0) + 1
        self._recording.fault(fault.kind, targets, detail)
        words = " ".join(part for part in (fault.kind, ", ".join(targets), detail) if part)
        self._tell(words)
        return words

    def _free(self) -> list[str]:
        """Running nodes that no other fault has taken."""
        return [
            node.id for node in self._cluster.nodes.values() if node.running and node.id not in self._taken
        ]

    def _start(self, node_id: str) -> None:
        self._recording.fault("start", [node_id])
        self._cluster.start(node_id)

    async def _start_again(self, fault: Fault, nodes: list[str]) -> None:
        """Starts nodes, and mostly leaves them alone until they listen.

        Otherwise a busy machine, on which a start takes seconds, would never have a majority that could be disturbed.
        """
        for node_id in nodes:
            self._start(node_id)
        if fault.amount < _STARTS_INTERRUPTED:
            return
        with trio.move_on_after(_START_S):
            for node_id in nodes:
                await self._wait_listening(node_id)

    async def _wait_listening(self, node_id: str) -> None:
        host, port = split_address(self._cluster.nodes[node_id].address)
        while True:
            try:
                stream = await trio.open_tcp_stream(host, port)
            except OSError:
                await trio.sleep(_ASK_AGAIN_S)
            else:
                await stream.aclose()
                return

    async def _with_node(self, fault: Fault, act: Callable[[LocalNode], Awaitable[None]]) -> None:
        """Takes a free node, if there is one, for as long as `act` lasts."""
        free = self._free()
        if not free:
            return
        node = self._cluster.nodes[pick(fault.target, free)]
        self._taken[node.id] = None
        try:
            await act(node)
        finally:
            del self._taken[node.id]

    async def _during(self, words: str, seconds: float) -> None:
        self.current[words] = None
        try:
            await trio.sleep(seconds)
        finally:
            self.current.pop(words, None)

    # ------------------------------------------------------------------ processes

    async def _kill(self, fault: Fault) -> None:
        async def act(node: LocalNode) -> None:
            words = self._fire(fault, [node.id], f"SIGKILL for {fault.duration_s:.1f} s")
            await self._cluster.kill(node.id)
            await self._during(words, fault.duration_s)
            await self._start_again(fault, [node.id])

        await self._with_node(fault, act)

    async def _kill_all(self, fault: Fault) -> None:
        """Their page cache stays, so that nothing acknowledged may be missing."""
        nodes = self._free()
        if not nodes:
            return
        self._taken.update(dict.fromkeys(nodes))
        try:
            words = self._fire(fault, nodes)
            for child in [self._cluster.kill_nowait(node_id) for node_id in nodes]:
                await child.exited.wait()
            await self._during(words, min(fault.duration_s, 1.0))
            await self._start_again(fault, nodes)
        finally:
            for node_id in nodes:
                del self._taken[node_id]

    async def _restart(self, fault: Fault) -> None:
        async def act(node: LocalNode) -> None:
            words = self._fire(fault, [node.id], "SIGTERM")
            self.current[words] = None
            await self._cluster.stop(node.id)
            self.current.pop(words, None)
            await self._start_again(fault, [node.id])

        await self._with_node(fault, act)

    async def _pause(self, fault: Fault) -> None:
        async def act(node: LocalNode) -> None:
            words = self._fire(fault, [node.id], f"SIGSTOP for {fault.duration_s:.1f} s")
            self._cluster.signal(node.id, signal.SIGSTOP)
            try:
                await self._during(words, fault.duration_s)
            finally:
                if node.running:
                    self._cluster.signal(node.id, signal.SIGCONT)

        await self._with_node(fault, act)

    async def _new_disk(self, fault: Fault) -> None:
        async def act(node: LocalNode) -> None:
            if not await self._possible(partial(self._others_hold_everything, node.id)):
                return
            words = self._fire(fault, [node.id])
            await self._cluster.kill(node.id)
            await trio.to_thread.run_sync(shutil.rmtree, Path(node.settings.storage.path))
            self._start(node.id)
            self.current[words] = None
            try:
                # Until it has recovered, no other node may lose anything; it keeps trying beyond that.
                with trio.move_on_after(_OPERATION_S):
                    await self._wait_full_member(node.id)
            finally:
                self.current.pop(words, None)

        await self._with_node(fault, act)

    async def _others_hold_everything(self, node_id: str) -> bool:
        """True if this node may lose its disk: the rest of the group is whole, and stays so meanwhile."""
        cluster = self._cluster
        others = [node for node in cluster.nodes if node != node_id]
        if self._cut_off or self._replacing or len(self._taken) > 1:
            return False
        status = await cluster.status()
        commit_index = max((node.commit_index for node in status.values()), default=0)
        return all(
            other in status and status[other].recovering is None and status[other].last_index >= commit_index
            for other in others
        )

    async def _wait_full_member(self, node_id: str) -> None:
        while True:
            status = (await self._cluster.status()).get(node_id)
            if status is not None and status.recovering is None and status.leader is not None:
                return
            await trio.sleep(_ASK_AGAIN_S)

    async def _name_server(self, fault: Fault) -> None:
        server = self._cluster.name_server
        if self._name_server_down or server is None or not server.running:
            return
        self._name_server_down = True
        try:
            words = self._fire(fault, ["name server"], f"SIGKILL for {fault.duration_s:.1f} s")
            await server.kill()
            await self._during(words, fault.duration_s)
            self._cluster.start_name_server()
        finally:
            self._name_server_down = False

    # ------------------------------------------------------------------ network

    async def _cut(self, fault: Fault, nodes: list[str], links: list[tuple[str, str]], detail: str) -> None:
        words = self._fire(fault, nodes, f"{detail} for {fault.duration_s:.1f} s")
        for node in nodes:
            self._cut_off[node] = self._cut_off.get(node, 0) + 1
        try:
            with self._network.cut(*links):
                await self._during(words, fault.duration_s)
        finally:
            for node in nodes:
                self._cut_off[node] -= 1
                if not self._cut_off[node]:
                    del self._cut_off[node]

    def _one_and_others(self, fault: Fault) -> tuple[str, list[str]]:
        nodes = list(self._cluster.nodes)
        node = pick(fault.target, nodes)
        return node, [*(other for other in nodes if other != node), CLIENTS]

    async def _isolate(self, fault: Fault) -> None:
        node, others = self._one_and_others(fault)
        links = [(node, other) for other in others] + [(other, node) for other in others]
        await self._cut(fault, [node], links, "from all")

    async def _cut_one_way(self, fault: Fault) -> None:
        node, others = self._one_and_others(fault)
        if fault.amount < 0.5:
            await self._cut(fault, [node], [(node, other) for other in others], "it reaches nobody")
        else:
            await self._cut(fault, [node], [(other, node) for other in others], "nobody reaches it")

    async def _cut_pair(self, fault: Fault) -> None:
        node, others = self._one_and_others(fault)
        other = others[int(fault.amount * (len(others) - 1))]
        await self._cut(fault, [node, other], [(node, other), (other, node)], "from each other")

    async def _delay(self, fault: Fault) -> None:
        node, _ = self._one_and_others(fault)
        seconds = delay_of(fault.amount)
        words = self._fire(fault, [node], f"{seconds * 1000:.0f} ms for {fault.duration_s:.1f} s")
        with self._network.delay(node, seconds):
            await self._during(words, fault.duration_s)

    async def _reset(self, fault: Fault) -> None:
        node, _ = self._one_and_others(fault)
        broken = self._network.reset(node)
        if broken:
            self._fire(fault, [node], f"{broken} connections")

    # ------------------------------------------------------------------ operators

    async def _transfer(self, fault: Fault) -> None:
        nodes = list(self._cluster.nodes)

        async def handed_over() -> bool:
            try:
                leader = (await self._admin.members()).node
                target = pick(fault.target, [node for node in nodes if node != leader])
                await self._admin.transfer_leadership(target)
            except ClientError:
                return False
            self._fire(fault, [target])
            return True

        await self._possible(handed_over)

    async def _replace(self, fault: Fault) -> None:
        async def is_calm() -> bool:
            return self._replacing is None and not self._cut_off and bool(self._free())

        if not await self._possible(is_calm):
            return
        old = pick(fault.target, self._free())
        joined = self._cluster.layout.add_node()
        self._replacing = (old, joined.id)
        words = self._fire(fault, [old, joined.id])
        self.current[words] = None
        self._taken[joined.id] = self._taken[old] = None
        try:
            self._start(joined.id)
            with trio.move_on_after(_OPERATION_S):
                await self.finish_replacement()
        finally:
            self.current.pop(words, None)
            if self._is_replaced(joined.id):
                self._taken.pop(joined.id, None)
            self._taken.pop(old, None)

    def _is_replaced(self, joined: str) -> bool:
        return self._replacing is None or self._replacing[1] != joined

    async def finish_replacement(self) -> None:
        """Brings a replacement that was begun to its end, step by step, as an operator who looks at the group."""
        while self._replacing is not None:
            old, joined = self._replacing
            try:
                members = await self._admin.members()
                if joined not in members.voters + members.learners:
                    await self._admin.add_member(joined, self._cluster.nodes[joined].peer_address)
                elif joined in members.learners:
                    await self._admin.promote_member(joined, timeout_s=1.0)
                elif old in members.voters:
                    await self._admin.remove_member(old)
                else:
                    await self._retire(old)
                    self._replacing = None
            except ClientError:
                await trio.sleep(_ASK_AGAIN_S)

    async def _retire(self, node_id: str) -> None:
        if self._cluster.nodes[node_id].running:
            await self._cluster.stop(node_id)
        self._cluster.layout.discard(node_id)
        self._cluster.layout.write_peers()


_OF_OPERATORS: Final = frozenset({"new disk", "transfer", "replace"})
_KINDS: dict[str, Callable[[Faults, Fault], Awaitable[None]]] = {
    "kill": Faults._kill,
    "kill all": Faults._kill_all,
    "restart": Faults._restart,
    "pause": Faults._pause,
    "new disk": Faults._new_disk,
    "isolate": Faults._isolate,
    "cut one way": Faults._cut_one_way,
    "cut pair": Faults._cut_pair,
    "delay": Faults._delay,
    "reset": Faults._reset,
    "transfer": Faults._transfer,
    "replace": Faults._replace,
    "name server": Faults._name_server,
}
