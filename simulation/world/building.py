"""Groups of brokers, name servers and clients in one deterministic world, put together as a plan says.

Everything in the world draws from random streams that the plan's seed fixes, and events happen in the order that
`scheduler` gives, so the same plan and code give the same bytes of trace, in any process. The order in which things are
made here is part of that: who is made first draws first.
"""

import traceback
from collections.abc import Callable
from typing import Final, TypeVar

from broker.replica.inner_limits import InnerLimits
from broker.settings.tables import (
    BrokerSettings,
    LimitSettings,
    NodeSettings,
    RaftSettings,
    RetentionSettings,
    Settings,
    StorageSettings,
)
from broker.trace import TraceWriter
from log.formats.loops import PURE
from log.options import StoreOptions
from simulation.faults.operations import EARLIER_RELEASE
from simulation.journal import Journal, Violation
from simulation.judges.client_judge import ClientWriter
from simulation.judges.monitor import Monitor, ReplicaWriter
from simulation.judges.power_losses import DataLoss
from simulation.judges.several_groups import GroupJudges
from simulation.machines.broker_host import BrokerHost, Surroundings
from simulation.machines.client_host import ClientHost
from simulation.machines.client_runtime import ClientRuntime
from simulation.machines.clock import HostClock
from simulation.machines.name_server_host import NameServerHost
from simulation.machines.network import Network
from simulation.plans.plan import Fault, Limits, Plan
from simulation.randomness import Random, Stream, stream
from simulation.scheduler import SECOND, Scheduler
from simulation.workload import ACTORS
from simulation.workload.actor import Actor
from simulation.workload.context import Context, Invariant, Wishes, WorldFacts
from simulation.workload.order import LOCK_TTL_MS
from simulation.workload.retry import DELAY_LEVELS_S
from simulation.workload.tenant import BODY_BYTES_MAX
from simulation.workload.transact import CHECK_INTERVAL_MS, CHECKS_MAX
from simulation.world.group import WorldGroup, make_group
from simulation.world.traces import Traces

AnyInvariant = TypeVar("AnyInvariant", bound=Invariant)

_NAME_SERVERS: Final = 2
_PLACES_OF_A_PROCESS: Final = 4
"""A client has a connection or two, and some that have ended are not known to have where the network is cut."""
_FILE_OF: Final = "file of "
REGISTRATION_SECRET: Final = "a secret of the brokers"


class World:
    """All that exists in a run. `running.run_world` runs it, once."""

    def __init__(self, plan: Plan, *, keep_traces: bool = False) -> None:
        self.plan = plan
        self.interrupted = False
        self._fixed_by = f"{plan.seed}"
        self._streams: list[tuple[str, Stream]] = []
        """(name, stream) in the order in which they were made."""
        self._of_faults: list[tuple[str, Stream]] = []
        """Those from which only faults draw, in a plan that keeps streams apart."""
        self.scheduler = Scheduler()
        self.traces = Traces(plan.seed, keep=keep_traces)
        driver = TraceWriter(self.traces.sink("driver"), self.traces.header("driver", "driver"))
        self.traces.add(driver)
        self.journal = Journal(self.scheduler, driver)
        self.network = Network(self.scheduler, self.apart_or(self.random("network")), self.journal.fired)
        # Their machines are made below: these tell the judges what happens, and the judges must know the members.
        self.groups = [
            make_group(number, plan, self.scheduler, self.network, self.journal, self.random)
            for number in range(plan.groups)
        ]
        self.judges = GroupJudges({group.name: group.judge for group in self.groups})
        first = self.groups[0]
        self.monitor, self.model, self.judge = first.monitor, first.model, first.judge
        self.brokers, self.members, self.losses = first.brokers, first.members, first.losses
        # Invariants come before the machines that they watch: name servers tell of their first start, too.
        self.context = self._make_context()
        self.invariants = self.context.invariants
        self._make_invariants()
        self.name_servers = self._make_name_servers()
        for group in self.groups:
            self._make_brokers(group)
        self.clients = self._make_clients()
        self.stages = [
            group.make_stage(
                self.scheduler,
                self.network,
                self.journal,
                self.name_servers,
                self.clients,
                self.context.wishes,
                plan,
            )
            for group in self.groups
        ]
        self.stage = self.stages[0]
        if plan.chance is not None:
            self._keep_streams_apart(plan.chance)

    @property
    def data_loss(self) -> DataLoss | None:
        """The loss to power failures that has ended the run."""
        return next((group.losses.data_loss for group in self.groups if group.losses.data_loss), None)

    def interrupt(self) -> None:
        """Ends the run behind the present event, because nobody waits for it any more. For signal handlers, too."""
        self.interrupted = True
        self.scheduler.stopped = True

    def invariant(self, kind: type[AnyInvariant]) -> AnyInvariant:
        """Returns the invariant of that kind."""
        return self.context.invariant(kind)

    def random(self, name: str) -> Stream:
        """Returns the random stream with that name of this world."""
        made = stream(f"{self._fixed_by} {name}")
        self._streams.append((name, made))
        return made

    def apart_or(self, shared: Random) -> Callable[[str], Random]:
        """Returns what makes streams by name in a plan that keeps them apart (`Plan.chance`); in others, what returns
        the shared one.
        """
        return self.random if self.plan.chance is not None else lambda name: shared

    def _keep_streams_apart(self, chance: int) -> None:
        """Has each stream go on as one that its name and the number fix; what the world was made of stays as it is."""
        self._fixed_by = f"{self.plan.seed} {chance}"
        for name, one in self._streams:
            one.go_on_as(f"{self._fixed_by} {name}")
        self._of_faults = [(name, one) for name, one in self._streams if name.startswith(_FILE_OF)]
        for host in [host for group in self.groups for host in group.brokers]:
            host.fault_random = faults = self.random(f"faults of {host.name}")
            self._of_faults += [(host.name, faults), (f"disk of {host.name}", host.disk_random)]

    def draw_for(self, fault: Fault) -> None:
        """In a plan that keeps streams apart, machines and disks draw what this fault fixes, whatever came before."""
        for name, one in self._of_faults:
            one.go_on_as(f"{self._fixed_by} {fault.kind} {fault.time_ns} {name}")

    def _rarely_small(self, name: str, usual: int) -> int:
        """Draws a bound of what a turn does: in one of four worlds nearly nothing.

        The stream is not one of `_streams`: a bound must stay as it is when the world goes on as another seed.
        """
        return stream(f"{self.plan.seed} {name}").choice((1, 5, *(6 * (usual,))))

    def _checks(self) -> tuple[int, int]:
        """Returns how often a producer is asked about a transaction, and every how many ms.

        Where somebody decides late it is mostly soon too late.
        """
        usual = (CHECKS_MAX, CHECK_INTERVAL_MS)
        if "waverer" not in self.plan.actors:
            return usual
        return stream(f"{self.plan.seed} transaction checks").choice((usual, (2, 500), (3, 200), (5, 1000)))

    def go_on_as(self, seed: int) -> None:
        """Has another seed fix all that the world draws from here on."""
        for number, (_, one) in enumerate(self._streams):
            one.go_on_as(f"fork {seed} {number}")

    # ---- machines ------------------------------------------------------------------------------------

    def _now_ns(self) -> int:
        return self.scheduler.now_ns

    def _clock(self, name: str) -> HostClock:
        random = self.random(f"clock {name}")
        return HostClock(
            self.scheduler,
            zero_ns=random.randrange(SECOND, 1_000_000 * SECOND),
            rate_ppm=random.randrange(-200, 200),
            wall_offset_ms=random.randrange(-500, 500),
        )

    def _make_name_servers(self) -> list[NameServerHost]:
        return [
            NameServerHost(
                self.network,
                self.journal,
                self.context.name_server_watchers,
                f"ns{number}",
                _name_server_ip(number),
                self._clock(f"ns{number}"),
                self.random(f"{_FILE_OF}ns{number}"),
                REGISTRATION_SECRET,
                _connections_max(self.plan),
            )
            for number in range(_NAME_SERVERS)
        ]

    def _make_brokers(self, group: WorldGroup) -> None:
        plan = self.plan
        machines = range(plan.nodes + (0 if group.number else plan.shape.spares))
        ips = {group.node_names(machine): group.ip(machine) for machine in machines}
        # The group begins without the spare machines, which operators add to it.
        peers = {name: f"{ips[name]}:40911" for name in list(ips)[: plan.nodes]}
        group.model.voters = tuple(peers)
        options, limits = (
            self._store_options(),
            _inner_limits(
                plan.limits,
                state_rows_at_once=self.random("state rows at once").choice((1, 5, 1000)),
                held_at_once=self.random("held at once").choice((1, 5, 100)),
                told_a_turn=self.random("told a turn").choice((1, 5, 125)),
                work_at_once=self._rarely_small("work at once", InnerLimits().work_at_once),
                relayed_work_a_turn=self._rarely_small("relayed work", InnerLimits().relayed_work_a_turn),
            ),
        )

        def replica_writer(host: BrokerHost) -> TraceWriter:
            return self._replica_writer(group.monitor, host)

        surroundings = Surroundings(
            self.scheduler, self.network, self.journal, group.monitor, group.losses, replica_writer
        )
        for name in ips:
            settings = self._broker_settings(group, name, ips[name], peers)
            clock, random = self._clock(name), self.random(f"broker {name}")
            host = BrokerHost(surroundings, name, ips[name], settings, options, limits, clock, random)
            host.in_service = name in peers
            if any(fault.kind == "release" and fault.group == group.number for fault in plan.faults):
                host.release = EARLIER_RELEASE  # to be upgraded while it serves
            group.brokers.append(host)

    def _store_options(self) -> StoreOptions:
        """Returns options with small files and tables, so that a run sees them roll, fill up and go."""
        plan, limits = self.plan, self.plan.limits
        return StoreOptions(
            data_file_bytes=plan.data_file_bytes,
            index_file_units=limits.log_index_units,
            prepare_ahead_bytes=plan.data_file_bytes // 2,
            prepare_step_bytes=4096,
            zero_gap_bytes=plan.data_file_bytes,
            consume_queue_file_units=limits.queue_units,
            index_slots=limits.index_slots,
            index_entries=limits.index_entries,
            timer_run_units=limits.timer_run_units,
            data_mappings=limits.log_mappings,
            consume_queue_mappings=limits.queue_mappings,
            index_mappings=limits.index_mappings,
            dispatch_files=limits.dispatch_files,
            dispatch_keys=limits.dispatch_keys,
            delay_levels_ms=tuple(1000 * seconds for seconds in DELAY_LEVELS_S),
            write_buffer=self.random("write buffer").random() < 0.25,
            hot_bytes=2 * plan.data_file_bytes,
            dispatch_entries=self.random("dispatch entries").choice((1, 2, 5, 4096)),
            batch_messages=self.random("batch messages").randint(1, 8),
            loops=PURE,  # a seed means the same wherever it runs, whatever is installed there
        )

    def _broker_settings(self, group: WorldGroup, name: str, ip: str, peers: dict[str, str]) -> Settings:
        plan = self.plan
        return Settings(
            node=NodeSettings(
                group=group.name,
                id=name,
                listen=f"{ip}:10911",
                name_servers=tuple(self.context.name_servers),
                registration_secret=REGISTRATION_SECRET,
                linger_s=self.random("linger").choice((0, 0, 1, 4)),
            ),
            raft=RaftSettings(
                peers=peers,
                peer_secret="a secret of the group",
                preferred_leaders=(group.node_names(0),) if group.number or plan.shape.prefers_first else (),
                peer_window_bytes=plan.limits.window_bytes,
            ),
            # A topic made by a send has as many queues as the administrator makes: fewer would hide messages.
            # Producers are asked about transactions soon and often.
            broker=BrokerSettings(
                # With several groups the queues of a topic would change when the second group has a first message.
                auto_create_topics=plan.groups == 1,
                default_queue_count=plan.queues,
                transaction_timeout_ms=1000,
                transaction_check_interval_ms=self._checks()[1],
                transaction_check_max=self._checks()[0],
                order_lock_ttl_ms=LOCK_TTL_MS,
                delay_levels=" ".join(f"{seconds}s" for seconds in DELAY_LEVELS_S),
            ),
            storage=StorageSettings(
                flush=plan.flush,
                data_file_bytes=plan.data_file_bytes,
                max_message_bytes=BODY_BYTES_MAX,
                scrub_bytes_per_second=self._scrub_rate(),
                scrub_interval_s=1,
            ),
            retention=RetentionSettings(
                interval_ms=1000,
                delete_hours=_delete_hours(plan.limits),
                reserved_hours=plan.limits.reserved_hours,
            ),
            limits=LimitSettings(
                max_pending_proposals=plan.limits.pending_messages,
                max_pending_proposal_bytes=plan.limits.pending_bytes,
                max_open_transactions=plan.limits.open_transactions,
                max_held_pulls=plan.limits.held_pulls,
                max_connections=_connections_max(plan),
                max_topics=plan.limits.topics,
                max_groups=plan.limits.groups,
                max_stored_offsets=plan.limits.stored_offsets,
            ),
        )

    def _scrub_rate(self) -> int:
        """Returns how fast nodes scrub: not at all where nothing is damaged, so that those runs stay as they are."""
        if not any(fault.kind == "damage" for fault in self.plan.faults):
            return 0
        return self.random("scrub").choice((512, 1024, 4096)) * 1024

    def _replica_writer(self, monitor: Monitor, host: BrokerHost) -> TraceWriter:
        writer = ReplicaWriter(
            self.traces.sink(host.name),
            self.traces.header("replica", host.name, group=host.settings.node.group),
            monitor,
            host,
            self._now_ns,
        )
        self.traces.add(writer)
        return writer

    # ---- clients -------------------------------------------------------------------------------------

    def _make_context(self) -> Context:
        plan = self.plan
        return Context(
            seed=plan.seed,
            facts=WorldFacts(
                nodes=plan.nodes,
                fewest_voters=plan.shape.fewest_voters or plan.nodes,
                most_learners=plan.shape.most_learners,
                queues=plan.queues,
                queues_per_command=plan.limits.queues_per_command,
                hears_of_all_clients=plan.limits.unhandled == Limits().unhandled,
                kept_ms=plan.limits.reserved_hours * plan.limits.hour_ms,
                checks_max=self._checks()[0],
            ),
            think_ms=plan.think_ms,
            calm_ns=plan.calm_ns,
            name_servers=[f"{_name_server_ip(number)}:9876" for number in range(_NAME_SERVERS)],
            scheduler=self.scheduler,
            journal=self.journal,
            groups=[group.name for group in self.groups],
            model=self.model,
            judge=self.judge,
            judges=self.judges,
            members=self.members,
            wishes=Wishes(frozenset(fault.kind for fault in plan.faults)),
        )

    def _make_invariants(self) -> None:
        kinds = [ACTORS[name].invariant for name in self.plan.actors]
        self.invariants += [kind(self.context) for kind in dict.fromkeys(kinds) if kind is not None]
        self.model.listeners.extend(self.invariants)

    def _make_clients(self) -> list[ClientHost]:
        clients: list[ClientHost] = []
        for actor_name in self.plan.actors:
            actor = ACTORS[actor_name]
            for number in range(actor.processes(self.plan.producers)):
                clients.append(
                    self._make_client(f"{actor_name}{number}", f"10.0.2.{len(clients) + 1}", actor)
                )
        return clients

    def _make_client(self, name: str, ip: str, actor: Actor) -> ClientHost:
        async def main(runtime: ClientRuntime, writer: TraceWriter) -> None:
            await actor.main(self.context, runtime, writer)

        def new_writer(process: str) -> ClientWriter:
            self.traces.histories.append(process)
            writer = ClientWriter(
                self.traces.sink(process),
                self.traces.header("client", process),
                self.judges.of,
                self._now_ns,
                at_most_once=actor.at_most_once,
            )
            self.traces.add(writer)
            return writer

        random = self.random(f"client {name}")
        return ClientHost(
            self.network, name, ip, self._clock(name), random, main, new_writer, self._client_failed
        )

    def _client_failed(self, name: str, error: BaseException) -> None:
        """Notes what a client's main task raised; what several of its tasks raised at once comes as a group."""
        while isinstance(error, BaseExceptionGroup):
            # One that is found first ends the run anyhow.
            error = error.exceptions[0]
        if not isinstance(error, Violation):
            error = Violation("a client fails", name, "".join(traceback.format_exception(error)))
        self.journal.found(error)


def _delete_hours(limits: Limits) -> tuple[int, ...]:
    """Returns the hours in which age deletes: of a day of short hours all."""
    return tuple(range(0, 24, 2 if limits.hour_ms == Limits().hour_ms else 1))


def _connections_max(plan: Plan) -> int:
    """Returns how many connections of clients a server takes: where strangers come, some for each other client."""
    if "stranger" not in plan.actors:
        return LimitSettings().max_connections
    return _PLACES_OF_A_PROCESS * sum(ACTORS[name].processes(plan.producers) for name in plan.actors)


def _inner_limits(
    limits: Limits,
    *,
    state_rows_at_once: int,
    held_at_once: int,
    told_a_turn: int,
    work_at_once: int,
    relayed_work_a_turn: int,
) -> InnerLimits:
    return InnerLimits(
        append_bytes_max=limits.append_bytes,
        snapshot_interval_entries=limits.snapshot_entries,
        catch_up_lag_entries=limits.catch_up_entries,
        pull_bytes_max=limits.pull_bytes,
        hour_ms=limits.hour_ms,
        deliveries_max=limits.deliveries,
        delivery_bytes_max=limits.delivery_bytes,
        scanned_units=limits.scanned_units,
        held_requests_max=limits.held_requests,
        forwarded_max=limits.forwarded,
        unhandled_max=limits.unhandled,
        queues_per_command=limits.queues_per_command,
        transactions_at_once=limits.transactions_at_once,
        operations_waiting_max=limits.operations_waiting,
        unused_offsets_look_ms=limits.unused_offsets_look_ms,
        writers_kept_ms=limits.writers_kept_ms,
        delays_idle_ms=limits.delays_idle_ms,
        backup_lease_ms=limits.backup_lease_ms,
        state_rows_at_once=state_rows_at_once,
        held_at_once=held_at_once,
        told_a_turn=told_a_turn,
        work_at_once=work_at_once,
        relayed_work_a_turn=relayed_work_a_turn,
    )


def _name_server_ip(number: int) -> str:
    return f"10.0.1.{number + 1}"
