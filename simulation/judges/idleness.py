"""A group whose clients ask for nothing: its leader stays, what it holds stays as it is, and its nodes seldom wake.

Soon after the last request all that clients have asked for is done, and no leader has a reason to go. When some time
more has passed, the last batches of delayed messages are settled, too (broker/delayed/delays.py, timers.py), and no
entry has a reason either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broker.delayed import timers
from broker.replica.inner_limits import InnerLimits
from simulation.journal import Violation
from simulation.judges.group_model import GroupModel
from simulation.judges.monitor import Monitor
from simulation.machines.broker_host import BrokerHost
from simulation.scheduler import MILLISECOND, SECOND, Scheduler

KEEPS_LEADER: Final = "an idle group keeps its leader"
STAYS: Final = "an idle group stays as it is"
SLEEPS: Final = "an idle node seldom wakes"

DONE_NS: Final = 20 * SECOND
"""From the last request on: by then delays and retries are over, too, and who is preferred leads."""
SETTLED_NS: Final = DONE_NS + max(InnerLimits().delays_idle_ms * MILLISECOND, timers.IDLE_NS) + 5 * SECOND
"""From the last request on: no entry has a reason any more."""
_TURNS_A_SECOND: Final = 100
"""The most that a node may have beside its scrubber's. Heartbeats, its own looks and what its clients say to stay there
were 7 to 21."""
_TURNS_A_SCRUB: Final = 2
"""How many the scrubber takes follows from its settings, which have it never rest where files are damaged."""


@dataclass(frozen=True, slots=True)
class _Held:
    """The numbers of a node that grow only by what clients ask; connections do not count, as members come and go."""

    entries: int
    file_bytes: int


class Idleness:
    """Watches one group from its clients' last request on, until they ask again. Nothing is drawn or changed here."""

    def __init__(
        self, scheduler: Scheduler, monitor: Monitor, model: GroupModel, hosts: Sequence[BrokerHost]
    ) -> None:
        """`hosts`: the machines of its members, of which all run."""
        self._scheduler = scheduler
        self._monitor = monitor
        self._model = model
        self._hosts = hosts
        self._elections = 0
        self._held: dict[str, _Held] = {}
        self._turns: dict[str, int] = {}
        self._scrubs: dict[str, int] = {}
        """The turns, and the slices of scrubbing, that each machine had counted when all was settled."""
        self._settled_ns = 0
        scheduler.after(DONE_NS, self._done)
        scheduler.after(SETTLED_NS, self._settled)

    def _done(self) -> None:
        self._elections = self._monitor.elections

    def _settled(self) -> None:
        self._settled_ns = self._scheduler.now_ns
        for host in self._hosts:
            self._held[host.name] = self._held_by(host)
            self._scrubs[host.name] = host.scrubs
            host.after_turn.append(self._turned)

    def _turned(self, host: BrokerHost) -> None:
        self._turns[host.name] = self._turns.get(host.name, 0) + 1

    def _held_by(self, host: BrokerHost) -> _Held:
        return _Held(self._model.last_index + 1, host.disk.file_bytes)

    def ends(self) -> None:
        """Clients ask again from now on. Raises Violation."""
        if self._monitor.elections > self._elections:
            detail = f"{self._monitor.elections - self._elections} elections while nobody asked for anything"
            raise Violation(KEEPS_LEADER, "group", detail)
        seconds = (self._scheduler.now_ns - self._settled_ns) // SECOND
        for host in self._hosts:
            host.after_turn.remove(self._turned)
            before, now = self._held[host.name], self._held_by(host)
            if now.entries > before.entries or now.file_bytes > before.file_bytes:
                raise Violation(STAYS, host.name, f"had {before}, and {seconds} s later {now}")
            scrubs = host.scrubs - self._scrubs[host.name]
            turns = self._turns.get(host.name, 0) - _TURNS_A_SCRUB * scrubs
            if turns > seconds * _TURNS_A_SECOND:
                raise Violation(SLEEPS, host.name, f"{turns} turns in {seconds} s")
