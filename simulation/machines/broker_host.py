"""A machine that runs a broker: disk, clock and network name outlive the process, which crashes and starts again.

`BrokerProcess` does for a `broker.node.running.RunningNode` what the Trio shell does in production, and nothing else:
it brings bytes and time, lets a turn follow a few microseconds after whatever arrived, writes the outboxes, dials, and
runs jobs, which take a time of their own.

How a process ends: in order (broker/node/orderly_stop.py), killed (its page cache stays), by a power failure (what
was not flushed is at the disk model's mercy, connections vanish without a word), by a disk error that the code under
test lets through because it must stop, or by any other exception, which is a finding.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from broker.assembly import build_node
from broker.node.links import UNACKNOWLEDGED_NS_MAX
from broker.node.machine import Machine, Variant
from broker.node.node import Node
from broker.node.running import RunningNode
from broker.replica.inner_limits import InnerLimits
from broker.replica.jobs import Job
from broker.requests.connection import Connection, Outgoing
from broker.requests.line import Line
from broker.settings.tables import Settings
from broker.state.commands import UnknownCommandError
from broker.state.release import THIS_RELEASE
from broker.trace import TraceWriter
from log.errors import DamagedFileError, DamagedLogError, DiskError, DiskFullError, LogFault, StoreTooNewError
from log.options import StoreOptions
from simulation.journal import Journal, Violation
from simulation.machines.client_port import ClientPort
from simulation.machines.clock import HostClock
from simulation.machines.data_files import cached_files
from simulation.machines.frame_faults import FrameFaults, FrameWatcher, PeerFrames
from simulation.machines.medium import Page
from simulation.machines.network import Endpoint, Network
from simulation.machines.simulated_disk import JobUnderWay, PowerFailure, SimulatedDisk
from simulation.machines.turns import TURN_DELAYS_NS, IdleTurns, ProcessTurns
from simulation.machines.unanswered import Unanswered
from simulation.machines.wires import Wires
from simulation.randomness import Random, branch, draw_range
from simulation.scheduler import MICROSECOND, MILLISECOND, SECOND, Scheduler, Timer

_RESTART_NS = 200 * MILLISECOND

_JOB_NS = 10 * MILLISECOND
"""Longer than any job of a disk that is whole."""

_KEPT = "an orderly stop keeps everything"
"""The name of the invariant that is judged here."""


def hour_of_day(time_ms: int) -> int:
    """Returns the hour of a time (ms since 1970) in UTC: so a run is the same wherever the simulator runs."""
    return time_ms // 3_600_000 % 24


class BrokerWatcher(FrameWatcher, Protocol):
    """Looks at brokers while they run. Each hook may raise `Violation`."""

    def started(self, host: BrokerHost, node: Node) -> None:
        """A process has recovered; its log is what the disk gave it."""

    def stopped(self, host: BrokerHost) -> None:
        """A process has ended."""

    def turned(self, host: BrokerHost, node: Node) -> None:
        """A turn is over."""

    def committed(self, host: BrokerHost, index: int, term: int) -> None:
        """A node's commit index rose."""

    def stood_still(self, host: BrokerHost, duration_ns: int) -> None:
        """A machine's monotonic clock has not gone for so long, by that clock's rate, until now."""


class PowerWatcher(Protocol):
    """Is told of each machine that may have lost what it had not flushed.

    `before` holds the data files of the log as they were right before that (`BrokerHost.page_cache`).
    """

    def power_failed(self, host: BrokerHost, before: dict[int, bytes], fault: str) -> None:
        """A machine went dark, by a fault of that kind."""

    def pages_left(self, host: BrokerHost, before: dict[int, bytes]) -> None:
        """A process has ended behind a failed flush, maybe with the only copy of something."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """All that a machine with a broker knows of the world around it."""

    scheduler: Scheduler
    network: Network
    journal: Journal
    watcher: BrokerWatcher
    power_watcher: PowerWatcher
    replica_writer: Callable[[BrokerHost], TraceWriter]
    """Makes a trace writer for a new process."""


class BrokerHost:
    """A machine for a broker. `process` is None while no broker runs on it."""

    def __init__(
        self,
        surroundings: Surroundings,
        name: str,
        ip: str,
        settings: Settings,
        options: StoreOptions,
        limits: InnerLimits,
        clock: HostClock,
        random: Random,
    ) -> None:
        self.surroundings = surroundings
        self.name = name
        self.ip = ip
        self.settings = settings
        self.address = settings.node.listen
        self.peer_address = f"{ip}:40911"
        self.options = replace(options, dledger_directory=f"dledger-{settings.node.id}")
        self.limits = limits
        self.clock = clock
        self.random = random
        self.fault_random = random
        """The stream from which faults of this machine draw, but for its disk's."""
        self.disk_random = branch(random)
        """Only faults draw from it."""
        self.disk = SimulatedDisk(self.disk_random)
        self.disk.fired = surroundings.journal.fired
        self.process: BrokerProcess | None = None
        self.paused = False
        self.in_service = True
        """Its operator wants a broker to run on it."""
        self.is_broken = False
        """A fault keeps it down: nobody can start it."""
        self.frame_faults: list[FrameFaults] = []
        """The faults of single messages that come, while they last; of two faults of a message the later one counts."""
        self.disk_delay_ns = 100 * MICROSECOND
        """About how long a flush takes."""
        self.disk_slowed: Callable[[], object] | None = None
        """Told when something waits for a disk that a fault has made slow."""
        self.held_up_until_ns = 0
        """Until when, in true time, it stood still or its disk was at work: a flush that was due may have waited."""
        self.turn_delay_ns = random.choice(TURN_DELAYS_NS)
        """From something's arrival to the turn that deals with it, at most: what comes meanwhile shares the turn."""
        self.other_work_ns: list[int] = []
        """The times by which turns are later still, for the machine has other work: one for each fault of that kind."""
        self.release = THIS_RELEASE
        """The release of Trivet that the next process runs."""
        self.went_back = False
        """True if it ran this release before it ran the earlier one: the group may have raised its format in between.
        """
        self.incarnation = 0
        self.boots = 0
        """Counts the losses of power, as the number in a machine's boot id."""
        self.after_turn: list[Callable[[BrokerHost], object]] = []
        """Called behind each turn, whatever process has it."""
        self.scrubs = 0
        """Counts the jobs of its scrubber: a turn begins each, and another takes it back."""
        self.deferred: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self.backlog: deque[tuple[Callable[[Endpoint], object], Endpoint]] = deque()
        """Connections that came while it was paused, or had no descriptor for them."""
        self._process_has_descriptors = True
        """False while its process has used up those that a process may have; the next one has its own."""
        self.disk_faulty = False
        """Disk errors are to be expected now: a process that ends by one is no finding."""
        self.was_harmed = False
        """Its disk has changed what it held (simulation/faults/disk_faults.py, `harm`)."""
        self.was_damaged = False
        """Files of it were damaged while it ran (simulation/faults/damage.py)."""
        self.damaged_pages: list[Page] = []
        """The pages that were damaged last, as they were before."""
        self.needs_new_disk = False
        """True once it refuses to start over what its disk holds, as it should; only an operator can help it."""
        self.kept_index: int | None = None
        """After an orderly stop: the last entry of the log, which a power failure must leave there."""
        self.failed_as = ""
        """The replica's state when its process failed with an error that nothing explains."""

    @property
    def is_damaged(self) -> bool:
        """True while a page that was damaged under a running node is not repaired: it may refuse its next start."""
        return any(map(self.disk.medium.is_harmed, self.damaged_pages))

    def end_frame_faults(self, faults: FrameFaults) -> None:
        """Ends these, unless healing has ended all."""
        if faults in self.frame_faults:
            self.frame_faults.remove(faults)

    def note(self, text: str) -> None:
        """Adds a line to the transcript."""
        self.surroundings.journal.note(self.name, text)

    def page_cache(self) -> dict[int, bytes]:
        """The data files of a running node's log as the process sees them, by the position where each begins."""
        if self.process is None:
            return {}
        return cached_files(self.disk, self.options, self.process.replica.store.log)

    def describe_state(self) -> str:
        """The state of its replica in one line, for people."""
        process = self.process
        if process is None:
            failed = f", failed as {self.failed_as}" if self.failed_as else ""
            return f"down{', needs a new disk' if self.needs_new_disk else ''}{failed}"
        replica = process.replica
        raft = replica.raft
        return (
            f"{raft.role.value} of term {raft.term}, leader {raft.leader}, "
            f"log {raft.log_terms.first_index}..{raft.log_terms.last_index}, persisted {raft.persisted_index}, "
            f"commit {raft.commit_index}, applied {replica.applied_index}"
            f"{', serving' if replica.serving else ''}{', paused' if self.paused else ''}"
            f"{'' if raft.recovering is None else ', recovering ' + raft.recovering.value}"
            f", voters {' '.join(raft.configuration.voters)}, links {' '.join(replica.links)}"
        )

    # ---- starting and stopping -----------------------------------------------------------------------

    def start(self) -> None:
        """Starts a process over what the disk holds; does nothing while one runs."""
        if self.process is not None or self.needs_new_disk or not self.in_service or self.is_broken:
            return
        # The kernel is up before any process: from now on it refuses connections, where a machine without power is
        # silent.
        self.surroundings.network.set_dark(self.name, False)
        self.incarnation += 1
        self.surroundings.journal.acting = self.name
        try:
            self.process = BrokerProcess(self)
            # Before it runs: from then on it may rightly cut its log for a leader.
            self._check_kept(self.process)
            self.process.run()
        except PowerFailure as failure:
            self.note(f"power fails while starting, in {failure}")
            self.surroundings.journal.fired("power inside")
            self.lose_power("power inside")
            self.start_after(_RESTART_NS)
        except LogFault as error:
            self._cannot_start(error)
        except Violation as violation:
            self.surroundings.journal.found(violation)
        except Exception:  # whatever the code under test raises is a finding
            self.surroundings.journal.found(
                Violation("a node fails to start", self.name, traceback.format_exc())
            )

    def start_after(self, delay_ns: int) -> None:
        """Starts a process some time from now."""
        self.surroundings.scheduler.after(delay_ns, self.start)

    def _cannot_start(self, error: LogFault) -> None:
        self._drop_process()
        self.disk.lose_process()
        self.note(f"cannot start: {error}")
        kept, self.kept_index = self.kept_index, None
        # A node may refuse what a fault has done to its disk, and what a later release has written. All else is found.
        if isinstance(error, StoreTooNewError) and self.went_back:
            self._upgrade(error)
        elif isinstance(error, DamagedFileError) and kept is not None:
            self.surroundings.journal.found(
                Violation(_KEPT, self.name, f"log ended at {kept}, now it cannot start: {error}")
            )
        elif isinstance(error, DamagedLogError):
            self.surroundings.journal.found(
                Violation("a node starts over a log that others can repair", self.name, str(error))
            )
        elif isinstance(error, DamagedFileError) and self.disk_faulty:
            self.needs_new_disk = True
        elif isinstance(error, DiskError) and self.disk_faulty:
            self.start_after(SECOND)
        else:
            self.surroundings.journal.found(
                Violation("a node refuses its own disk", self.name, f"{type(error).__name__}: {error}")
            )

    def _upgrade(self, error: Exception) -> None:
        """An earlier release refuses to go on over what its group writes by now: the operator starts this one."""
        self.note(f"release {self.release.name} stops: {error}")
        self.release, self.went_back = THIS_RELEASE, False
        self.start_after(_RESTART_NS)

    def _check_kept(self, process: BrokerProcess) -> None:
        kept, self.kept_index = self.kept_index, None
        last_index = process.replica.store.log.last_index
        if kept is not None and last_index < kept and not self.was_damaged:
            raise Violation(_KEPT, self.name, f"log ended at {kept}, now at {last_index}")

    def stopped_in_order(self) -> None:
        """Its process has closed its replica and ended."""
        assert self.process is not None, "it has just closed its replica"
        log = self.process.replica.store.log
        # Read while there is a process, and kept behind `kill`, which forgets the promise. Of a damaged log no end is
        # promised.
        last_index = None if log.damaged else log.last_index
        self.kill()
        self.kept_index = last_index

    def kill(self) -> None:
        """SIGKILL: the kernel closes the connections and keeps the page cache."""
        self.kept_index = None
        # Now, as the cache may drop pages with the process; and only where it may, as the copy of a whole log is dear.
        before = self.page_cache() if self.disk.may_evict else {}
        self._drop_process()
        self.disk.lose_process()
        for endpoint in self.surroundings.network.endpoints_of(self.name):
            endpoint.close()
        self.surroundings.network.kick(self.name)  # a paused process's sockets were full
        if before:
            self.surroundings.power_watcher.pages_left(self, before)

    def lose_power(self, fault: str) -> None:
        """The plug is pulled, by a fault of that kind."""
        before = self.page_cache()
        if self.paused:
            self.was_held_up(self.surroundings.scheduler.now_ns)
        self._drop_process()
        self.free_descriptors()
        self.boots += 1
        for endpoint in self.surroundings.network.endpoints_of(self.name):
            endpoint.vanish()
        self.disk.lose_power()
        self.surroundings.network.set_dark(self.name, True)
        # Last, as what was there is compared with what the disk holds now.
        self.surroundings.power_watcher.power_failed(self, before, fault)

    def was_held_up(self, until_ns: int) -> None:
        """See `held_up_until_ns`."""
        self.held_up_until_ns = max(self.held_up_until_ns, until_ns)

    def _drop_process(self) -> None:
        process, self.process = self.process, None
        self.paused = False
        self.deferred.clear()
        self.backlog.clear()
        # The process that ends here had used up its own; those that the machine lacks the next process lacks, too.
        if not self._process_has_descriptors:
            self.free_descriptors()
        self.surroundings.network.stop_listening(self.address)
        self.surroundings.network.stop_listening(self.peer_address)
        if process is not None:
            # What the world still holds of its callbacks comes to nothing (`BrokerProcess.guarded`).
            process.dead = True
            self.surroundings.watcher.stopped(self)

    def failed(self, error: BaseException) -> None:
        """An exception came out of the process."""
        # A judge that looks on from within the process has found something: the process itself goes on.
        if isinstance(error, Violation):
            self.surroundings.journal.found(error)
            return
        if isinstance(error, PowerFailure):
            self.note(f"power fails in {error}")
            self.surroundings.journal.fired("power inside")
            self.lose_power("power inside")
            self.start_after(_RESTART_NS)
            return
        if isinstance(error, UnknownCommandError) and self.went_back:
            self.kill()
            self._upgrade(error)
            return
        # Told before the process is gone: what its replica was like is what explains the error.
        text = "".join(traceback.format_exception(error))
        state = self.describe_state()
        if self.process is not None and self.process.is_stopping:
            self.process.close_after_failure()
        self.kill()
        if isinstance(error, DiskFullError):
            self.surroundings.journal.found(Violation("a full disk stops nobody", self.name, text))
        elif isinstance(error, DiskError) and self.disk_faulty:
            self.note(f"stops: {error}")
            self.start_after(_RESTART_NS)
        else:
            self.failed_as = state
            self.surroundings.journal.found(Violation("a node fails", self.name, text))

    # ---- pauses --------------------------------------------------------------------------------------

    def pause(self) -> None:
        """The process stands still (SIGSTOP, a stopped machine); the network goes on filling its sockets."""
        if self.process is not None and not self.paused:
            self.paused = True
            for endpoint in self.surroundings.network.endpoints_of(self.name):
                endpoint.readable = False

    def resume(self) -> None:
        """Lets it go on, with everything that should have happened meanwhile happening now."""
        if not self.paused:
            return
        self.paused = False
        self.was_held_up(self.surroundings.scheduler.now_ns)
        deferred, self.deferred = self.deferred, deque()
        later: list[tuple[Callable[..., object], tuple[Any, ...]]] = [*deferred]
        # Both are ready at once, and an event loop takes either first.
        later.insert(0 if self.fault_random.random() < 0.5 else len(later), (self._read_sockets, ()))
        self._accept_waiting()
        for callback, arguments in later:
            self.surroundings.scheduler.after(0, callback, *arguments)

    def _accept_waiting(self) -> None:
        """Takes the connections that wait, if it can."""
        if self.paused or self.disk.lacks_descriptors is not None:
            return
        backlog, self.backlog = self.backlog, deque()
        for accept, endpoint in backlog:
            self.surroundings.scheduler.after(0, accept, endpoint)

    def use_up_descriptors(self, met: Callable[[], object], *, of_process: bool) -> None:
        """Takes away the descriptors for files and connections that the machine does not have open yet: with
        `of_process` until the next process starts, else until `free_descriptors`. Calls `met` each time that one is
        wanted.
        """
        self.disk.lacks_descriptors = met
        self._process_has_descriptors = not of_process

    def free_descriptors(self) -> None:
        """Ends `use_up_descriptors`: there are descriptors again, and connections that wait are taken."""
        if self.disk.lacks_descriptors is not None:
            self.disk.lacks_descriptors = None
            self._process_has_descriptors = True
            self._accept_waiting()
            self.surroundings.scheduler.after(0, self._read_sockets)

    def _read_sockets(self) -> None:
        if self.paused:
            return
        # Two kinds of ends stay unread: the process does not want more from the one yet, and has not accepted the
        # other.
        held_back = self.process.held_back() if self.process is not None else set[Endpoint]()
        held_back.update(endpoint for _, endpoint in self.backlog)
        for endpoint in self.surroundings.network.endpoints_of(self.name):
            if endpoint not in held_back:
                endpoint.readable = True
                endpoint.peer.kick()


def is_undisturbed(host: BrokerHost, now_ns: int) -> bool:
    """True if the machine's process runs, and nothing is wrong with it, its disk and what it is told."""
    process, disk = host.process, host.disk
    if process is None or process.is_stopping or host.paused or host.frame_faults:
        return False
    if disk.full or disk.failing_flushes or disk.failing_reads or disk.lacks_descriptors is not None:
        return False
    if host.disk_slowed is not None:
        return False
    # Each job holds a machine up for a while; only where that is longer than a whole disk takes is something wrong.
    return host.held_up_until_ns <= now_ns + _JOB_NS


class BrokerProcess:
    """A run of a broker."""

    def __init__(self, host: BrokerHost) -> None:
        """Raises what `build_node` raises, and `PowerFailure`."""
        surroundings = host.surroundings
        self.host = host
        self.dead = False
        self.outgoing = Outgoing()
        self.is_stopping = False
        """The process was asked to stop."""
        self._is_closed = False
        self.last_index_max = -1
        """The last entry that its log had behind any turn so far."""
        self.jobs_out: list[Callable[[], None]] = []
        """One for each job that is out: calling it ends the job."""
        self._scheduler = surroundings.scheduler
        unsent_bytes_max = host.settings.limits.max_pending_bytes_per_connection
        self._wires = Wires(self.outgoing, self._scheduler, self.guarded, unsent_bytes_max)
        self.hand_out = self._wires.hand_out
        self.held_back = self._wires.held_back
        self._turns = ProcessTurns(
            self._scheduler,
            host.clock,
            host.random,
            host.turn_delay_ns,
            lambda: sum(host.other_work_ns),
            self.guarded,
            self._turn,
        )
        self.wake = self._turns.wake
        self._idle_turns = IdleTurns(host.name, self._scheduler, host.turn_delay_ns)
        self.writer = surroundings.replica_writer(host)
        self.node = self._build_node()
        self.replica = self.node.replica
        self.frames = PeerFrames(
            self,
            host.name,
            surroundings.network,
            surroundings.journal,
            surroundings.watcher,
            host.frame_faults,
        )
        self.running = RunningNode(
            self.node,
            self,
            address=host.address,
            nonce=host.random.randbytes,
            begin_job=self._run_job,
            deliver=self.frames.deliver,
        )
        self.unanswered = Unanswered(lambda: self._scheduler.now_ns)
        self._client_port = ClientPort(
            host.name,
            self.running.clients,
            self._wires,
            host.settings.limits.max_connections,
            surroundings.journal,
            self.unanswered,
        )

    def _build_node(self) -> Node:
        """Returns the node over what the machine's disk holds. Raises what `build_node` raises, and `PowerFailure`."""
        host = self.host
        return build_node(
            host.settings,
            Machine(
                disk=host.disk,
                outgoing=self.outgoing,
                random=branch(host.random),
                now_ns=host.clock.now_ns(),
                wall_ms=host.clock.wall_ms(),
                hour_of_day=hour_of_day,
                boot=f"{host.name} boot {host.boots}",
                process_id=lambda: host.incarnation,
                trace=self.writer,
            ),
            Variant(release=host.release, limits=host.limits, store_options=host.options),
        )

    def run(self) -> None:
        """Begins to listen, to dial and to register."""
        host = self.host
        network = host.surroundings.network
        host.surroundings.watcher.started(host, self.node)
        network.listen(host.address, host.name, self.guarded_accept(self._client_port.take))
        network.listen(host.peer_address, host.name, self.guarded_accept(self._accept_peer))
        self.running.start()

    # ---- how anything gets in ------------------------------------------------------------------------

    def guarded(self, callback: Callable[..., object]) -> Callable[..., None]:
        """The callback as something that the world may call: not when dead, later when paused, its errors caught."""

        host = self.host
        journal, name = host.surroundings.journal, host.name

        def call(*arguments: Any) -> None:
            if self.dead:
                return
            if host.paused:
                # Through `_call` and not as it is: the process may be dead, or paused again, when its turn comes.
                host.deferred.append((self._call, (callback, arguments)))
                return
            # Whatever comes out of here came out of the process: nothing else of the world is to fall with it.
            journal.acting = name
            try:
                callback(*arguments)
            except (PowerFailure, Exception) as error:
                host.failed(error)

        return call

    def _call(self, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.guarded(callback)(*arguments)

    def guarded_accept(self, accept: Callable[[Endpoint], object]) -> Callable[[Endpoint], None]:
        """For a listener: while the process is paused, or has no descriptor, the kernel takes connections, and their
        bytes wait.
        """
        guarded = self.guarded(accept)

        def accepted(endpoint: Endpoint) -> None:
            no_descriptor = self.host.disk.lacks_descriptors
            if self.host.paused or no_descriptor is not None:
                endpoint.readable = False
                self.host.backlog.append((guarded, endpoint))
                if no_descriptor is not None:
                    no_descriptor()
            else:
                guarded(endpoint)

        return accepted

    def call_after(self, delay_ns: int, callback: Callable[..., object], *arguments: Any) -> Timer:
        """A timer of the process."""
        clock = self.host.clock
        return self._scheduler.at(
            clock.true_ns(clock.now_ns() + delay_ns), self.guarded(callback), *arguments
        )

    def begin(self) -> None:
        """See `broker.requests.line.Surroundings`."""
        self.node.begin(*self.host.clock.read())

    # ---- turns ---------------------------------------------------------------------------------------

    def _turn(self) -> None:
        host = self.host
        replica = self.replica
        applied = replica.applied
        applied_index = applied.index
        self.running.turn(*host.clock.read())
        self.last_index_max = max(self.last_index_max, replica.store.log.last_index)
        if applied.index == applied_index:
            self._idle_turns.count()
        host.surroundings.watcher.turned(host, self.node)
        self._turns.await_deadline(self.running.end_turn())
        if host.after_turn:
            for listener in [*host.after_turn]:
                listener(host)

    # ---- jobs ----------------------------------------------------------------------------------------

    def _run_job(self, job: Job) -> None:
        """Runs a worker's job now; it comes back later."""
        host = self.host
        host.scrubs += job.what == "scrubbing"
        failure: DiskError | None = None
        under_way: JobUnderWay | None = None
        try:
            # The worker reads and writes now, and only the effect comes later: meanwhile power may fail, with any part
            # of it.
            under_way = host.disk.begin_job(job.run)
        except DiskError as error:
            failure = error
        delay = host.disk_delay_ns
        if job.what not in {
            "snapshot",
            "removal",
        }:  # nobody waits: they draw nothing, and seeds stay as they are
            delay = draw_range(host.random, delay // 2, 2 * delay)
        if host.disk_slowed is not None:
            host.disk_slowed()

        def ended() -> None:
            self.jobs_out.remove(ended)
            # When the job comes back and not before: as in production, the node serves on until it hears of the
            # failure.
            if failure is not None and job.failure_stops_node:
                raise failure
            if under_way is not None:
                host.disk.end_job(under_way)
            self.running.job_done(job)

        host.was_held_up(self._scheduler.now_ns + delay)
        self.jobs_out.append(ended)
        self._scheduler.after(delay, self.guarded(ended))

    # ---- connections ---------------------------------------------------------------------------------

    def dial_peer(self, line: Line) -> None:
        """See `broker.node.running.NodeSurroundings`."""
        self._dial(line, UNACKNOWLEDGED_NS_MAX)

    def dial_name_server(self, line: Line) -> None:
        """See `broker.node.running.NodeSurroundings`."""
        self._dial(line, None)

    def refuse_clients(self) -> None:
        """See `broker.node.running.NodeSurroundings`."""
        self.host.surroundings.network.stop_listening(self.host.address)

    def has_unread(self, connection: Connection) -> bool:
        """See `broker.node.running.NodeSurroundings`: what arrives is received at once."""
        return False

    def _dial(self, line: Line, user_timeout_ns: int | None) -> None:
        host, connection = self.host, line.connection

        def opened(endpoint: Endpoint | None, reason: str) -> None:
            if endpoint is None:
                line.lost(connection, reason)
            elif connection.aborted:
                endpoint.close()
            else:
                if user_timeout_ns is not None:
                    endpoint.user_timeout_ns = user_timeout_ns
                self._wires.attach(
                    connection, endpoint, line.received, lambda why: line.lost(connection, why)
                )
                line.opened(connection)

        guarded = self.guarded(opened)

        def arrived(endpoint: Endpoint | None, reason: str) -> None:
            if self.dead and endpoint is not None:
                endpoint.close()  # by the system, which knows of no process for it
            guarded(endpoint, reason)

        if (no_descriptor := host.disk.lacks_descriptors) is not None:
            no_descriptor()
            # In an event of its own: nobody who dials expects to be told within the call.
            self._scheduler.after(0, guarded, None, "too many open files")
        else:
            host.surroundings.network.connect(host.name, host.ip, line.address, arrived)

    def _accept_peer(self, endpoint: Endpoint) -> None:
        endpoint.user_timeout_ns = UNACKNOWLEDGED_NS_MAX
        connection = Connection(self.outgoing, f"peer at {endpoint.address}")
        link = self.running.links.accept(connection, endpoint.address)
        self._wires.attach(connection, endpoint, link.received, lambda _: link.lost())

    def connections(self) -> list[Connection]:
        """Returns the connections that are carried now."""
        return list(self._wires.endpoints)

    def accepted_from_peers(self) -> list[Endpoint]:
        """The ends of the links that peers have dialled, for faults that break them."""
        return [self._wires.endpoints[link.connection] for link in self.running.links.accepted.values()]

    # ---- the end -------------------------------------------------------------------------------------

    def stop_in_order(self, before_close: Callable[[], object], stopped: Callable[[], object]) -> None:
        """SIGTERM. `before_close` and `stopped` are called right before the replica is closed, and right behind.

        It comes to nothing if the process ends in another way first.
        """
        self.is_stopping = True

        def close() -> None:
            before_close()
            self._close()
            stopped()

        def end() -> None:
            # Behind the turn that calls this: it has not come to its own end, and needs the replica until then.
            self._scheduler.after(0, self.guarded(close))

        self.guarded(self.running.stop)(end)

    def close_after_failure(self) -> None:
        """A process that meets an error on its way out closes its replica all the same, as the shell does."""
        if not self._is_closed:
            # Disarmed, as nobody catches a `PowerFailure` that comes out of here, where another error is being dealt
            # with.
            self.host.disk.arm_power_failure(0)
            try:
                self._close()
            except LogFault as error:
                self.host.note(f"cannot close its replica either: {error}")

    def _close(self) -> None:
        self._is_closed = True
        host, replica = self.host, self.replica
        if replica.raft.commit_index > replica.applied_index:
            # No turn applies it any more, and so no trace tells of it, but the store's notes do.
            host.surroundings.watcher.committed(host, replica.raft.commit_index, replica.term)
        replica.close(host.clock.now_ns())
