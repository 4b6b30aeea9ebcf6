"""The safety properties of figure 3 and what else must hold in every reachable state, checked against whole logs.

`Invariants` watches the effects of all hosts, crashes included, and keeps what the group as a whole has promised.
"""

from itertools import combinations

from raft import HardState, Loss, Role
from raft.effects import Committed, Effect, ReadReady, ResetLog, RoleChanged, Send, TruncateLog
from raft.messages import VoteResponse
from tests.raft.cluster import Cluster, Entry, Host


class Violation(AssertionError):  # noqa: N818  (a violation is what the tests look for, not an error of theirs)
    """A safety property does not hold."""


def require(condition: bool, text: str) -> None:
    if not condition:
        raise Violation(text)


class Invariants:
    """The promises that the group has made so far, and the check that no host contradicts them."""

    def __init__(self, cluster: Cluster, *, durable: bool = True) -> None:
        """`durable`: also require that what is committed is on a majority's disks."""
        self.cluster = cluster
        self.durable = durable
        self.leaders: dict[int, str] = {}
        self.votes: dict[tuple[str, int], tuple[object, str]] = {}
        # Every committed entry by index, with the term in which its commit was first known.
        self.committed: list[tuple[Entry, int]] = []
        self.leader_logs: dict[tuple[str, int], list[Entry]] = {}
        self.commit_of_host: dict[str, tuple[object, int]] = {}
        self.read_floor: dict[object, int] = {}
        for host in cluster.hosts.values():
            require(host.log.first_index == 0, "the checks need logs from the beginning")
        cluster.observers.append(self.observe)

    def observe(self, host: Host, effect: Effect) -> None:
        match effect:
            case RoleChanged(Role.LEADER, term, _):
                self._elected(host, term)
            case Committed(index):
                self._committed(host, index)
            case Send(VoteResponse(granted=True, pre_vote=False) as response):
                self._voted(host, response)
            case TruncateLog(last_index):
                require(last_index >= self._commit_of(host), f"{host.node} truncated committed entries")
            case ResetLog(first_index):
                require(first_index > self._commit_of(host), f"{host.node} took committed entries back")
            case ReadReady(token, index):
                require(index >= self.read_floor.get(token, -1), f"read {token} misses what was committed")
            case _:
                pass

    def read_requested(self, token: object) -> None:
        self.read_floor[token] = len(self.committed) - 1

    def _commit_of(self, host: Host) -> int:
        incarnation, index = self.commit_of_host.get(host.node, (None, -1))
        return index if incarnation is host.raft else -1

    def _elected(self, host: Host, term: int) -> None:
        """Election safety (5.2) and leader completeness (5.4.3)."""
        other = self.leaders.setdefault(term, host.node)
        require(other == host.node, f"{other} and {host.node} were both elected in term {term}")
        for index, (entry, committed_in) in enumerate(self.committed):
            if committed_in < term and index >= host.log.first_index:
                held = host.log[index] if index <= host.log.last_index else None
                require(held == entry, f"leader {host.node} of term {term} lacks committed entry {index}")
        self.leader_logs[host.node, term] = list(host.log.entries)

    def _voted(self, host: Host, response: VoteResponse) -> None:
        """One vote per term and disk, written before it is sent, also across restarts (5.2).

        A new disk may give a vote again that elects nobody any more (raft/recovery.py): then there are no two leaders.
        """
        key = (host.node, response.request_term)
        disk, candidate = self.votes.get(key, (None, ""))
        is_again = disk is host.disk and candidate != response.target
        require(not is_again, f"{key} voted for {candidate} and {response.target}")
        self.votes[key] = host.disk, response.target
        # A node that has lost its votes notes that it has none left in that term, and not whose it was.
        noted = host.node if response.recovering and host.loss is Loss.VOTE else response.target
        require(
            host.hard_state == HardState(response.request_term, noted),
            f"{host.node} promised a vote that is not on its disk",
        )

    def _committed(self, host: Host, index: int) -> None:
        """State machine safety (5.4.3): no two hosts commit different entries at one index."""
        before = self._commit_of(host)
        require(index > before, f"the commit index of {host.node} fell from {before} to {index}")
        self.commit_of_host[host.node] = (host.raft, index)
        led = self.leaders.get(host.up.term) == host.node  # it may have stepped down by this very commit
        for position in range(max(before + 1, host.log.first_index), index + 1):
            entry = host.log[position]
            if position < len(self.committed):
                known = self.committed[position][0]
                require(known == entry, f"{host.node} commits {entry} at {position}, others {known}")
            else:
                require(position == len(self.committed), f"{host.node} commits {position} out of the blue")
                require(led, "only a leader can be the first to commit")
                self.committed.append((entry, host.up.term))
        if led and self.durable:
            self._is_on_majority(host, index)

    def _is_on_majority(self, leader: Host, index: int) -> None:
        entry = leader.log[index]
        voters = leader.up.configuration.voters
        holders = 0
        for voter in voters:
            host = self.cluster.hosts[voter]
            log = host.durable_log
            if host.loss is not None:
                holders += 1  # what it acknowledged still counts, and it must not act as if it had it
            elif index < log.first_index or (index <= log.last_index and log[index] == entry):
                holders += 1
        require(holders > len(voters) // 2, f"entry {index} is committed on {holders} of {len(voters)} disks")

    def check(self) -> None:
        """Checks the safety properties of the present state; raises `Violation`."""
        hosts = list(self.cluster.hosts.values())
        for host in hosts:
            if host.raft is not None:
                self._check_view(host)
        for one, other in combinations(hosts, 2):
            self._check_log_matching(one, other)

    def _check_view(self, host: Host) -> None:
        """The state machine's view of its log is the log; a leader has only appended to it (5.3)."""
        raft, log = host.up, host.log
        view = raft.log_terms
        require((view.first_index, view.last_index) == (log.first_index, log.last_index), "the log's ends")
        terms = [view.term_at(index) for index in range(log.first_index, log.last_index + 1)]
        require(terms == [entry.term for entry in log.entries], f"{host.node} mistakes the terms of its log")
        require(view.base_term == log.base_term, "the term before the log")
        require(list(raft.configurations) == log.configurations(), f"{host.node} mistakes its configurations")
        require(raft.commit_index <= log.last_index, "the commit index lies beyond the log")
        require(raft.persisted_index <= log.last_index, f"{host.node} takes more for durable than it has")
        durable = host.durable_log
        for index in range(log.first_index, raft.persisted_index + 1):
            on_disk = durable[index] if index <= durable.last_index else None
            require(on_disk == log[index], f"{host.node} takes entry {index} for durable")
        if raft.role is Role.LEADER:
            require(self.leaders.get(raft.term) == host.node, "a leader that was never elected")
            known = self.leader_logs[host.node, raft.term]
            self.leader_logs[host.node, raft.term] = self._append_only(host, known)

    def _append_only(self, host: Host, known: list[Entry]) -> list[Entry]:
        """Leader append-only; `known` is the leader's log as last seen, from wherever it began then."""
        held = list(host.log.entries)
        if held and known and held[0] in known:
            known = known[known.index(held[0]) :]  # retention removed what lies before
        elif known and host.log.first_index > 0:
            known = []
        require(held[: len(known)] == known, f"leader {host.node} changed its own log")
        return held

    def _check_log_matching(self, one: Host, other: Host) -> None:
        """5.3: two logs that agree in index and term of an entry agree in all entries up to it."""
        first = max(one.log.first_index, other.log.first_index)
        last = min(one.log.last_index, other.log.last_index)
        agreeing = False
        for index in range(last, first - 1, -1):
            left, right = one.log[index], other.log[index]
            agreeing = agreeing or left.term == right.term
            require(not agreeing or left == right, f"{one.node} and {other.node} differ at {index}")
