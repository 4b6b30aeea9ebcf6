"""A group of brokers, name servers and clients in one deterministic world, run by a plan.

    result = run_plan(draw_plan(seed=7))

Everything in the world draws from random streams that the plan's seed fixes, and events happen in the order that
`scheduler` gives, so the same plan and code give the same bytes of trace, in any process. What is found first ends the
run: what follows a broken invariant says little.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeVar

import structlog

from broker.settings.tables import (
    BrokerConfig,
    BrokerSettings,
    NodeSettings,
    RaftSettings,
    RetentionSettings,
    StorageSettings,
)
from broker.trace import TraceHeader, TraceWriter
from broker.trace.format import Source
from log.options import StoreOptions
from simulation.broker_host import BrokerHost
from simulation.client_host import ClientHost
from simulation.client_judge import ClientJudge, ClientWriter
from simulation.clock import HostClock
from simulation.faults import heal_everything, inject
from simulation.group_model import Violation
from simulation.members import Members
from simulation.monitor import Monitor, ReplicaWriter
from simulation.name_server_host import NameServerHost, NameServerWatcher
from simulation.network import Link, Network
from simulation.plan import Plan
from simulation.power_losses import DataLoss
from simulation.scheduler import SECOND, Scheduler
from simulation.workload import ACTORS
from simulation.workload.actor import Invariant
from simulation.workload.names import TOPIC
from simulation.workload.order import LOCK_TTL_MS
from simulation.workload.retry import DELAY_LEVELS_S
from simulation.workload.transact import CHECKS_MAX

__all__ = ["JudgeHistory", "Result", "World", "run_plan"]

JudgeHistory = Callable[[Mapping[str, bytes]], str]
"""From clients' traces by name to what is wrong with them, "" for nothing: a checker that this room may not import."""

AnyInvariant = TypeVar("AnyInvariant", bound=Invariant)

_TRANSCRIPT_LINES: Final = 400
_SENDERS: Final = ("producer", "repeater", "careful")
"""Actors whose sends `ClientJudge` counts."""
_SPARE_MACHINES: Final = 1
"""Beside the group's first members, for the one that joins."""
_FLUSH_TRACES_NS: Final = SECOND
_LOAD_STOPS_BEFORE_END_NS: Final = 6 * SECOND
_RECOVERY_NS: Final = 12 * SECOND
"""From the end of all faults to the first acknowledged message, at most: two elections that split and a route poll."""
_LAST_ENTRIES_NS: Final = SECOND
"""From the end of the run to the moment in which every node has applied everything, at most."""


@dataclass(slots=True)
class Result:
    """What a run came to."""

    plan: Plan
    violation: Violation | None
    simulated_ns: int
    trace_digest: str
    fault_counts: dict[str, int]
    events: int
    committed: int
    acknowledged: int
    read: int
    elections: int
    work_counts: dict[str, int]
    """What actors have done, by kind: an actor that never gets anywhere checks nothing."""
    transcript: list[str]
    states: list[str]
    traces: dict[str, bytes] = field(default_factory=dict)
    """Trace files by name, if they were kept."""
    data_loss: DataLoss | None = None
    """What power failures took from a majority, as async flush allows: it ended the run, and is no finding."""


class World:
    """All that exists. `run` once."""

    def __init__(
        self, plan: Plan, *, keep_traces: bool = False, judge_history: JudgeHistory | None = None
    ) -> None:
        self.plan = plan
        self.scheduler = Scheduler()
        self.fault_counts: dict[str, int] = {}
        self.network = Network(self.scheduler, self._random("network"), self.fired)
        self.load_stopped = False
        self.topic_changes_wanted = 0
        self.transfers_wanted = 0
        self.member_changes_wanted = 0
        self.acting = ""
        """The broker whose code runs: whose log it is."""
        self.finding: Violation | None = None
        self._interrupted = False
        self.data_loss: DataLoss | None = None
        self.transcript: deque[str] = deque(maxlen=_TRANSCRIPT_LINES)
        self._keep_traces = keep_traces or judge_history is not None
        self._judge_history = judge_history
        self._traces: dict[str, list[bytes]] = {}
        self._digests: dict[str, Any] = {}
        self.histories: list[str] = []
        """Names of the clients' traces."""
        self._writers: list[TraceWriter] = []
        self._driver = TraceWriter(self._sink("driver"), self._header("driver", "driver"))
        self._writers.append(self._driver)
        self.monitor = Monitor(
            lambda: self.scheduler.now_ns,
            self.note,
            sync_flush=plan.flush == "sync",
            random=self._random("monitor"),
        )
        self.judge = ClientJudge(self.monitor.model, lambda: self.scheduler.now_ns)
        self._acknowledged_at_calm = 0
        self._consumed: dict[int, set[int]] = {}
        """Offsets that consumers' applications got, by queue."""
        self.work_counts: dict[str, int] = {}
        self.name_server_watchers: list[NameServerWatcher] = []
        self._invariants = self._make_invariants()
        self.monitor.model.listeners.extend(self._invariants)

        self.name_servers = [
            NameServerHost(
                self,
                f"ns{number}",
                f"10.0.1.{number + 1}",
                self._clock(f"ns{number}"),
                self._random(f"file of ns{number}"),
            )
            for number in range(2)
        ]
        self.name_server_addresses = [name_server.address for name_server in self.name_servers]
        self.brokers = self._make_brokers()
        self.members = Members(self)
        self.clients = self._make_clients()
        self.host_names = [broker.name for broker in self.brokers]
        self.host_names += [name_server.name for name_server in self.name_servers]
        self.host_names += [client.name for client in self.clients]

    # ---- making --------------------------------------------------------------------------------------

    def _random(self, name: str) -> Random:
        # Text seeds are hashed with SHA-512 by the random module, not with Python's own changing hash.
        return Random(f"{self.plan.seed} {name}")

    def _clock(self, name: str) -> HostClock:
        random = self._random(f"clock {name}")
        return HostClock(
            self.scheduler,
            zero_ns=random.randrange(SECOND, 1_000_000 * SECOND),
            rate_ppm=random.randrange(-200, 200),
            wall_offset_ms=random.randrange(-500, 500),
        )

    def _make_brokers(self) -> list[BrokerHost]:
        plan = self.plan
        names = [f"n{number}" for number in range(plan.nodes + _SPARE_MACHINES)]
        ips = {name: f"10.0.0.{number + 1}" for number, name in enumerate(names)}
        peers = {name: f"{ips[name]}:40911" for name in names[: plan.nodes]}
        self.monitor.model.voters = tuple(peers)
        options = StoreOptions(
            data_file_bytes=plan.data_file_bytes,
            index_file_units=256,
            prepare_ahead_bytes=plan.data_file_bytes // 2,
            prepare_step_bytes=4096,
            zero_gap_bytes=plan.data_file_bytes,
            consume_queue_file_units=64,
            index_slots=61,
            index_entries=200,
            delay_levels_ms=tuple(1000 * seconds for seconds in DELAY_LEVELS_S),
            write_buffer=self._random("write buffer").random() < 0.25,
            hot_bytes=2 * plan.data_file_bytes,
        )
        hosts = []
        for name in names:
            config = BrokerConfig(
                node=NodeSettings(
                    id=name, listen=f"{ips[name]}:10911", name_servers=tuple(self.name_server_addresses)
                ),
                raft=RaftSettings(peers=peers),
                # A topic made by a send has as many queues as the administrator makes: fewer would hide messages.
                # Producers are asked about transactions soon and often.
                broker=BrokerSettings(
                    default_queue_count=plan.queues,
                    transaction_timeout_ms=1000,
                    transaction_check_interval_ms=1000,
                    transaction_check_max=CHECKS_MAX,
                    order_lock_ttl_ms=LOCK_TTL_MS,
                    delay_levels=" ".join(f"{seconds}s" for seconds in DELAY_LEVELS_S),
                ),
                storage=StorageSettings(
                    flush=plan.flush, data_file_bytes=plan.data_file_bytes, max_message_bytes=4096
                ),
                retention=RetentionSettings(interval_ms=1000, delete_hours=tuple(range(0, 24, 2))),
            )
            clock, random = self._clock(name), self._random(f"broker {name}")
            host = BrokerHost(self, name, ips[name], config, options, clock, random)
            host.in_service = name in peers
            hosts.append(host)
        return hosts

    def _make_clients(self) -> list[ClientHost]:
        clients: list[ClientHost] = []
        for actor_name in self.plan.actors:
            actor = ACTORS[actor_name]
            for number in range(actor.processes(self.plan)):
                name = f"{actor_name}{number}"
                clients.append(
                    ClientHost(
                        self,
                        name,
                        f"10.0.2.{len(clients) + 1}",
                        self._clock(name),
                        self._random(f"client {name}"),
                        actor.main,
                        at_most_once=actor.at_most_once,
                    )
                )
        return clients

    def _make_invariants(self) -> list[Invariant]:
        kinds = [ACTORS[name].invariant for name in self.plan.actors]
        return [kind(self) for kind in dict.fromkeys(kinds) if kind is not None]

    # ---- traces and transcript -----------------------------------------------------------------------

    def _header(self, source: Source, process: str) -> TraceHeader:
        return TraceHeader(source, process, f"simulation {self.plan.seed}", 0)

    def _sink(self, name: str) -> Callable[[bytes], None]:
        digest = self._digests.setdefault(name, hashlib.sha256())
        kept = self._traces.setdefault(name, [])

        def write(data: bytes) -> None:
            digest.update(data)
            if self._keep_traces:
                kept.append(data)

        return write

    def replica_writer(self, host: BrokerHost) -> TraceWriter:
        """A trace writer for a new process of a broker."""
        writer = ReplicaWriter(
            self._sink(host.name),
            self._header("replica", host.name),
            self.monitor,
            host,
            lambda: self.scheduler.now_ns,
        )
        self._writers.append(writer)
        return writer

    def client_writer(self, process: str, *, at_most_once: bool) -> ClientWriter:
        """A trace writer for a new client process."""
        self.histories.append(process)
        writer = ClientWriter(
            self._sink(process),
            self._header("client", process),
            self.judge,
            lambda: self.scheduler.now_ns,
            at_most_once=at_most_once,
        )
        self._writers.append(writer)
        return writer

    def note(self, node: str, text: str) -> None:
        """Adds a line to the transcript."""
        self.transcript.append(f"{self.scheduler.now_ns / SECOND:11.6f}  {node:<8} {text}")

    def fired(self, kind: str) -> None:
        """A fault took effect."""
        self.fault_counts[kind] = self.fault_counts.get(kind, 0) + 1

    def did(self, work: str) -> None:
        """An actor has done something that an invariant depends on; counted, so that a report shows it."""
        self.work_counts[work] = self.work_counts.get(work, 0) + 1

    def invariant(self, kind: type[AnyInvariant]) -> AnyInvariant:
        """The invariant of that kind, for its actor."""
        return next(invariant for invariant in self._invariants if isinstance(invariant, kind))

    def record_fault(self, kind: str, target: str, detail: str) -> None:
        """Notes a fault in transcript and trace."""
        self.note(target, f"FAULT {kind} {detail}".rstrip())
        self._driver.fault(self.scheduler.now_ns, kind, (target,), detail)

    # ---- findings ------------------------------------------------------------------------------------

    def found(self, violation: Violation) -> None:
        """An invariant does not hold: the run ends after this event."""
        if self.finding is None:
            self.finding = violation
            self.note(violation.node, f"VIOLATION {violation}")
            self.scheduler.stopped = True

    def violation(self, invariant: str, node: str, detail: str) -> None:
        """As `found`."""
        self.found(Violation(invariant, node, detail))

    def power_failed(self, host: BrokerHost, before: dict[int, bytes], fault: str) -> None:
        """A machine went dark. What the group lost is looked at when all that go dark with it have."""
        losses = self.monitor.power_losses
        try:
            losses.power_failed(host, before, fault, self.scheduler.now_ns)
        except Violation as violation:
            self.found(violation)
        else:
            self.scheduler.after(0, self.look_for_data_loss)

    def pages_left(self, host: BrokerHost, before: dict[int, bytes]) -> None:
        """A process has ended behind a failed flush, maybe with the only copy of something."""
        losses = self.monitor.power_losses
        try:
            losses.pages_left(host, before, self.scheduler.now_ns)
        except Violation as violation:
            self.found(violation)
        else:
            self.scheduler.after(0, self.look_for_data_loss)

    def look_for_data_loss(self) -> None:
        """What no voter holds any more never comes back: there is nothing left to wait for, and the run ends."""
        losses, model = self.monitor.power_losses, self.monitor.model
        lost = losses.data_loss()
        if lost is not None and self.data_loss is None:
            first_index, nodes = lost
            self.data_loss = DataLoss(
                first_index,
                model.last_index + 1 - first_index,
                self.judge.acknowledged_from(model.positions[first_index]),
                nodes,
            )
            self._end_with_loss(self.data_loss)

    def _look_for_vote_loss(self) -> bool:
        """Whether the group waits in vain for a leader, and need not have one."""
        losses = self.monitor.power_losses
        if self.data_loss is not None or self.leader() is not None:
            return False
        processes = [host.process for host in self.members.in_service()]
        rafts = {process.host.name: process.node.replica.raft for process in processes if process is not None}
        if any(raft.leader is not None for raft in rafts.values()):
            return False
        self.data_loss = losses.vote_loss({name: raft.recovering for name, raft in rafts.items()})
        if self.data_loss is not None:
            self._end_with_loss(self.data_loss)
        return self.data_loss is not None

    def _end_with_loss(self, loss: DataLoss) -> None:
        self.note("group", f"DATA LOST {loss.describe()}")
        self.scheduler.stopped = True

    def client_failed(self, name: str, error: BaseException) -> None:
        """A client's main task raised; what several of its tasks raised at once comes as a group."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, Violation):
            self.found(error)
        else:
            self.violation("a client fails", name, "".join(traceback.format_exception(error)))

    # ---- what faults and clients ask -----------------------------------------------------------------

    def links_between(self, one: str, other: str) -> tuple[Link, Link]:
        """Both directions."""
        return self.network.link(one, other), self.network.link(other, one)

    def broker(self, name: str) -> BrokerHost:
        """The host of a broker."""
        return next(host for host in self.brokers if host.name == name)

    def leader(self) -> BrokerHost | None:
        """The host that serves, if there is exactly one."""
        serving = [
            host for host in self.brokers if host.process is not None and host.process.node.replica.serving
        ]
        return serving[0] if len(serving) == 1 else None

    def is_calm(self) -> bool:
        """Whether the time of faults is over."""
        return self.scheduler.now_ns >= self.plan.calm_ns

    def is_settled(self) -> bool:
        """Whether all nodes follow one leader and hold the same log, committed and durable, and no flush is to fail.

        And none of them is recovering: what it may vote for it does not know yet (raft/recovery.py, What is claimed).
        """
        leader = self.leader()
        if leader is None or leader.process is None:
            return False
        raft = leader.process.node.replica.raft
        for host in self.members.in_service():
            if host.process is None or host.paused or host.disk.failing_flushes:
                return False
            replica = host.process.node.replica
            if replica.raft.recovering is not None:
                return False
            state = (
                replica.raft.term,
                replica.raft.leader,
                replica.raft.log_terms.last_index,
                replica.applied_index,
            )
            if state != (raft.term, leader.name, raft.commit_index, raft.commit_index):
                return False
            if replica.raft.persisted_index != raft.commit_index:
                return False
        return raft.commit_index == self.monitor.model.last_index

    def operated(self, kind: str, node: str, detail: str) -> None:
        """An operator's request was granted."""
        self.fired(kind)
        self.record_fault(kind, node, detail)

    def consumed(self, queue_id: int, offset: int) -> None:
        """A consumer's application got a message."""
        self._consumed.setdefault(queue_id, set()).add(offset)

    # ---- running -------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Whoever waits for the run does so no longer: it ends behind the present event. For signal handlers, too."""
        self._interrupted = True
        self.scheduler.stopped = True

    def run(self) -> Result:
        """The whole plan. Never raises for what it finds. Raises KeyboardInterrupt if it was interrupted."""
        plan, scheduler = self.plan, self.scheduler
        random = self._random("starts")
        for name_server in self.name_servers:
            name_server.start()
        for host in self.brokers:
            scheduler.at(random.randrange(SECOND), host.start)
        for client in self.clients:
            scheduler.at(random.randrange(2 * SECOND), client.start)
        for fault in plan.faults:
            scheduler.at(fault.time_ns, inject, self, fault)
        scheduler.at(plan.calm_ns, self._calm)
        scheduler.at(plan.calm_ns + _RECOVERY_NS, self._check_recovered)
        scheduler.at(plan.end_ns - _LOAD_STOPS_BEFORE_END_NS, self._stop_load)
        scheduler.at(_FLUSH_TRACES_NS, self._flush_traces)
        client_log = logging.getLogger("trivet.client")
        handler = _NoteHandler(self)
        client_log.addHandler(handler)
        propagated, client_log.propagate = client_log.propagate, False
        previous = structlog.get_config()
        structlog.configure(processors=[self._log_event])
        collects = gc.isenabled()
        gc.disable()  # a run's cyclic garbage is small, and looking for it takes a tenth of the time
        try:
            scheduler.run_until(plan.end_ns)
            if self.data_loss is None and not self._interrupted:
                self._await_last_entries()
            if self.finding is None and not self._interrupted:
                self._check_end()
        except Violation as violation:
            self.found(violation)
        except (
            Exception
        ):  # a mistake in the simulator is found like any other, with its plan and what came before
            self.violation("the simulator fails", "world", traceback.format_exc())
        finally:
            states = self._states()
            structlog.configure(**previous)
            client_log.removeHandler(handler)
            client_log.propagate = propagated
            self._end()
            if collects:
                gc.enable()
        if self._interrupted:
            raise KeyboardInterrupt
        return self._result(states)

    def _log_event(self, _: Any, level: str, event: Any) -> Any:
        error = sys.exc_info()[1]
        if isinstance(error, Violation):
            self.found(error)
        elif error is not None and event.get("event") == "request failed":
            self.violation("a handler fails", str(event.get("client")), traceback.format_exc())
        if event.get("event") != "role":  # noted by the monitor already
            text = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
            self.note(self.acting, f"log {level}: {event.get('event')} {text}".rstrip())
        raise structlog.DropEvent

    def _flush_traces(self) -> None:
        for writer in self._writers:
            writer.flush()
        self.scheduler.after(_FLUSH_TRACES_NS, self._flush_traces)

    def _calm(self) -> None:
        heal_everything(self)
        self.note("world", "calm: all faults end")
        self._acknowledged_at_calm = self.judge.acknowledged

    def _stop_load(self) -> None:
        self.load_stopped = True
        heal_everything(self)  # a node may have found damage on its disk since

    def _check_recovered(self) -> None:
        heal_everything(self)
        if self._look_for_vote_loss():
            return
        # A plan that was shrunk to less has nothing that could be acknowledged.
        sends = any(name in self.plan.actors for name in _SENDERS)
        if sends and self.judge.acknowledged == self._acknowledged_at_calm:
            self.violation(
                "liveness",
                "group",
                f"no message acknowledged within {_RECOVERY_NS // SECOND} s after all faults",
            )

    def _await_last_entries(self) -> None:
        """What was committed in the last moment is on its way to those who must apply it, too."""
        scheduler, model = self.scheduler, self.monitor.model
        latest_ns = scheduler.now_ns + _LAST_ENTRIES_NS
        while self.finding is None and scheduler.now_ns < latest_ns:
            processes = [host.process for host in self._members_in_service()]
            if all(
                process and process.node.replica.applied_index == model.last_index for process in processes
            ):
                break
            scheduler.run_until(scheduler.now_ns + _LAST_ENTRIES_NS // 100)

    def _members_in_service(self) -> list[BrokerHost]:
        """Those that must hold everything in the end: a node that was removed holds what it had then."""
        return [host for host in self.members.in_service() if host.name in self.members.committed]

    def _check_end(self) -> None:
        """Everything must have come together; of a run that ended with a loss only what clients were told is judged."""
        if self.data_loss is None:
            self._check_nodes()
        self.judge.check_outcomes()
        if self._judge_history is not None:
            for writer in self._writers:
                writer.flush()
            problem = self._judge_history({name: b"".join(self._traces[name]) for name in self.histories})
            if problem:
                raise Violation("linearizability", "clients", problem)
        if self.data_loss is None:
            for invariant in self._invariants:
                invariant.check_end()

    def _check_nodes(self) -> None:
        """Every node has everything, and consumers have read it."""
        model = self.monitor.model
        for host in self._members_in_service():
            process = host.process
            if process is None:
                raise Violation("liveness", host.name, "it does not run at the end")
            applied = process.node.replica.applied_index
            if applied != model.last_index:
                raise Violation("liveness", host.name, f"applied {applied} of {model.last_index} at the end")
            self.monitor.check_store(host, process.node)
            for invariant in self._invariants:
                invariant.check_node(host, process.node)
        for (topic, queue_id), queue in model.queues.items():
            if topic == TOPIC and "consumer" in self.plan.actors:
                consumed = self._consumed.get(queue_id, ())
                begin = queue.first_kept(0, len(queue.keys), model.kept_from)
                missing = [offset for offset in range(begin, len(queue.keys)) if offset not in consumed]
                if missing:
                    raise Violation(
                        "liveness",
                        "consumers",
                        f"{topic}/{queue_id}: {len(missing)} of {len(queue.keys)} never read, {missing[0]} first",
                    )

    def state_of(self, host: BrokerHost) -> str:
        """What a node's replica is at, in one line for people."""
        process = host.process
        if process is None:
            failed = f", failed as {host.failed_as}" if host.failed_as else ""
            return f"down{', needs a new disk' if host.needs_new_disk else ''}{failed}"
        replica = process.node.replica
        raft = replica.raft
        return (
            f"{raft.role.value} of term {raft.term}, leader {raft.leader}, "
            f"log {raft.log_terms.first_index}..{raft.log_terms.last_index}, persisted {raft.persisted_index}, "
            f"commit {raft.commit_index}, applied {replica.applied_index}"
            f"{', serving' if replica.serving else ''}{', paused' if host.paused else ''}"
            f"{'' if raft.recovering is None else ', recovering ' + raft.recovering.value}"
            f", voters {' '.join(raft.configuration.voters)}, links {' '.join(replica.links)}"
        )

    def _states(self) -> list[str]:
        """Each node in one line, for a report."""
        lines = [f"{host.name}: {self.state_of(host)}" for host in self.brokers if host.in_service]
        model = self.monitor.model
        lines.append(
            f"group: voters {' '.join(model.voters)}, learners {' '.join(model.learners) or 'none'}, "
            f"committed up to {model.last_index}, {self.judge.acknowledged} messages acknowledged"
        )
        return lines

    def _end(self) -> None:
        for client in self.clients:
            client.kill()
        for writer in self._writers:
            writer.flush()

    def _result(self, states: list[str]) -> Result:
        total = hashlib.sha256()
        for name, digest in self._digests.items():
            total.update(f"{name} {digest.hexdigest()}\n".encode())
        return Result(
            plan=self.plan,
            violation=self.finding,
            simulated_ns=self.scheduler.now_ns,
            trace_digest=total.hexdigest(),
            fault_counts=self.fault_counts,
            events=self.scheduler.events_run,
            committed=self.monitor.model.last_index + 1,
            acknowledged=self.judge.acknowledged,
            read=self.judge.read,
            elections=self.monitor.elections,
            work_counts=self.work_counts,
            transcript=list(self.transcript),
            states=states,
            traces={name: b"".join(pieces) for name, pieces in self._traces.items()}
            if self._keep_traces
            else {},
            data_loss=self.data_loss if self.finding is None else None,
        )


class _NoteHandler(logging.Handler):
    """The client's log, into the transcript."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.note("client", record.getMessage())


def run_plan(plan: Plan, *, keep_traces: bool = False, judge_history: JudgeHistory | None = None) -> Result:
    """Runs a plan from beginning to end; `judge_history` has the last word on what clients were told."""
    return World(plan, keep_traces=keep_traces, judge_history=judge_history).run()
