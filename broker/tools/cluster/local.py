"""A name server and one or several Raft groups of brokers as child processes on this machine.

    async with LocalCluster(LocalClusterOptions(directory)) as cluster:
        await cluster.wait_ready()
        leader = await cluster.leader()
        await cluster.kill(leader.id)

Everything that it writes is under one directory (:mod:`broker.tools.cluster.layout`). The servers know nothing of it:
it sees them as any operator does, by processes and over the network. It never restarts a server by itself, because its
uses (tests, demonstrations, measurements) are about what happens when one is gone.

All children end with the ``async with`` block, cleanly where they can; they also end when this process is killed.
"""

import contextlib
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self, TypeVar

import trio

from broker.client.errors import ClientError
from broker.remoting.node_status import NodeStatus
from broker.tools.cluster.child import Child, ChildDiedError
from broker.tools.cluster.layout import Layout, LocalClusterOptions, LocalNode
from broker.tools.cluster.query import cluster_info, node_status

READY_TIMEOUT_S = 120.0
"""Seconds, enough for a busy machine. A server that ends meanwhile is noticed at once."""
STOP_GRACE_S = 15.0
_ASK_AGAIN_S = 0.05
"""Seconds between two questions to servers that are not ready: only what they answer counts as readiness."""

_Found = TypeVar("_Found")


class LocalCluster:
    """The name server and the nodes. ``layout`` has their files, and changes which nodes there are."""

    def __init__(self, options: LocalClusterOptions) -> None:
        """Make the files and reserve the ports. Raises PortInUseError, OSError."""
        self.layout = Layout(options)
        self.nodes = self.layout.nodes
        self.name_server_address = self.layout.name_server_address
        self.name_server: Child | None = None
        self._deaths_in, self.deaths = trio.open_memory_channel[Child](1024)
        """Servers that ended without being asked to, in order."""
        self._tasks: trio.Nursery | None = None
        self._watches: list[trio.CancelScope] = []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start every server. Raises OSError."""
        try:
            self._tasks = await self._stack.enter_async_context(trio.open_nursery())
            self.start_name_server()
            for node_id in self.nodes:
                self.start(node_id)
        except BaseException:
            self._kill_all()
            self.layout.release()
            if self._tasks is not None:
                await self._end_tasks(self._tasks)
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Stop every server, brokers first so that they can unregister."""
        assert self._tasks is not None
        try:
            with trio.CancelScope(shield=True):
                await self._stop_all()
        finally:
            self._kill_all()
            self.layout.release()
            await self._end_tasks(self._tasks)

    async def _end_tasks(self, tasks: trio.Nursery) -> None:
        tasks.cancel_scope.cancel()
        for scope in self._watches:
            scope.cancel()
        await self._stack.aclose()

    # Processes -----------------------------------------------------------------------------------------------------

    def start_name_server(self) -> None:
        """Start the name server, which must not be running."""
        assert self.name_server is None or not self.name_server.running
        arguments = ["namesrv", "--config", str(self.layout.name_server_settings_path)]
        self.name_server = self._launch("namesrv", arguments, self.layout.directory / "namesrv.log")

    def start(self, node_id: str) -> None:
        """Start a node, which must not be running."""
        node = self.nodes[node_id]
        assert not node.running, f"{node_id} runs"
        node.child = self._launch(node_id, ["broker", "--config", str(node.settings_path)], node.log_path)

    async def kill(self, node_id: str) -> None:
        """SIGKILL to a running node; returns when its process is gone."""
        await self._child_of(node_id).kill()

    def kill_nowait(self, node_id: str) -> Child:
        """SIGKILL to a running node; the child's ``exited`` tells when it is gone."""
        child = self._child_of(node_id)
        child.kill_nowait()
        return child

    async def stop(self, node_id: str, grace_s: float = STOP_GRACE_S) -> bool:
        """SIGTERM to a running node; returns whether it stopped by itself, with exit code 0."""
        return await self._child_of(node_id).stop(grace_s)

    async def kill_machine(self, machine: int) -> list[str]:
        """SIGKILL to all nodes of a machine at once; returns their ids when their processes are gone."""
        lost = [node for node in self.layout.on_machine(machine) if node.running]
        for child in [self.kill_nowait(node.id) for node in lost]:
            await child.exited.wait()
        return [node.id for node in lost]

    def start_machine(self, machine: int) -> None:
        """Start all nodes of a machine, none of which may be running."""
        for node in self.layout.on_machine(machine):
            self.start(node.id)

    def signal(self, node_id: str, number: signal.Signals) -> None:
        """Any signal (SIGSTOP, SIGCONT) to a running node."""
        self._child_of(node_id).send_signal(number)

    def children(self) -> list[Child]:
        """Every process started last in its place, running or not; the name server first."""
        found = [self.name_server, *(node.child for node in self.nodes.values())]
        return [child for child in found if child is not None]

    def _child_of(self, node_id: str) -> Child:
        child = self.nodes[node_id].child
        assert child is not None
        assert child.running, f"{node_id} does not run"
        return child

    def _launch(self, name: str, arguments: list[str], log_path: Path) -> Child:
        assert self._tasks is not None, "the cluster is not entered"
        child = Child(name, arguments, log_path)
        self._tasks.start_soon(self._watch, child)
        return child

    async def _watch(self, child: Child) -> None:
        # Also while the whole block is being cancelled: stopping the servers in order waits for their ends.
        with trio.CancelScope(shield=True) as scope:
            self._watches.append(scope)
            await child.watch()
            self._watches.remove(scope)
        if scope.cancelled_caught:
            return
        if not child.expected_to_end:
            with contextlib.suppress(trio.WouldBlock):
                self._deaths_in.send_nowait(child)

    async def _stop_all(self) -> None:
        async with trio.open_nursery() as nursery:
            for node in self.nodes.values():
                if node.running:
                    assert node.child is not None
                    nursery.start_soon(node.child.stop, STOP_GRACE_S)
        if self.name_server is not None and self.name_server.running:
            await self.name_server.stop(STOP_GRACE_S)

    def _kill_all(self) -> None:
        for child in self.children():
            child.kill_now()

    # State ---------------------------------------------------------------------------------------------------------

    async def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when in each group a leader serves, the preferred one if it runs, and every running node is registered
        under its role.

        Raises ChildDiedError if a server ends meanwhile, and trio.TooSlowError, whose text has the last state, if it
        takes too long.
        """
        missing = "nothing has been asked yet"

        async def is_ready() -> bool:
            nonlocal missing
            missing = await self._missing()
            return not missing

        try:
            await self._ask_until(is_ready, timeout_s)
        except trio.TooSlowError:
            raise trio.TooSlowError(f"not ready after {timeout_s:g} s: {missing}") from None

    async def _ask_until(self, question: Callable[[], Awaitable[_Found | None]], timeout_s: float) -> _Found:
        """Ask until the answer is true; returns it. Raises ChildDiedError for a server that ended, TooSlowError."""
        with trio.fail_after(timeout_s):
            while True:
                for child in self.children():
                    if not child.running and not child.expected_to_end:
                        raise ChildDiedError(child.how_it_ended())
                if found := await question():
                    return found
                await trio.sleep(_ASK_AGAIN_S)

    async def _registered(self, timeout_s: float) -> dict[str, dict[int, str]]:
        """The registered addresses of each group by broker id, in which 0 is the leader. Raises ClientError."""
        info = await cluster_info(self.name_server_address, timeout_s=timeout_s)
        return {name: group.broker_addresses for name, group in info.broker_table.items()}

    async def _missing(self) -> str:
        """Say what the cluster lacks to be ready; "" if nothing."""
        try:
            registered = await self._registered(timeout_s=1.0)
        except ClientError as error:
            return f"the name server: {error}"
        for group in self.layout.options.group_names:
            if missing := await self._missing_of(group, registered.get(group, {})):
                return f"{group}: {missing}"
        return ""

    async def _missing_of(self, group: str, addresses: dict[int, str]) -> str:
        """Say what a group with these registered addresses lacks to be ready; "" if nothing."""
        running = {node.registered_address: node for node in self.layout.members(group) if node.running}
        leader_address = addresses.get(0)
        if leader_address is None:
            return "no leader is registered"
        unregistered = [node.id for address, node in running.items() if address not in addresses.values()]
        if unregistered:
            return f"{', '.join(unregistered)} not registered"
        try:
            # The node itself is asked, and not what may stand in front of it.
            node = running.get(leader_address)
            status = await node_status(leader_address if node is None else node.address, timeout_s=1.0)
        except ClientError as error:
            return f"the registered leader: {error}"
        if status.role != "leader" or not status.serving:
            return f"{status.node} is registered as leader, not serving"
        # A leader hands over to the node that is preferred as soon as that one can lead.
        preferred = self.nodes[status.node].settings.raft.preferred_leaders
        awaited = [name for name in preferred if name in self.nodes and self.nodes[name].running]
        return (
            f"{status.node} leads, and not {awaited[0]} yet" if awaited and status.node not in awaited else ""
        )

    async def status(self, timeout_s: float = 1.0) -> dict[str, NodeStatus]:
        """The status of every running node that answers in time, by node id."""
        found: dict[str, NodeStatus] = {}

        async def inquire(node: LocalNode) -> None:
            with contextlib.suppress(ClientError):
                found[node.id] = await node_status(node.address, timeout_s=timeout_s)

        async with trio.open_nursery() as nursery:
            for node in self.nodes.values():
                if node.running:
                    nursery.start_soon(inquire, node)
        return dict(sorted(found.items()))

    async def leader(self, timeout_s: float = READY_TIMEOUT_S, *, group: str = "") -> LocalNode:
        """The serving leader of a group's newest term; waits for one. Without ``group`` it is the first group's.

        Raises trio.TooSlowError, ChildDiedError.
        """
        wanted = group or self.layout.options.group

        async def newest() -> LocalNode | None:
            serving = _serving_leaders(await self.status(), wanted)
            return self.nodes[max(serving, key=lambda status: status.term).node] if serving else None

        return await self._ask_until(newest, timeout_s)

    async def wait_caught_up(self, timeout_s: float = READY_TIMEOUT_S) -> dict[str, int]:
        """Wait until every running node has applied all that its group's leader had committed; returns that index by
        group.

        Raises trio.TooSlowError, ChildDiedError.
        """
        targets: dict[str, int] = {}
        groups = self.layout.options.group_names

        async def is_caught_up() -> bool:
            status = await self.status()
            # The target stays what it was at first: under load the leader would always be ahead.
            for group in groups:
                committed = [one.commit_index for one in _serving_leaders(status, group)]
                if committed:
                    targets.setdefault(group, max(committed))
            running = [node for node in self.nodes.values() if node.running]
            return targets.keys() == set(groups) and all(
                node.id in status
                and min(status[node.id].commit_index, status[node.id].applied_index) >= targets[node.group]
                for node in running
            )

        await self._ask_until(is_caught_up, timeout_s)
        return targets

    async def ready_report(self) -> dict[str, object]:
        """The contents of the ``READY`` line: the name server's address, and each node's id, pid, address and role;
        with several groups its group and its machine, too."""
        status = await self.status(READY_TIMEOUT_S)
        has_groups = self.layout.options.groups > 1
        return {
            "namesrv": self.name_server_address,
            "nodes": [
                {
                    "id": node.id,
                    "pid": node.child.pid if node.child is not None else None,
                    "address": node.address,
                    "role": status[node.id].role if node.id in status else "unknown",
                    **({"group": node.group, "machine": node.machine} if has_groups else {}),
                    **({"metrics": metrics} if (metrics := node.settings.observe.metrics) else {}),
                }
                for node in self.nodes.values()
            ],
        }


def _serving_leaders(status: dict[str, NodeStatus], group: str) -> list[NodeStatus]:
    return [
        node for node in status.values() if node.group == group and node.role == "leader" and node.serving
    ]
