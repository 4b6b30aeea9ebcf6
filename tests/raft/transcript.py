"""Messages and effects as one line of text each, and the commands of the scenario files.

A scenario is a text file of commands, each followed by what it caused (tests/scenario_files.py). The commands:

    group A B C [learner L] [spare S] [flush manual] [append N]
                               a new group; `append N`: at most N entries in a request
    log A 1x3 4x2 [term 5]     A begins with three entries of term 1 and two of term 4 and, unless it is that of the
                               last entry, in term 5 (only right after `group`)
    timeout A                  time passes until A's deadline, A's clock ticks
    pause A MS [disk]          A finds that it did nothing for MS milliseconds, or waited for its disk
    wait MS                    MS milliseconds pass, nobody's clock ticks
    run MS                     MS milliseconds pass, all clocks tick, all messages arrive at once
    elect A                    A's election timeout passes, all messages arrive (quiet: shows the outcome only)
    deliver [A->B] [N]         delivers all (or N) messages under way, or those from A to B; only those there now
    settle                     delivers until nothing is under way
    drop A->B [N]              loses messages; either side may be `*`
    duplicate A->B             repeats the newest message from A to B
    reverse A->B               turns the order of the messages from A to B round
    partition A B | C          silently separates the two sides, until `heal`
    disconnect A B, connect A B    A learns that its connection to B is gone, or there
    crash A, restart A         loses what is not flushed; nobody is told
    lose A I, replace A        of A, which is down: its disk loses the entries from I on; is another, empty one
    flush A                    A's log is on its disk
    propose A N                A proposes N entries
    read A TOKEN               A is asked for a read index
    transfer A B               A is asked to hand over to B
    resign A                   A gives up its leadership, for want of room
    add A N, promote A N, remove A N    A is asked to change the membership
    compact A I                retention at A removes the entries before I
    quiet COMMAND ...          executes a command without showing what it causes
    logs, status A             shows the logs (term x count) and commit indices; what A knows
"""

from collections.abc import Callable
from itertools import groupby

from raft import (
    AddLearner,
    Cause,
    Configuration,
    HardState,
    PromoteLearner,
    Reason,
    RemoveMember,
    Role,
)
from raft.effects import (
    AcceptEntries,
    AppendConfiguration,
    AppendNoop,
    Committed,
    ConfigurationChanged,
    Effect,
    PeerSlow,
    ReadLost,
    ReadReady,
    RecoveryChanged,
    ResetLog,
    RoleChanged,
    SaveHardState,
    Send,
    SnapshotNeeded,
    TruncateLog,
)
from raft.errors import RaftError
from raft.messages import (
    AppendRequest,
    AppendResponse,
    Message,
    RecoveryRequest,
    RecoveryResponse,
    SnapshotRequest,
    SnapshotResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from tests.raft.cluster import MILLISECOND, Cluster, Entry, Host, Log, Packet
from tests.raft.invariants import Invariants


def members(configuration: Configuration) -> str:
    learners = f" learners {' '.join(configuration.learners)}" if configuration.learners else ""
    return f"voters {' '.join(configuration.voters)}{learners}"


def runs(terms: list[int]) -> str:
    return " ".join(f"{term}x{len(list(run))}" for term, run in groupby(terms)) or "empty"


def describe(message: Message) -> str:
    """Describes a message without its source and target."""
    match message:
        case VoteRequest():
            kind = "pre-vote?" if message.pre_vote else "vote?"
            transfer = " (transfer)" if message.leadership_transfer else ""
            return (
                f"{kind} term {message.term}, log ends at {message.last_index}/{message.last_term}{transfer}"
            )
        case VoteResponse():
            kind = "pre-vote" if message.pre_vote else "vote"
            answer = "yes" if message.granted else f"no, in term {message.term}"
            mark = ", recovering" if message.recovering else ""
            return f"{kind} for term {message.request_term}: {answer}{mark}"
        case AppendRequest():
            what = " ".join(f"{term}x{count}" for term, count in message.spans) or "nothing"
            where = f"after {message.prev_index}/{message.prev_term}"
            rest = f"commit {message.commit_index}, round {message.round}"
            changes = "".join(f", {members(c)} at {index}" for index, c in message.configurations)
            return f"term {message.term}: append {what} {where}, {rest}{changes}"
        case AppendResponse(success=True):
            durable = (
                "" if message.match_index == message.log_index else f", durable to {message.match_index}"
            )
            return f"term {message.term}: agrees to {message.log_index}{durable}, round {message.round}"
        case AppendResponse():
            hint = f"try {message.hint_index}/{message.hint_term}"
            return f"term {message.term}: refuses {message.log_index}, {hint}, round {message.round}"
        case SnapshotRequest():
            base = f"begin at {message.first_index} after term {message.prev_term}"
            return f"term {message.term}: snapshot, {base}, {members(message.configuration)}"
        case SnapshotResponse():
            return f"term {message.term}: snapshot taken, agrees to {message.match_index}"
        case TimeoutNow():
            return f"term {message.term}: timeout now"
        case RecoveryRequest():
            return f"term {message.term}: recovers, what must be held?"
        case RecoveryResponse():
            if not message.has_history:
                return "has no history"
            leads = f", leads and wants {message.commit_index} held" if message.leads else ""
            return f"is in term {message.term}{leads}"


def told(cause: Cause) -> str:
    who = f" of {cause.peer}" if cause.peer else ""
    return f"{cause.reason.value}{who}" + (f", {cause.after_ns // MILLISECOND} ms" if cause.after_ns else "")


def line_of(node: str, effect: Effect) -> str:
    """One line of a transcript."""
    match effect:
        case Send(message):
            return f"{message.source}->{message.target} {describe(message)}"
        case SnapshotNeeded(message):
            return f"{message.source}->{message.target} {describe(message)}"
        case SaveHardState(term, vote):
            return f"{node} saves term {term}, vote {vote or 'none'}"
        case TruncateLog(last_index):
            return f"{node} truncates to {last_index}"
        case AcceptEntries(message, first_index, skip):
            skipped = f" (skips {skip})" if skip else ""
            return f"{node} writes {first_index}..{message.last_index}{skipped}"
        case ResetLog(first_index, base_term, _, configuration):
            return f"{node} begins anew at {first_index} after term {base_term}, {members(configuration)}"
        case AppendNoop(index, term):
            return f"{node} writes {index}: no-op of term {term}"
        case AppendConfiguration(index, term, configuration):
            return f"{node} writes {index}: {members(configuration)} in term {term}"
        case RoleChanged(role, term, leader, cause):
            whose = f" of {leader}" if leader and role is Role.FOLLOWER else ""
            return f"{node} is {role.value}{whose} in term {term}: {told(cause)}"
        case Committed(index):
            return f"{node} commits to {index}"
        case ReadReady(token, index):
            return f"{node} read {token} is ready at {index}"
        case ReadLost(token):
            return f"{node} read {token} is lost"
        case ConfigurationChanged(index, configuration, committed):
            return f"{node} {members(configuration)} since {index}{', committed' if committed else ''}"
        case PeerSlow(peer, since_ns, lag):
            return f"{node} finds {peer} slow: {since_ns // MILLISECOND} ms, lacks {lag}"
        case RecoveryChanged(loss):
            return f"{node} {'has recovered' if loss is None else 'is recovering, lost: ' + loss.value}"


class Scenario:
    """Executes commands on a group and notes what they cause."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.cluster = Cluster(["a"])
        self.invariants = Invariants(self.cluster)

    def execute(self, command: str) -> list[str]:
        """Executes one command and returns what it caused, a line each; checks the safety properties after it."""
        name, *words = command.split()
        quiet = name == "quiet"
        if quiet:
            name, *words = words
        self.lines = []
        action: Callable[..., None] = getattr(self, f"do_{name}")
        try:
            action(*words)
        except RaftError as error:
            self.lines.append(f"refused: {type(error).__name__}: {error}")
        self.invariants.check()
        return [] if quiet else self.lines

    def _observe(self, host: Host, effect: Effect) -> None:
        self.lines.append(line_of(host.node, effect))

    def do_group(self, *words: str) -> None:
        kinds: dict[str, list[str]] = {"voter": [], "learner": [], "spare": [], "flush": [], "append": []}
        kind = "voter"
        for word in words:
            if word in kinds:
                kind = word
            else:
                kinds[kind].append(word)
        self.cluster = Cluster(
            kinds["voter"],
            kinds["learner"],
            spare=kinds["spare"],
            auto_flush=kinds["flush"] != ["manual"],
            entries_per_append=int(kinds["append"][0]) if kinds["append"] else 1000,
        )
        self.invariants = Invariants(self.cluster)
        self.cluster.observers.append(self._observe)

    def do_log(self, node: str, *spans: str) -> None:
        known_term = int(spans[-1]) if "term" in spans else 0
        spans = spans[: spans.index("term")] if "term" in spans else spans
        terms = [int(span.split("x")[0]) for span in spans for _ in range(int(span.split("x")[1]))]
        host = self.cluster[node]
        entries = [Entry(term, f"old{index}.{term}") for index, term in enumerate(terms)]
        host.crash()
        host.durable_log = Log(entries, host.log.base)
        host.hard_state = HardState(max([known_term, *terms]))
        host.start()

    def do_timeout(self, node: str) -> None:
        deadline = self.cluster[node].up.deadline()
        assert deadline is not None, f"{node} waits for nothing"
        self.cluster.now = max(self.cluster.now, deadline)
        self.cluster.tick(self.cluster[node])

    def do_pause(self, node: str, milliseconds: str, disk: str = "") -> None:
        reason = Reason.SLOW_FLUSH if disk else Reason.LOOP_STALLED
        self.cluster[node].up.paused(reason, int(milliseconds) * MILLISECOND, self.cluster.now)

    def do_wait(self, milliseconds: str) -> None:
        self.cluster.now += int(milliseconds) * MILLISECOND

    def do_run(self, milliseconds: str) -> None:
        self.cluster.run_for(int(milliseconds) * MILLISECOND)

    def do_elect(self, node: str) -> None:
        self.cluster.elect(node)
        self.lines = [f"{node} is leader in term {self.cluster[node].up.term}"]

    def _selected(self, link: str | None, count: str | None) -> list[Packet]:
        source, target = link.split("->") if link else ("*", "*")
        found = [
            packet
            for packet in self.cluster.packets
            if source in ("*", packet.message.source) and target in ("*", packet.message.target)
        ]
        return found[: int(count)] if count else found

    def do_deliver(self, *words: str) -> None:
        link = next((word for word in words if "->" in word), None)
        count = next((word for word in words if "->" not in word), None)
        for packet in self._selected(link, count):
            self.cluster.deliver(packet)

    def do_settle(self) -> None:
        self.cluster.settle()

    def do_drop(self, link: str, count: str | None = None) -> None:
        for packet in self._selected(link, count):
            self.cluster.packets.remove(packet)
            message = packet.message
            self.lines.append(f"lost {message.source}->{message.target} {describe(message)}")

    def do_duplicate(self, link: str) -> None:
        self.cluster.packets.append(self._selected(link, None)[-1])

    def do_reverse(self, link: str) -> None:
        selected = self._selected(link, None)
        self.cluster.packets = [p for p in self.cluster.packets if p not in selected] + selected[::-1]

    def do_partition(self, *words: str) -> None:
        sides = [side.split() for side in " ".join(words).split("|")]
        self.cluster.partition(*sides)

    def do_heal(self) -> None:
        self.cluster.heal()

    def do_disconnect(self, node: str, peer: str) -> None:
        self.cluster.disconnect(node, peer)

    def do_connect(self, node: str, peer: str) -> None:
        self.cluster.connect(node, peer)

    def do_crash(self, node: str) -> None:
        self.cluster.crash(node)

    def do_restart(self, node: str) -> None:
        self.cluster[node].start()

    def do_lose(self, node: str, first_index: str) -> None:
        self.cluster[node].lose_entries(int(first_index))

    def do_replace(self, node: str) -> None:
        self.cluster[node].lose_disk()

    def do_flush(self, node: str) -> None:
        self.cluster[node].begin_flush()
        self.cluster[node].end_flush()

    def do_propose(self, node: str, count: str) -> None:
        self.cluster[node].propose(int(count))

    def do_read(self, node: str, token: str) -> None:
        self.invariants.read_requested(token)
        host = self.cluster[node]
        host.up.read_index(token)
        host.turn()

    def do_resign(self, node: str) -> None:
        self.cluster[node].up.resign(Reason.DISK_FULL, self.cluster.now)

    def do_transfer(self, node: str, target: str) -> None:
        self.cluster[node].up.transfer_leadership(target, self.cluster.now)
        self.cluster[node].turn()

    def _change(self, node: str, change: AddLearner | PromoteLearner | RemoveMember) -> None:
        self.cluster[node].up.propose_configuration(change, self.cluster.now)
        self.cluster[node].turn()

    def do_add(self, node: str, member: str) -> None:
        self._change(node, AddLearner(member))

    def do_promote(self, node: str, member: str) -> None:
        self._change(node, PromoteLearner(member))

    def do_remove(self, node: str, member: str) -> None:
        self._change(node, RemoveMember(member))

    def do_compact(self, node: str, first_index: str) -> None:
        self.cluster[node].compact(int(first_index))

    def do_logs(self) -> None:
        for host in self.cluster.hosts.values():
            log = host.log
            begin = f" from {log.first_index}" if log.first_index else ""
            state = f"commit {host.raft.commit_index}" if host.raft else "down"
            self.lines.append(f"{host.node}: {runs([entry.term for entry in log.entries])}{begin}, {state}")

    def do_status(self, node: str) -> None:
        status = self.cluster[node].up.status(self.cluster.now)
        log = f"log {status.first_index}..{status.last_index}, commit {status.commit_index}"
        self.lines.append(
            f"{node}: {status.role} in term {status.term}, leader {status.leader or 'none'}, {log}"
            + (f", recovering ({status.recovering})" if status.recovering else "")
        )
        for peer in status.peers:
            voter = "voter" if peer.voter else "no vote"
            where = f"match {peer.match_index}, next {peer.next_index}, {peer.inflight_appends} in flight"
            self.lines.append(f"  {peer.node}: {peer.state}, {voter}, {where}")
