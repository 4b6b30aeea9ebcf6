"""The part of a run that an actor sees, and the invariant that it may promise there.

The actors that make up every run's load (`produce`, `consume`, `audit`) need no more than a `Load`, which a group of
real processes offers, too. All others get the `Context` of a simulated world: beside the load they know the true time,
what the group has committed, and each its `Invariant`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from broker.client.message import MessageQueue, SendResult
from broker.client.transport.runtime import Runtime
from broker.replica.replica import Replica
from broker.state.commands import Command
from simulation.journal import Journal
from simulation.judges.client_judge import ClientJudge
from simulation.judges.group_model import CommittedMessage, GroupModel
from simulation.judges.several_groups import GroupJudges
from simulation.machines.broker_host import BrokerHost
from simulation.machines.members import Members
from simulation.machines.name_server_host import NameServerWatcher
from simulation.randomness import Random
from simulation.scheduler import Scheduler


class Load(Protocol):
    """The settings of the common load, and the listener for what it does."""

    name_servers: Sequence[str]
    """The addresses of the name servers."""
    think_ms: int
    """The time that a lane of a producer waits between two sends, on average."""
    load_stopped: bool
    """Set when nothing more shall be sent."""

    def sent(self, sender: str, results: Sequence[SendResult], *, once: bool) -> None:
        """Messages are acknowledged; `once`: the group has one copy of each, whatever was repeated."""

    def unknown(self, messages: int) -> None:
        """The outcome of so many messages is unknown: they may be stored or not."""

    def consumed(self, queue: MessageQueue, offset: int) -> None:
        """A consumer's application got a message."""

    def answered(self) -> None:
        """A question about a queue or a consumer group's offset has its answer."""


@dataclass(slots=True)
class Wishes:
    """Work that faults ask operators and administrators to do, and that nobody has done yet."""

    expected: frozenset[str]
    """The kinds of faults that the run has: an actor that only does what other kinds ask for will never be asked."""
    transfers: int = 0
    member_changes: int = 0
    topic_changes: int = 0
    is_crowded: bool = False
    """A crowd is to send as much as it can."""

    def withdraw(self) -> None:
        """Asks for nothing any more that nobody has begun."""
        self.transfers = self.member_changes = self.topic_changes = 0


@dataclass(frozen=True, slots=True)
class WorldFacts:
    """Of the plan, and of the brokers' settings, what single actors go by, or what must hold of them does."""

    nodes: int
    fewest_voters: int
    """Operators remove voters down to so many, and always those beyond `nodes`."""
    most_learners: int
    queues: int
    """The number of queues of the topic that all runs have."""
    queues_per_command: int
    """An order of an administrator that has more queues goes into the log in parts of so many."""
    hears_of_all_clients: bool
    """A new leader has room for all that its peers tell it of their clients at once. One that has not hears of some
    half a minute later, with their next heartbeat: what wants no answer is dropped where others would be refused."""
    kept_ms: int
    """The age at which retention takes messages that do not wait."""
    checks_max: int
    """The questions that are asked about a transaction before it is given up."""


@dataclass(slots=True)
class Context:
    """A simulated world as its actors and their invariants see it."""

    seed: int
    facts: WorldFacts
    think_ms: int
    calm_ns: int
    """The true time at which all faults have ended."""
    name_servers: Sequence[str]
    scheduler: Scheduler
    journal: Journal
    groups: Sequence[str]
    """The names of the groups. What follows is about the first one, but for the judges."""
    model: GroupModel
    judge: ClientJudge
    judges: GroupJudges
    members: Members
    wishes: Wishes
    load_stopped: bool = False
    invariants: list[Invariant] = field(default_factory=list)
    name_server_watchers: list[NameServerWatcher] = field(default_factory=list)
    consumed_offsets: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    """(consumer group, queue id) -> the offsets that consumers' applications got."""

    def is_calm(self) -> bool:
        """True when the time of faults is over."""
        return self.scheduler.now_ns >= self.calm_ns

    async def pause(self, runtime: Runtime, mean_s: float) -> None:
        """Waits until an actor is to do something again; once the load has stopped for ever."""
        await runtime.sleep(runtime.random.expovariate(1 / mean_s))
        while self.load_stopped:
            await runtime.sleep(runtime.random.expovariate(1 / mean_s))

    def stay_s(self, random: Random, mean_s: float) -> float:
        """Draws how long a consumer stays. The one that is there when the load has stopped stays to the end: nobody
        else would read what is left."""
        return 3600.0 if self.load_stopped else random.expovariate(1 / mean_s)

    def consumed(self, queue: MessageQueue, offset: int) -> None:
        """A consumer's application got a message."""
        self.journal.did("message read")
        self.consumed_offsets.setdefault((queue.broker_name, queue.queue_id), set()).add(offset)

    def sent(self, sender: str, results: Sequence[SendResult], *, once: bool) -> None:
        """Messages are acknowledged; `once`: the group has one copy of each, whatever was repeated."""
        self.journal.did("message acknowledged", len(results))
        if once:
            self.judges.placed(sender, results)

    def unknown(self, messages: int) -> None:
        """The outcome of so many messages is unknown: they may be stored or not."""
        self.journal.did("message of unknown outcome", messages)

    def answered(self) -> None:
        """A question about a queue or a consumer group's offset has its answer."""
        self.journal.did("question answered")

    def invariant(self, kind: type[AnyInvariant]) -> AnyInvariant:
        """Returns the invariant of that kind, for its actor."""
        return next(invariant for invariant in self.invariants if isinstance(invariant, kind))


class Invariant:
    """A promise about an actor's work; one instance a run, whatever the number of processes and restarts.

    Every hook may raise `Violation`; none does anything unless it is overridden. Times are true ones, in nanoseconds.
    """

    asks_readers = False
    """`check_end` asks if readers have come to the end: the end waits for them for a while."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def committed(self, message: CommittedMessage) -> None:
        """A message has been committed, in the order of the log; no node need have applied it."""

    def applied(self, command: Command, now_ns: int) -> None:
        """A metadata command has been committed."""

    def waiting(self) -> Iterable[CommittedMessage]:
        """Returns the messages that nobody can get yet: age alone takes none of them."""
        return ()

    def check_node(self, host: BrokerHost, replica: Replica) -> None:
        """At the end, for every node: it has applied everything."""

    def check_end(self) -> None:
        """At the end: the load stopped six seconds ago, and no fault has happened for twenty."""


AnyInvariant = TypeVar("AnyInvariant", bound=Invariant)
