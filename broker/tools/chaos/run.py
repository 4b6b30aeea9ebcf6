"""The course of a run: a group behind proxies, load, faults until the time is up, then peace, in which it must recover.

What must hold is decided three times: here while it runs (no server ends by itself; after the faults the group serves,
all nodes catch up, and consumers get everything that was acknowledged, each within a bound), then from the files (the
stores are byte-identical, and clients were told what the log says), and at last from the traces (`trivet analyze`).
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import trio

from broker.client.admin import AdminClient
from broker.settings.tables import Settings, StorageSettings
from broker.tools.chaos.faults import Faults
from broker.tools.chaos.judging import JudgedGroup, Recorded, judge_clients
from broker.tools.chaos.kills import Gaps, Kills
from broker.tools.chaos.proxy import Network, open_network
from broker.tools.chaos.schedule import FAULT_KINDS
from broker.tools.chaos.workload import AT_MOST_ONCE, QUEUES, Counters, Workload
from broker.tools.cluster.compare import StoresDifferError, compare_stores
from broker.tools.cluster.layout import LocalClusterOptions
from broker.tools.cluster.local import LocalCluster
from broker.tools.cluster.recording import Recording
from simulation.journal import Violation
from simulation.plans.plan import Fault
from simulation.randomness import stream
from simulation.scheduler import SECOND
from simulation.workload.names import TOPIC

RECOVERY_S = 60.0
"""Seconds after the last fault within which the group must serve; replicas and readers then have as long again to catch
up."""

_CALM_LOAD_S = 2.0

THIN_SHARE = 4
"""With more than one message of unknown outcome for this many acknowledged ones the verdict is called thin."""

Tell = Callable[[str], None]


class ChaosFinding(Exception):  # noqa: N818 - something that must hold does not
    """A finding, in words; the directory has the rest."""


class Summary(Counters, kw_only=True):
    """The result of a run; while it goes on, what its clients have seen so far."""

    seed: int
    nodes: int
    groups: int = 1
    flush: str
    fault_seconds: float
    fired: dict[str, int] = {}
    """How often each kind of fault took effect; a kind that never did is not there."""
    entries_compared: int = 0
    bytes_compared: int = 0
    gaps: Gaps | None = None
    """The times without an acknowledgement after the kills that were asked for; None where a seed drew the faults."""
    warnings: list[str] = []
    """The reasons why the verdict says less than it seems to."""
    finding: str | None = None
    verdict: str = "not asked"
    seconds: float = 0.0
    directory: str = ""
    traces: list[str] = []
    """Directories, each with the history of a group."""
    report: str | None = None


class ChaosRun:
    """A run, with everything of it below `directory`.

    Its faults are those of `schedule`, which end after `fault_seconds`; or instead it makes this number of `kills`,
    however long they take.
    """

    def __init__(
        self,
        directory: Path,
        seed: int,
        schedule: Sequence[Fault],
        fault_seconds: float,
        *,
        kills: int = 0,
        nodes: int,
        groups: int = 1,
        storage: StorageSettings,
        tell: Tell,
    ) -> None:
        self.directory = directory
        self.summary = Summary(
            seed=seed,
            nodes=nodes,
            groups=groups,
            flush=storage.flush,
            fault_seconds=fault_seconds,
            directory=str(directory),
        )
        self.current: dict[str, None] = {}
        """The faults that are going on."""
        self.phase = "the group starts"
        """The part of the run that is under way, for people."""
        self._seed = seed
        self._schedule = schedule
        self._kills = kills
        self._storage = storage
        self._tell = tell

    async def run(self) -> Summary:
        """Runs everything but the judgement of the traces by Spark. Raises ChaosFinding, and what keeps a cluster from
        starting."""
        begin = time.monotonic()
        try:
            async with open_network() as network:
                await self._run(network)
        except* (ChaosFinding, StoresDifferError) as findings:
            self.summary.finding = _first_of(findings)
        finally:
            self.summary.warnings = self._warnings()
            self.summary.seconds = time.monotonic() - begin
            recorded = Recorded.below(self.directory / "traces")
            if recorded.others or recorded.replicas:
                self.summary.traces = [str(path) for path in recorded.histories()]
        if self.summary.finding is not None:
            self._tell(f"FOUND: {self.summary.finding}")
        return self.summary

    async def _run(self, network: Network) -> None:
        options = LocalClusterOptions(
            self.directory,
            nodes=self.summary.nodes,
            groups=self.summary.groups,
            storage=self._storage,
            change=_behind_proxies(network),
            trace_directory=self.directory / "traces",
        )
        async with LocalCluster(options) as cluster:
            voters = {
                group: [node.id for node in cluster.layout.members(group)] for group in options.group_names
            }
            await cluster.wait_ready()
            leaders = [(await cluster.leader(group=group)).id for group in options.group_names]
            lead = "leads" if len(leaders) == 1 else "lead"
            self._tell(
                f"a name server and {len(cluster.nodes)} brokers behind proxies serve; "
                f"{', '.join(leaders)} {lead}"
            )
            async with AdminClient(cluster.name_server_address) as admin:
                await admin.create_topic(TOPIC, queues=QUEUES)
                with Recording(self.directory / "traces") as recording:
                    faults = Faults(cluster, network, recording, admin, self._tell)
                    self.current, self.summary.fired = faults.current, faults.fired
                    try:
                        await self._drive(cluster, recording, faults)
                    finally:
                        faults.release()
            await self._compare(cluster, voters)

    async def _drive(self, cluster: LocalCluster, recording: Recording, faults: Faults) -> None:
        random = stream(f"load {self._seed}")
        workload = Workload(cluster.name_server_address, recording, random, self.summary)
        async with trio.open_nursery() as background:
            background.start_soon(recording.run)
            background.start_soon(_watch_deaths, cluster)
            background.start_soon(workload.run)
            if self._kills:
                await self._do_kills(cluster, recording)
            else:
                await self._do_faults(faults)
            self.phase = "recovery"
            self._tell("no more faults: the group must recover")
            recording.fault("calm", [])
            # First servers, then clients: each says what went wrong before the next could only time out.
            await _within("no leader serves, or not every node is registered", cluster.wait_ready)
            await _within("the replacement of a member does not end", faults.finish_replacement)
            await _within("no send succeeds", workload.wait_acknowledged)
            await trio.sleep(_CALM_LOAD_S)
            workload.load_stopped = True
            await _within("not every replica catches up", cluster.wait_caught_up)
            try:
                await _within("acknowledged messages are not read", workload.wait_all_read)
            except ChaosFinding as finding:
                raise ChaosFinding(f"{finding}: {workload.unread} are missing") from None
            background.cancel_scope.cancel()

    async def _do_faults(self, faults: Faults) -> None:
        begin_s = trio.current_time()
        self.phase = "faults"
        async with trio.open_nursery() as nursery:
            for fault in self._schedule:
                await trio.sleep_until(begin_s + fault.time_ns / SECOND)
                nursery.start_soon(faults.do, fault)
            await trio.sleep_until(begin_s + self.summary.fault_seconds)

    async def _do_kills(self, cluster: LocalCluster, recording: Recording) -> None:
        self.phase = "kills"
        kills = Kills(cluster, recording, stream(f"kills {self._seed}"), self._tell)
        self.summary.gaps = kills.gaps

        async def ready() -> None:
            await _within("no leader serves, or not every node is registered", cluster.wait_ready)
            await _within("not every replica catches up", cluster.wait_caught_up)

        await kills.run(self._kills, ready)

    def _warnings(self) -> list[str]:
        """Returns warnings about how little the verdict may prove: a message of unknown outcome may be in the log or
        not."""
        warnings = []
        acknowledged, unknown = self.summary.acknowledged, self.summary.unknown
        if unknown * THIN_SHARE > acknowledged:
            warnings.append(
                f"a thin verdict: {unknown:,} messages of unknown outcome beside {acknowledged:,} acknowledged; "
                "nothing can be held against the group of what was not acknowledged"
            )
        missing = [
            kind for kind in {fault.kind for fault in self._schedule} if not self.summary.fired.get(kind)
        ]
        if missing and not self._kills:
            warnings.append(f"drawn, and never possible: {', '.join(sorted(missing))}")
        return warnings

    async def _compare(self, cluster: LocalCluster, voters: Mapping[str, Sequence[str]]) -> None:
        committed = await cluster.wait_caught_up()
        self.phase = "the nodes stop, and their stores are compared"
        unclean = [node_id for node_id in cluster.nodes if not await cluster.stop(node_id)]
        if unclean:
            raise ChaosFinding(f"{', '.join(unclean)} did not stop cleanly")
        groups = [
            JudgedGroup(
                name=group,
                voters=voters[group],
                stores={node.id: node.data_directory for node in cluster.layout.members(group)},
                last_index=index,
            )
            for group, index in committed.items()
        ]
        for group in groups:
            comparison = await trio.to_thread.run_sync(compare_stores, group.stores, group.last_index)
            self.summary.entries_compared += comparison.entries
            self.summary.bytes_compared += comparison.bytes
        self._tell(
            f"the stores of each group are byte-identical: {self.summary.entries_compared:,} entries, "
            f"{self.summary.bytes_compared:,} bytes"
        )
        self.phase = "what clients were told is held against the log"
        judge = partial(judge_clients, self.directory / "traces", groups, at_most_once=AT_MOST_ONCE)
        try:
            await trio.to_thread.run_sync(judge)
        except Violation as violation:
            raise ChaosFinding(str(violation)) from violation


def _behind_proxies(network: Network) -> Callable[[Settings], Settings]:
    """Returns a function that changes a node's settings, so that it finds all others at their proxies, and they find it
    at its own."""
    proxies: dict[str, str] = {}

    def proxied(node: str, address: str, *, peers: bool) -> str:
        if address in proxies.values():
            return address
        if address not in proxies:
            proxies[address] = network.listen(node, address, peers=peers)
        return proxies[address]

    def change(settings: Settings) -> Settings:
        # A node listens at its own address, and says that it is found at its proxy: so both directions go through one.
        own = settings.raft.peers[settings.node.id]
        peers = {node: proxied(node, address, peers=True) for node, address in settings.raft.peers.items()}
        return msgspec.structs.replace(
            settings,
            node=msgspec.structs.replace(
                settings.node, advertise=proxied(settings.node.id, settings.node.listen, peers=False)
            ),
            raft=msgspec.structs.replace(settings.raft, peers=peers, peer_listen=own),
        )

    return change


async def _watch_deaths(cluster: LocalCluster) -> None:
    async for child in cluster.deaths:
        raise ChaosFinding(child.how_it_ended())


async def _within(failure: str, act: Callable[[], Awaitable[object]]) -> None:
    try:
        with trio.fail_after(RECOVERY_S):
            await act()
    except trio.TooSlowError as slow:
        detail = f": {slow}" if str(slow) else ""
        raise ChaosFinding(f"{failure} within {RECOVERY_S:g} s after the faults{detail}") from slow


def _first_of(group: BaseExceptionGroup[BaseException]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


def kinds_in_order(fired: dict[str, int]) -> list[tuple[str, int]]:
    """Every kind of fault with how often it took effect."""
    return [(kind, fired.get(kind, 0)) for kind in FAULT_KINDS]
