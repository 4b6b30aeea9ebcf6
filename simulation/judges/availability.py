"""Liveness while faults go on: what a group owes as long as a majority of its voters is left alone.

A *core* is a majority of the voters whose machines are whole (they run, and nothing is wrong with disk, clock or
memory of what they promised) and whose links to each other are whole and up. Whatever befalls the others, a core

- serves: within `Bounds.leader_ns` somebody leads it, and what that leader has appended is committed;
- keeps its leader: one that belongs to it steps down against its will at most once for each member outside, which may
  bring a term from before the core stood;
- keeps up: each of its members has applied what was committed `Bounds.leader_ns` ago;
- serves clients, where nothing is wrong with these (`stands`): within `Bounds.client_ns` a send is acknowledged.

And two whole machines of members, learners among them, whose links are whole have connections in both directions within
`Bounds.links_ns`. The bounds follow from the group's own settings; docs/simulation.md has the argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from broker.assembly import raft_options_of
from broker.client.producing.producer import SEND_TIMEOUT_S
from broker.node.links import PATIENCE
from broker.replica.inner_limits import InnerLimits
from broker.settings.tables import Settings
from broker.statistics.events import EventKind
from raft.reasons import Reason
from simulation.journal import Violation
from simulation.judges.client_judge import ClientJudge
from simulation.judges.group_model import GroupModel
from simulation.judges.limits import check_limits
from simulation.judges.waits import Waits
from simulation.machines.broker_host import BrokerHost, is_undisturbed
from simulation.machines.clock import RATE_MAX_PPM
from simulation.machines.members import Members
from simulation.machines.network import Network
from simulation.scheduler import MILLISECOND, SECOND, Scheduler

SERVES: Final = "a core serves"
STAYS: Final = "a core keeps its leader"
KEEPS_UP: Final = "a core keeps up"
LINKED: Final = "whole links are up"
SERVES_CLIENTS: Final = "a core serves clients"

_LOOK_NS: Final = 100 * MILLISECOND
_SEND_NS: Final = int(SEND_TIMEOUT_S * SECOND)
"""The time limit of a send, with all its attempts."""
_FAILED_SENDS: Final = 3
"""The least number of attempts behind a finding that clients are not served."""
_ON_PURPOSE: Final = frozenset(
    reason.value
    for reason in (Reason.TRANSFER, Reason.PREFERRED, Reason.STOP, Reason.DISK_FULL, Reason.REMOVED)
)
_ROUNDS_IN_VAIN: Final = 3
_VOTE_ROUNDS: Final = 4
"""Rounds of a PreVote that may be refused, and those in which votes are waited for, as in raft/election.py."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The times that a whole core may take, in true time, at the slowest clocks that there are."""

    leader_ns: int
    links_ns: int
    client_ns: int


def bounds_of(settings: Settings) -> Bounds:
    """Derives the bounds of a group from the settings of its nodes."""
    options = raft_options_of(settings, InnerLimits())
    silence_ns = options.election_timeout_max_ns + options.heartbeat_interval_ns
    asked_ns = sum(
        min(options.campaign_round_ns << attempt, options.election_timeout_min_ns)
        for attempt in range(_ROUNDS_IN_VAIN)
    )
    votes_ns = min(
        _VOTE_ROUNDS * options.campaign_round_ns << _ROUNDS_IN_VAIN, options.election_timeout_min_ns
    )
    election_ns = 3 * (asked_ns + votes_ns) // 2  # each round lasts up to half longer
    leader_ns = _at_slow_clocks(2 * (silence_ns + election_ns))
    links_ns = PATIENCE.answer_ns + PATIENCE.refused_rest_ns + PATIENCE.connect_ns + PATIENCE.rest_ns_max
    return Bounds(leader_ns, _at_slow_clocks(links_ns), leader_ns + _at_slow_clocks(_SEND_NS))


def _at_slow_clocks(duration_ns: int) -> int:
    return duration_ns * 1_000_000 // (1_000_000 - RATE_MAX_PPM)


@dataclass(slots=True)
class _Pair:
    """Two machines: since when they, and the network between them, are whole, and since when they are connected."""

    whole_ns: int | None = None
    linked_ns: int | None = None
    connections: tuple[Any, ...] = ()
    """The links in both directions."""
    unlinked_ns: int = 0
    """When they last became whole, or last were connected, whichever was later."""


class Availability:
    """Looks at one group ten times a second. Nothing is drawn or changed here."""

    def __init__(
        self,
        scheduler: Scheduler,
        network: Network,
        members: Members,
        model: GroupModel,
        judge: ClientJudge,
    ) -> None:
        self._scheduler = scheduler
        self._network = network
        self._members = members
        self._model = model
        self._judge = judge
        self._bounds: Bounds | None = None
        self.waits = Waits(network)
        self._whole: dict[str, tuple[int, int]] = {}
        """Machine -> since when nothing is wrong with it, and its process."""
        self._pairs: dict[tuple[str, str], _Pair] = {}
        self._voters: tuple[str, ...] = ()
        self._disturbed_ns = 0
        self._handed_over = 0
        self._core: tuple[str, ...] = ()
        self._core_ns = 0
        """Since when the core stands."""
        self._served_ns = 0
        self._seen_index = -1
        self._stepped_down = 0
        """Leaders of the core that stepped down against their will when it began to owe a leader."""
        self._committed: deque[tuple[int, int]] = deque()
        """(time, index of the last committed entry) of each look within the bound."""
        self._stands_ns: int | None = None
        self.stood_ns = 0
        """For how long, in all, a core stood that owed a leader: what was judged."""

    def start(self) -> None:
        """Looks from now on, for ever."""
        self._scheduler.after(_LOOK_NS, self._look)

    def disturbed(self) -> None:
        """Hears that something was done to the whole group, such as calls for elections: it owes from now on what it
        owes."""
        self._disturbed_ns = self._scheduler.now_ns

    def stands(self) -> None:
        """Is told that all clients and name servers are whole now, and so is a core of the members, however broken the
        others are: from now on sends must be acknowledged in time."""
        self._stands_ns = self._scheduler.now_ns

    # ---- what is whole -------------------------------------------------------------------------------

    def _look(self) -> None:
        self._scheduler.after(_LOOK_NS, self._look)
        hosts = {host.name: host for host in self._members.machines if host.in_service}
        for host in hosts.values():
            check_limits(host)
        # The members are those of the newest committed configuration, which the model knows: nodes may lag behind it.
        voters = [hosts[name] for name in self._model.voters if name in hosts]
        members = [*voters, *(hosts[name] for name in self._model.learners if name in hosts)]
        now_ns = self._scheduler.now_ns
        self.waits.look({host.name: host for host in members}, self._model.voters, now_ns)
        if len(voters) < 2:
            return
        if self._bounds is None:
            self._bounds = bounds_of(voters[0].settings)
        self._look_at_machines(members, now_ns)
        core_ns, core = self._best_core(voters)
        if core_ns is not None and not self._owes(hosts, voters, core):
            self._disturbed_ns = now_ns
        if self._is_served(voters):
            self._served_ns = now_ns
        while self._committed and self._committed[0][0] < now_ns - self._bounds.leader_ns:
            self._committed.popleft()
        if core_ns is None:
            self._core = ()
        else:
            self._judge_core([hosts[name] for name in core], max(core_ns, self._disturbed_ns), len(hosts))
        self._committed.append((now_ns, self._model.last_index))
        self._seen_index = self._model.last_index

    def _look_at_machines(self, members: Sequence[BrokerHost], now_ns: int) -> None:
        # Nobody looks at who is no member: what befell it meanwhile is not known when it is one again.
        names = {host.name for host in members}
        self._whole = {name: known for name, known in self._whole.items() if name in names}
        for host in members:
            if not _is_whole(host, now_ns):
                self._whole.pop(host.name, None)
            # Its process may have ended and begun again between two looks.
            elif self._whole.get(host.name, (0, -1))[1] != host.incarnation:
                self._whole[host.name] = now_ns, host.incarnation
        for one, other in combinations(sorted(members, key=lambda host: host.name), 2):
            self._look_at_pair(one, other, now_ns)

    def _look_at_pair(self, one: BrokerHost, other: BrokerHost, now_ns: int) -> None:
        pair = self._pairs.setdefault((one.name, other.name), _Pair())
        is_whole = one.name in self._whole and other.name in self._whole
        if not is_whole or not all(
            self._is_path_whole(source, target) for source, target in ((one, other), (other, one))
        ):
            pair.whole_ns = pair.linked_ns = None
            return
        # One of the two is whole anew since the last look: the time of their links begins again, too.
        if pair.whole_ns is None or pair.whole_ns < max(self._whole[one.name][0], self._whole[other.name][0]):
            pair.whole_ns = pair.unlinked_ns = now_ns
        connections = _connections(one, other)
        if None in connections:
            pair.linked_ns = None
            assert self._bounds is not None
            if now_ns - pair.unlinked_ns > self._bounds.links_ns:
                seconds = (now_ns - pair.unlinked_ns) / SECOND
                raise Violation(LINKED, one.name, f"no links with {other.name} for {seconds:.1f} s")
            return
        pair.unlinked_ns = now_ns
        # A link that was made anew since the last look has lost what was on it: its time begins again.
        if pair.linked_ns is None or any(
            now is not before for now, before in zip(connections, pair.connections, strict=True)
        ):
            pair.linked_ns = now_ns
        pair.connections = connections

    def _is_path_whole(self, source: BrokerHost, target: BrokerHost) -> bool:
        link = self._network.link(source.name, target.name)
        return not (link.cut or link.clogged or link.loss or link.slowed_by)

    def _is_path_open(self, source: BrokerHost, target: BrokerHost) -> bool:
        link = self._network.link(source.name, target.name)
        return not (link.cut or link.clogged)

    def _best_core(self, voters: Sequence[BrokerHost]) -> tuple[int | None, tuple[str, ...]]:
        """Returns the majority of voters that has been whole for longest, and since when; None if there is none.

        The present core as long as it stands.
        """
        best: tuple[int | None, tuple[str, ...]] = (None, ())
        names = sorted(host.name for host in voters)
        size = len(self._model.voters) // 2 + 1
        # The present one first: another that has stood as long does not take its place, with which all bounds would
        # begin anew.
        for chosen in (self._core, *combinations(names, size)):
            since = self._whole_since(chosen) if len(chosen) == size else None
            if since is not None and (best[0] is None or since < best[0]):
                best = since, chosen
        return best

    def _whole_since(self, names: Sequence[str]) -> int | None:
        since = 0
        for name in names:
            if name not in self._whole or name not in self._model.voters:
                return None
            since = max(since, self._whole[name][0])
        for one, other in combinations(names, 2):
            pair = self._pairs.get((one, other))
            if pair is None or pair.linked_ns is None:
                return None
            since = max(since, pair.linked_ns)
        return since

    def _owes(
        self, hosts: dict[str, BrokerHost], voters: Sequence[BrokerHost], core: tuple[str, ...]
    ) -> bool:
        """Returns False while something goes on that is no fault of a machine, or too many half work.

        Members change, leadership is handed over; or a node outside the core is neither gone nor whole, unless the
        rest is broken on purpose (`stands`): it may lead, slowly, or be needed by a leader that reaches only some.
        """
        # A change of members makes another majority, whose time begins with the look that sees it.
        members = (*self._model.voters, *self._model.learners)
        if members != self._voters:
            self._voters = members
            return False
        handed_over = 0
        for host in voters:
            process = host.process
            if process is None:
                continue
            raft = process.replica.raft
            if raft.transferee is not None or raft.configuration_index > raft.commit_index:
                return False
            # A leader that went on purpose may have gone and come back between two looks: only its count tells.
            handed_over += sum(
                count
                for (event, reason), count in process.node.events.counts.items()
                if event is EventKind.STEPPED_DOWN and reason in _ON_PURPOSE
            )
        if handed_over != self._handed_over:
            self._handed_over = handed_over
            return False
        if self._stands_ns is not None:
            return True
        outside = [host for host in voters if host.name not in core]
        return not any(self._half_works(host, hosts) for host in outside)

    def _half_works(self, host: BrokerHost, hosts: dict[str, BrokerHost]) -> bool:
        if host.process is None or host.paused:
            return False
        if not _is_whole(host, self._scheduler.now_ns) and not host.process.is_stopping:
            return True
        others = [other for other in hosts.values() if other is not host]
        links = [self._network.link(host.name, other.name) for other in others]
        links += [self._network.link(other.name, host.name) for other in others]
        return any(link.clogged or link.loss or link.slowed_by for link in links)

    # ---- what is owed --------------------------------------------------------------------------------

    def _judge_core(self, core: Sequence[BrokerHost], since_ns: int, members: int) -> None:
        assert self._bounds is not None
        now_ns, leader_ns = self._scheduler.now_ns, self._bounds.leader_ns
        names = tuple(host.name for host in core)
        if names != self._core or since_ns != self._core_ns:
            self._core, self._core_ns = names, since_ns
            self._stepped_down = _stepped_down(core)
        if now_ns - max(since_ns, self._served_ns) > leader_ns:
            raise Violation(
                SERVES,
                " ".join(names),
                f"whole since {since_ns / SECOND:.1f} s, and nothing is led or committed since "
                f"{self._served_ns / SECOND:.1f} s",
            )
        # Who steps down in this time does it because of what was before the core was whole.
        if now_ns - since_ns <= leader_ns:
            self._stepped_down = _stepped_down(core)
            return
        self.stood_ns += _LOOK_NS
        stepped_down = _stepped_down(core) - self._stepped_down
        if stepped_down > members - len(core):
            raise Violation(
                STAYS,
                " ".join(names),
                f"{stepped_down} times a leader was deposed in {(now_ns - since_ns - leader_ns) / SECOND:.1f} s",
            )
        owed = self._committed[0][1] if self._committed else -1
        for host in core:
            assert host.process is not None, "it is whole"
            applied = host.process.replica.applied_index
            if applied < owed:
                raise Violation(
                    KEEPS_UP,
                    host.name,
                    f"has applied {applied}, committed was {owed} already {leader_ns / SECOND:.1f} s ago",
                )
        self._judge_clients(since_ns)

    def _judge_clients(self, since_ns: int) -> None:
        asked = self._judge.unanswered
        if self._stands_ns is None or asked.sends < _FAILED_SENDS:
            return
        assert self._bounds is not None
        waited_ns = self._scheduler.now_ns - max(since_ns, self._stands_ns, asked.since_ns)
        if waited_ns > self._bounds.client_ns:
            raise Violation(
                SERVES_CLIENTS,
                " ".join(self._core),
                f"{asked.sends} attempts to send in {waited_ns / SECOND:.1f} s, none was acknowledged",
            )

    def _is_served(self, voters: Sequence[BrokerHost]) -> bool:
        """True if somebody leads who is in touch with a majority, and what it has appended comes to be committed."""
        leaders = [host for host in voters if self._leads(host, voters)]
        if not leaders:
            return False
        # A deposed leader serves on until it hears of that; what it cannot commit says nothing.
        raft = max((_raft(host) for host in leaders), key=lambda raft: raft.term)
        is_all: bool = raft.commit_index >= raft.log_terms.last_index
        return is_all or self._model.last_index > self._seen_index

    def _leads(self, host: BrokerHost, voters: Sequence[BrokerHost]) -> bool:
        process = host.process
        if process is None or host.paused or not process.replica.serving:
            return False
        reached = sum(
            other is not host
            and other.process is not None
            and not other.paused
            and self._is_path_open(host, other)
            and self._is_path_open(other, host)
            for other in voters
        )
        return 2 * (1 + reached) > len(self._model.voters)


def _raft(host: BrokerHost) -> Any:
    assert host.process is not None
    return host.process.replica.raft


def _is_whole(host: BrokerHost, now_ns: int) -> bool:
    """True if nothing is wrong with the machine, and the vote of its node counts."""
    return is_undisturbed(host, now_ns) and _raft(host).recovering is None


def _connections(one: BrokerHost, other: BrokerHost) -> tuple[Any, ...]:
    """Returns the links that two running nodes have dialled to each other, as each knows of its own; None without one.

    One that the other end has lost without a word counts: nothing is known of that until something is sent.
    """
    assert one.process is not None, "it runs"
    assert other.process is not None, "it runs"
    return (
        one.process.replica.links.get(other.name),
        other.process.replica.links.get(one.name),
    )


def _stepped_down(core: Sequence[BrokerHost]) -> int:
    """Returns how often leaders among these, in their present processes, have stepped down against their will."""
    return sum(
        count
        for host in core
        if host.process is not None
        for (event, reason), count in host.process.node.events.counts.items()
        if event is EventKind.STEPPED_DOWN and reason not in _ON_PURPOSE
    )
