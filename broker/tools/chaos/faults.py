"""The faults of groups of real processes, and how they are undone.

Faults hit machines. A machine has a node of each group, with one group a single process, and all of them are killed,
stopped, cut off at once.

Each fault runs as a task for its duration. One process fault at a time takes a machine; a fault that finds no machine
to act on, or would take more than an operator would, does not fire and is not counted:

- *new disk* waits for a moment in which every other node runs, is reached and holds everything: two nodes of a group
  that lose what they had are more than Raft promises to survive. While an operator waits no other fault begins.
- *replace* adds a machine, promotes its nodes and removes those of another one. Once begun it is always brought to
  its end: no operator would leave a group halfway.
"""

import contextlib
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator
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
"""In this share of starts the next fault may hit the node before it listens again."""

Tell = Callable[[str], None]


class Faults:
    """Does faults to one cluster."""

    def __init__(
        self, cluster: LocalCluster, network: Network, recording: Recording, admin: AdminClient, tell: Tell
    ) -> None:
        self.fired: dict[str, int] = {}
        """The number of times that each kind took effect."""
        self.current: dict[str, None] = {}
        """The faults that go on, in words."""
        self._cluster = cluster
        self._network = network
        self._recording = recording
        self._admin = admin
        self._tell = tell
        self._taken: dict[int, None] = {}
        self._cut_off: dict[int, int] = {}
        self._replacing: tuple[int, int] | None = None
        """The machine that is being removed, and the one that replaces it."""
        self._name_server_down = False
        self._waiting = 0
        """The number of operators' faults that wait for a moment in which the group can bear them."""

    async def do(self, fault: Fault) -> None:
        """Does one fault from its beginning to its end."""
        if fault.kind in _OF_OPERATORS or not self._waiting:
            await self._KINDS[fault.kind](self, fault)

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
        """Lets paused processes go on; called at the end of a run, however it ends."""
        for node in self._cluster.nodes.values():
            if node.running:
                self._cluster.signal(node.id, signal.SIGCONT)

    # ------------------------------------------------------------------ shared

    def _fire(self, fault: Fault, targets: list[str], detail: str = "") -> str:
        self.fired[fault.kind] = self.fired.get(fault.kind, 0) + 1
        self._recording.fault(fault.kind, targets, detail)
        named = "" if targets == [fault.kind] else ", ".join(targets)
        words = " ".join(part for part in (fault.kind, named, detail) if part)
        self._tell(words)
        return words

    def _on(self, machine: int) -> list[LocalNode]:
        return self._cluster.layout.on_machine(machine)

    def _ids(self, *machines: int) -> list[str]:
        return [node.id for machine in machines for node in self._on(machine)]

    def _free(self) -> list[int]:
        """Machines whose nodes all run, and that no other fault has taken."""
        return [
            machine
            for machine in self._cluster.layout.machines()
            if machine not in self._taken and all(node.running for node in self._on(machine))
        ]

    def _start(self, machine: int) -> None:
        self._recording.fault("start", self._ids(machine))
        self._cluster.start_machine(machine)

    async def _start_again(self, fault: Fault, machines: list[int]) -> None:
        """Starts machines, and mostly leaves them alone until their nodes listen.

        Otherwise a busy machine, on which a start takes seconds, would never have a majority that could be disturbed.
        """
        for machine in machines:
            self._start(machine)
        if fault.amount < _STARTS_INTERRUPTED:
            return
        with trio.move_on_after(_START_S):
            for machine in machines:
                for node in self._on(machine):
                    await self._wait_listening(node)

    async def _wait_listening(self, node: LocalNode) -> None:
        host, port = split_address(node.address)
        while True:
            try:
                stream = await trio.open_tcp_stream(host, port)
            except OSError:
                await trio.sleep(_ASK_AGAIN_S)
            else:
                await stream.aclose()
                return

    @contextlib.contextmanager
    def _taking(self, machines: list[int]) -> Iterator[None]:
        """Keeps other process faults from these machines as long as the block lasts."""
        self._taken.update(dict.fromkeys(machines))
        try:
            yield
        finally:
            for machine in machines:
                del self._taken[machine]

    async def _with_machine(self, fault: Fault, act: Callable[[int], Awaitable[None]]) -> None:
        """Takes a free machine, if there is one, for as long as `act` lasts."""
        if free := self._free():
            machine = pick(fault.target, free)
            with self._taking([machine]):
                await act(machine)

    @contextlib.contextmanager
    def _going_on(self, words: str) -> Iterator[None]:
        """Tells of a fault as long as the block lasts."""
        self.current[words] = None
        try:
            yield
        finally:
            self.current.pop(words, None)

    async def _during(self, words: str, seconds: float) -> None:
        with self._going_on(words):
            await trio.sleep(seconds)

    # ------------------------------------------------------------------ processes

    async def _kill(self, fault: Fault) -> None:
        async def act(machine: int) -> None:
            words = self._fire(fault, self._ids(machine), f"SIGKILL for {fault.duration_s:.1f} s")
            await self._cluster.kill_machine(machine)
            await self._during(words, fault.duration_s)
            await self._start_again(fault, [machine])

        await self._with_machine(fault, act)

    async def _kill_all(self, fault: Fault) -> None:
        """Kills the processes of all machines. Page caches survive that, so everything acknowledged must still be
        there."""
        machines = self._free()
        if not machines:
            return
        with self._taking(machines):
            words = self._fire(fault, self._ids(*machines))
            for child in [self._cluster.kill_nowait(node_id) for node_id in self._ids(*machines)]:
                await child.exited.wait()
            await self._during(words, min(fault.duration_s, 1.0))
            await self._start_again(fault, machines)

    async def _restart(self, fault: Fault) -> None:
        async def act(machine: int) -> None:
            with self._going_on(self._fire(fault, self._ids(machine), "SIGTERM")):
                async with trio.open_nursery() as nursery:
                    for node_id in self._ids(machine):
                        nursery.start_soon(self._cluster.stop, node_id)
            await self._start_again(fault, [machine])

        await self._with_machine(fault, act)

    async def _pause(self, fault: Fault) -> None:
        async def act(machine: int) -> None:
            words = self._fire(fault, self._ids(machine), f"SIGSTOP for {fault.duration_s:.1f} s")
            for node_id in self._ids(machine):
                self._cluster.signal(node_id, signal.SIGSTOP)
            try:
                await self._during(words, fault.duration_s)
            finally:
                for node in self._on(machine):
                    if node.running:
                        self._cluster.signal(node.id, signal.SIGCONT)

        await self._with_machine(fault, act)

    async def _new_disk(self, fault: Fault) -> None:
        async def act(machine: int) -> None:
            if not await self._possible(partial(self._others_hold_everything, machine)):
                return
            words = self._fire(fault, self._ids(machine))
            await self._cluster.kill_machine(machine)
            for node in self._on(machine):
                await trio.to_thread.run_sync(shutil.rmtree, Path(node.settings.storage.path))
            self._start(machine)
            # No other machine may lose anything until the nodes have recovered, or the wait for that is over.
            with self._going_on(words), trio.move_on_after(_OPERATION_S):
                for node_id in self._ids(machine):
                    await self._wait_full_member(node_id)

        await self._with_machine(fault, act)

    async def _others_hold_everything(self, machine: int) -> bool:
        """True if this machine may lose its disk: the rest of each group is whole, and stays so meanwhile."""
        cluster = self._cluster
        if self._cut_off or self._replacing or len(self._taken) > 1:
            return False
        status = await cluster.status()
        committed: dict[str, int] = {}
        for one in status.values():
            committed[one.group] = max(committed.get(one.group, 0), one.commit_index)
        return all(
            node.id in status
            and status[node.id].recovering is None
            and status[node.id].last_index >= committed[node.group]
            for node in cluster.nodes.values()
            if node.machine != machine
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

    async def _cut(
        self, fault: Fault, machines: list[int], links: list[tuple[str, str]], detail: str
    ) -> None:
        words = self._fire(fault, self._ids(*machines), f"{detail} for {fault.duration_s:.1f} s")
        for machine in machines:
            self._cut_off[machine] = self._cut_off.get(machine, 0) + 1
        try:
            with self._network.cut(*links):
                await self._during(words, fault.duration_s)
        finally:
            for machine in machines:
                self._cut_off[machine] -= 1
                if not self._cut_off[machine]:
                    del self._cut_off[machine]

    def _picked(self, fault: Fault) -> int:
        return pick(fault.target, self._cluster.layout.machines())

    def _beside(self, machine: int) -> list[int]:
        return [other for other in self._cluster.layout.machines() if other != machine]

    def _links(self, machine: int, others: list[int], *, clients: bool) -> list[tuple[str, str]]:
        """The links between the nodes of a machine and those of the others, and the clients' where wanted."""
        ends = [*self._ids(*others), *([CLIENTS] if clients else [])]
        return [(node, end) for node in self._ids(machine) for end in ends]

    async def _isolate(self, fault: Fault) -> None:
        machine = self._picked(fault)
        links = self._links(machine, self._beside(machine), clients=True)
        await self._cut(fault, [machine], [*links, *_back(links)], "from all")

    async def _cut_one_way(self, fault: Fault) -> None:
        machine = self._picked(fault)
        links = self._links(machine, self._beside(machine), clients=True)
        if fault.amount < 0.5:
            await self._cut(fault, [machine], links, "it reaches nobody")
        else:
            await self._cut(fault, [machine], _back(links), "nobody reaches it")

    async def _cut_pair(self, fault: Fault) -> None:
        machine = self._picked(fault)
        others = self._beside(machine)
        other = others[int(fault.amount * len(others))]
        links = self._links(machine, [other], clients=False)
        await self._cut(fault, [machine, other], [*links, *_back(links)], "from each other")

    async def _delay(self, fault: Fault) -> None:
        nodes = self._ids(self._picked(fault))
        seconds = delay_of(fault.amount)
        words = self._fire(fault, nodes, f"{seconds * 1000:.0f} ms for {fault.duration_s:.1f} s")
        with contextlib.ExitStack() as slow:
            for node in nodes:
                slow.enter_context(self._network.delay(node, seconds))
            await self._during(words, fault.duration_s)

    async def _reset(self, fault: Fault) -> None:
        nodes = self._ids(self._picked(fault))
        broken = sum([self._network.reset(node) for node in nodes])
        if broken:
            self._fire(fault, nodes, f"{broken} connections")

    # ------------------------------------------------------------------ operators

    async def _transfer(self, fault: Fault) -> None:
        names = self._cluster.layout.options.group_names
        group = names[int(fault.amount * len(names))]
        nodes = [node.id for node in self._cluster.layout.members(group)]

        async def handed_over() -> bool:
            try:
                leader = (await self._admin.members(group)).node
                target = pick(fault.target, [node for node in nodes if node != leader])
                await self._admin.transfer_leadership(target, group)
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
        joined = self._cluster.layout.add_machine()[0].machine
        self._replacing = (old, joined)
        words = self._fire(fault, self._ids(old, joined))
        self._taken[joined] = self._taken[old] = None
        try:
            self._start(joined)
            with self._going_on(words), trio.move_on_after(_OPERATION_S):
                await self.finish_replacement()
        finally:
            if self._is_replaced(joined):
                self._taken.pop(joined, None)
            self._taken.pop(old, None)

    def _is_replaced(self, joined: int) -> bool:
        return self._replacing is None or self._replacing[1] != joined

    async def finish_replacement(self) -> None:
        """Brings a replacement that was begun to its end, group by group and step by step, as an operator does."""
        if self._replacing is None:
            return
        old, joined = self._replacing
        for node in self._on(joined):
            (before,) = [one.id for one in self._on(old) if one.group == node.group]
            while not await self._step_of_replacement(before, node):
                pass
        for node_id in self._ids(old):
            if self._cluster.nodes[node_id].running:
                await self._cluster.stop(node_id)
            self._cluster.layout.discard(node_id)
        self._cluster.layout.write_peers()
        self._replacing = None

    async def _step_of_replacement(self, old: str, joined: LocalNode) -> bool:
        """Takes the step that the members of a group ask for next; tells whether there is none."""
        group = joined.group
        try:
            members = await self._admin.members(group)
            if joined.id not in members.voters + members.learners:
                await self._admin.add_member(joined.id, joined.peer_address, group)
            elif joined.id in members.learners:
                await self._admin.promote_member(joined.id, group, timeout_s=1.0)
            elif old in members.voters:
                await self._admin.remove_member(old, group)
            else:
                return True
        except ClientError:
            await trio.sleep(_ASK_AGAIN_S)
        return False

    _KINDS: Final = {
        "kill": _kill,
        "kill all": _kill_all,
        "restart": _restart,
        "pause": _pause,
        "new disk": _new_disk,
        "isolate": _isolate,
        "cut one way": _cut_one_way,
        "cut pair": _cut_pair,
        "delay": _delay,
        "reset": _reset,
        "transfer": _transfer,
        "replace": _replace,
        "name server": _name_server,
    }


def _back(links: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(target, source) for source, target in links]


_OF_OPERATORS: Final = frozenset({"new disk", "transfer", "replace"})
