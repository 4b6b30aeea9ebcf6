"""The machines that faults happen to, and how it is told that one happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from simulation.journal import Journal
from simulation.judges.availability import Availability
from simulation.machines.broker_host import BrokerHost
from simulation.machines.client_host import ClientHost
from simulation.machines.members import Members
from simulation.machines.name_server_host import NameServerHost
from simulation.machines.network import Network
from simulation.plans.plan import Fault
from simulation.scheduler import MILLISECOND, Scheduler
from simulation.workload.context import Wishes

_PATIENCE_TRIES: Final = 200
_PATIENCE_NS: Final = 10 * MILLISECOND


@dataclass(slots=True)
class Stage:
    """All machines of a world, and the listeners for what is done to them."""

    scheduler: Scheduler
    network: Network
    journal: Journal
    members: Members
    name_servers: Sequence[NameServerHost]
    clients: Sequence[ClientHost]
    wishes: Wishes
    harmed: Callable[[BrokerHost], object]
    """Called for each machine whose disk is harmed."""
    flush: Literal["sync", "async"]
    calm_ns: int
    """The true time at which all faults have ended."""
    availability: Availability
    """Told of what is done to the whole group, and from when on a core of it is left alone."""
    host_names: list[str] = field(init=False)
    """The names of all brokers, name servers and clients, in this order."""
    _quiet_until_ns: int = field(init=False, default=0)
    _ends_ns: dict[tuple[str, str], int] = field(init=False, default_factory=dict)
    """(machine or link, kind of fault) -> when the last of those that overlap there is over."""

    def __post_init__(self) -> None:
        self.host_names = [broker.name for broker in self.members.machines]
        self.host_names += [name_server.name for name_server in self.name_servers]
        self.host_names += [client.name for client in self.clients]

    # ---- telling -------------------------------------------------------------------------------------

    def done(self, fault: Fault, host: str, detail: str = "") -> None:
        """Notes and counts a fault that has taken effect."""
        self.journal.fired(fault.kind)
        self.journal.record_fault(fault.kind, host, detail)

    def armed(self, fault: Fault, host: str, detail: str = "") -> None:
        """Notes a fault that takes effect when somebody next does what it is about; it is counted then."""
        self.journal.record_fault(fault.kind, host, detail)

    def counted_once(self, kind: str) -> Callable[[], None]:
        """Returns a function that counts a fault when it is called first: for an armed one that meets something."""
        counted = False

        def met() -> None:
            nonlocal counted
            if not counted:
                counted = True
                self.journal.fired(kind)

        return met

    # ---- lasting -------------------------------------------------------------------------------------

    def lasts(self, place: str, kind: str, duration_ns: int, undo: Callable[[], None]) -> None:
        """Calls `undo` when a fault of that kind has lasted so long, unless another one lasts longer at that place."""
        what, end_ns = (place, kind), self.scheduler.now_ns + duration_ns
        self._ends_ns[what] = max(end_ns, self._ends_ns.get(what, 0))

        def ended() -> None:
            if self.scheduler.now_ns >= self._ends_ns[what]:
                undo()

        self.scheduler.after(duration_ns, ended)

    def keep_quiet(self, duration_ns: int) -> None:
        """No other fault comes for so long: what has been done shows only where nothing else befalls the group."""
        self._quiet_until_ns = self.scheduler.now_ns + duration_ns

    @property
    def is_quiet(self) -> bool:
        """True while no fault is to come."""
        return self.scheduler.now_ns < self._quiet_until_ns

    # ---- waiting -------------------------------------------------------------------------------------

    def is_calm(self) -> bool:
        """True when the time of faults is over."""
        return self.scheduler.now_ns >= self.calm_ns

    def others_are_whole(self, host: BrokerHost) -> bool:
        """True while all other members run, know what they may vote for (raft/recovery.py), and have no damage.

        A node whose snapshot is damaged goes on as long as it runs and cannot start again: it counts as one that has
        lost its data, as the group cannot spare another beside it.
        """
        others = [other for other in self.members.in_service() if other is not host]
        return not any(other.is_damaged for other in others) and all(
            other.process is not None and other.process.replica.raft.recovering is None for other in others
        )

    def when_others_are_whole(self, host: BrokerHost, act: Callable[[], None], tries: int = 0) -> None:
        """Calls `act` once all others hold everything and nothing is under way, and never if that takes long.

        An operator waits for this before giving up a replica: a group of three that has lost one replica's data cannot
        bear the loss of another's, and Raft promises nothing then.
        """
        if self.is_calm() or tries > _PATIENCE_TRIES:
            return
        if self.members.is_settled() and self.members.may_lose_one() and self.others_are_whole(host):
            act()
        else:
            self.scheduler.after(_PATIENCE_NS, self.when_others_are_whole, host, act, tries + 1)
