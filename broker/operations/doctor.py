"""The doctor: what is wrong with a cluster, or soon will be, and what to do about it.

Each check is a function from what was found (examination.py) to findings, and none of them asks anything further.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from broker.client.admin import AdminClient
from broker.client.transport.routes import ordered_counts
from broker.operations.examination import Examination, ExaminedNode, examine
from broker.remoting.addresses import split_address
from broker.remoting.node_status import NodeStatus, loss_in_words

Severity = Literal["fault", "warning", "note"]

CLOCKS_APART_MS: Final = 1_000
"""Clocks of nodes that differ by more are a warning: store times jump at a failover, and delayed messages come early or
late."""
DISK_USED_PERCENT: Final = 75
"""From here on a node deletes its oldest files whatever their age (`retention.disk_clean_percent`)."""
FILES_USED_PERCENT: Final = 80
CERTIFICATE_DAYS: Final = 14
SILENT_MS: Final = 5_000
BEHIND_ENTRIES: Final = 10_000
"""A replica that lacks more entries takes a while to catch up if it has to lead."""

_DAY_MS: Final = 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found: a fault does harm now, a warning will do harm later, a note may be intended.

    ``check`` is the name of the check, ``about`` the node, server or group that it is about, ``advice`` what to do.
    """

    check: str
    severity: Severity
    about: str
    what: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All findings, the worst first; and the checks that were made, in their order."""

    findings: tuple[Finding, ...]
    checks: tuple[str, ...]

    @property
    def is_healthy(self) -> bool:
        """Tell whether there is no fault."""
        return not any(finding.severity == "fault" for finding in self.findings)


async def diagnose(admin: AdminClient, expected: Iterable[str] = ()) -> Diagnosis:
    """Look at the whole cluster, in which the broker groups that are ``expected`` must be there.

    Raises nothing because of servers that do not answer: those are findings.
    """
    return judged(await examine(admin, expected))


def judged(examination: Examination) -> Diagnosis:
    """Return what follows from an examination."""
    found = [
        Finding(check=name, severity=severity, about=about, what=what, advice=advice)
        for name, check in CHECKS.items()
        for severity, about, what, advice in check(examination)
    ]
    if not any(server.brokers is not None for server in examination.name_servers):
        # Nothing else was looked at: there was nobody to name it.
        found = [finding for finding in found if finding.check == "name servers"]
        return Diagnosis(findings=tuple(found), checks=("name servers",))
    order = ("fault", "warning", "note")
    found.sort(key=lambda finding: order.index(finding.severity))
    return Diagnosis(findings=tuple(found), checks=tuple(CHECKS))


_Findings = Iterator[tuple[Severity, str, str, str]]


def _name_servers(examination: Examination) -> _Findings:
    answering = [server for server in examination.name_servers if server.brokers is not None]
    for server in examination.name_servers:
        if server.brokers is None:
            severity: Severity = "warning" if answering else "fault"
            yield (
                severity,
                server.address,
                f"does not answer: {server.failure}",
                "start it, or take it out of the lists of name servers",
            )
    if not answering:
        return
    known = {
        (name, at)
        for server in answering
        for name, members in (server.brokers or {}).items()
        for at in members
    }
    if not known:
        yield (
            "fault",
            answering[0].address,
            "no broker is registered",
            "look at a broker's log: it registers once its group has a leader, and where node.name_servers says",
        )
    yield from _gone(examination, {name for name, _ in known})
    # Brokers register with each name server by themselves (`BrokerOuterAPI.registerBrokerAll`), and clients ask any
    # of them: one that knows less gives some clients a route with less.
    for server in answering:
        own = {(name, at) for name, members in (server.brokers or {}).items() for at in members}
        for name, at in sorted(known - own):
            yield (
                "warning",
                server.address,
                f"does not know {at} of {name}, which another name server knows",
                "name all name servers in node.name_servers of every broker",
            )


def _gone(examination: Examination, known: set[str]) -> _Findings:
    """Finds broker groups that should be there and are not among those that are ``known``.

    Name servers forget whoever stops, or is silent for two minutes (`RouteInfoManager`). So a group that is gone as a
    whole is missed only where somebody names it: whoever asks, or the configuration of an ordered topic.
    """
    for name in examination.expected:
        if name not in known:
            yield (
                "fault",
                name,
                "no name server knows this broker group, which should be there",
                "start its nodes; of those that run, look at their logs, and at node.name_servers",
            )
    ordered: dict[str, set[str]] = {}
    for server in examination.name_servers:
        for topic, groups in server.ordered.items():
            for name, count in ordered_counts(groups):
                if count > 0 and name not in known and name not in examination.expected:
                    ordered.setdefault(name, set()).add(topic)
    for name, topics in sorted(ordered.items()):
        told = ", ".join(sorted(topics))
        yield (
            "fault",
            name,
            f"no name server knows this broker group, which has queues of ordered topics: {told}",
            "start its nodes; if it was given up, take it out of these topics' order configuration",
        )


def _reachable(examination: Examination) -> _Findings:
    for node in examination.nodes:
        if node.status is None:
            yield (
                "fault",
                node.address,
                f"is registered for {node.broker} and gives no status: {node.failure}",
                "start it; if it runs, see that node.advertise can be reached from here, and that this account may ask",
            )


def _names(examination: Examination) -> _Findings:
    """Groups that share a name, or nodes an address: clients are sent from one to the other."""
    by_address: dict[str, set[str]] = {}
    by_broker: dict[str, list[tuple[ExaminedNode, NodeStatus]]] = {}
    for node, status in _answering(examination):
        by_address.setdefault(node.address, set()).add(node.broker)
        by_broker.setdefault(node.broker, []).append((node, status))
        if status.group != node.broker:
            yield (
                "fault",
                node.address,
                f"is registered as {node.broker}, and calls its group {status.group}",
                "see who else listens at its address, and what node.advertise says",
            )
    for address, brokers in by_address.items():
        if len(brokers) > 1:
            yield (
                "fault",
                address,
                f"is registered for several groups: {', '.join(sorted(brokers))}",
                "give each node an address of its own (node.listen, node.advertise)",
            )
    for broker, members in by_broker.items():
        # Voters change one at a time, so two views of one group always have members in common.
        for node, status in members:
            stranger = next((at for at, other in members if not {*status.voters} & {*other.voters}), None)
            same_id = next(
                (at for at, other in members if at is not node and other.node == status.node), None
            )
            if stranger is not None or same_id is not None:
                other_address = (stranger or same_id or node).address
                yield (
                    "fault",
                    broker,
                    f"{node.address} and {other_address} are of different groups with this name",
                    "give each group a name of its own (node.group)",
                )
                break


def _addresses(examination: Examination) -> _Findings:
    hosts = {_host(client.address) for client in examination.clients or ()}
    remote = sorted(host for host in hosts if host and not _is_loopback(host))
    several = len({_host(node.address) for node in examination.nodes}) > 1
    for node in examination.nodes:
        host = _host(node.address)
        if host in ("0.0.0.0", "::", ""):
            yield (
                "fault",
                node.address,
                "clients are given an address to which nobody can connect",
                "set node.advertise to an address that clients reach",
            )
        elif _is_loopback(host) and (remote or several):
            # Such an address leads a client that comes from elsewhere to its own machine.
            others = f"clients come from {remote[0]}" if remote else "other nodes are on other machines"
            yield (
                "fault",
                node.address,
                f"clients are given this machine's own address, and {others}",
                "set node.advertise to an address that clients reach",
            )
    if (
        examination.nodes
        and not remote
        and all(_is_loopback(_host(node.address)) for node in examination.nodes)
    ):
        yield (
            "note",
            "all nodes",
            "only clients on this machine can connect",
            "set node.advertise before clients on other machines connect",
        )


def _clocks(examination: Examination) -> _Findings:
    timed = [(node, node.ahead_ms) for node in examination.nodes if node.ahead_ms is not None]
    if not timed:
        return
    slowest, least_ms = min(timed, key=lambda one: one[1])
    for node, ahead_ms in timed:
        apart_ms = ahead_ms - least_ms
        if apart_ms - (node.round_trip_ms + slowest.round_trip_ms) / 2 > CLOCKS_APART_MS:
            yield (
                "warning",
                node.address,
                f"its clock is {apart_ms / 1000:.1f} s ahead of that of {slowest.address}",
                "let all machines keep their clocks by NTP",
            )


def _disks(examination: Examination) -> _Findings:
    for node, status in _answering(examination):
        total, free = status.disk_total_bytes, status.disk_free_bytes
        if status.disk_full:
            yield (
                "fault",
                node.address,
                "its disk is full, and it takes nothing",
                "make room, or keep messages for a shorter time (retention.reserved_hours)",
            )
        elif total and free is not None and (used := 100 * (total - free) / total) >= DISK_USED_PERCENT:
            yield (
                "warning",
                node.address,
                f"{used:.0f} % of its disk are used, {free / (1 << 30):.1f} GiB are free",
                "make room, or keep messages for a shorter time (retention.reserved_hours)",
            )


def _damage(examination: Examination) -> _Findings:
    for node, status in _answering(examination):
        if status.damage_left:
            yield (
                "fault",
                node.address,
                f"{status.damage_left} entries are damaged on its disk, and no other node has sent them whole yet",
                "start the nodes that are down (docs/operations.md, damage in running nodes)",
            )


def _files(examination: Examination) -> _Findings:
    for node, status in _answering(examination):
        opened, opened_max = status.process.open_files, status.process.open_files_max
        if opened is not None and opened_max and 100 * opened >= FILES_USED_PERCENT * opened_max:
            yield (
                "warning",
                node.address,
                f"it has {opened} files and connections open, of {opened_max} that it may have",
                "raise the limit of open files (LimitNOFILE) and start it again",
            )


def _versions(examination: Examination) -> _Findings:
    for what, advice, of in (
        ("release", "bring all nodes to the same release (docs/upgrading.md)", lambda status: status.release),
        ("format", "wait, or see that all nodes have the newer release", lambda status: f"{status.format}"),
    ):
        by_broker: dict[str, dict[str, str]] = {}
        for node, status in _answering(examination):
            by_broker.setdefault(node.broker, {}).setdefault(of(status), node.address)
        for broker, found in by_broker.items():
            if len(found) > 1:
                told = ", ".join(f"{value or 'unknown'} at {at}" for value, at in sorted(found.items()))
                yield "warning", broker, f"its nodes differ in {what}: {told}", advice


def _certificates(examination: Examination) -> _Findings:
    for node, status in _answering(examination):
        expires_ms = status.process.certificate_expires_ms
        if expires_ms is None:
            continue
        days = (expires_ms - examination.now_ms) / _DAY_MS
        advice = "put a new one in its place and send SIGHUP (docs/security.md)"
        if days <= 0:
            yield "fault", node.address, "its certificate has expired", advice
        elif days < CERTIFICATE_DAYS:
            yield "warning", node.address, f"its certificate expires in {days:.1f} days", advice


def _subscriptions(examination: Examination) -> _Findings:
    if examination.failure is not None:
        yield (
            "warning",
            "clients",
            f"could not be asked for: {examination.failure}",
            "call again when the groups have leaders, as an administrator where there are accounts",
        )
    for group in examination.groups:
        for conflict in group.conflicts:
            wanted = "; ".join(
                f"{', '.join(clients)} want{'s' if len(clients) == 1 else ''} {expression or 'nothing of it'}"
                for expression, clients in conflict.wanted
            )
            yield (
                "fault",
                group.name,
                f"its members subscribe to different things of topic {conflict.topic}: {wanted}",
                "give them the same subscription, or consumer groups of their own: until then they miss messages",
            )


def _replicas(examination: Examination) -> _Findings:
    by_broker: dict[str, list[NodeStatus]] = {}
    for node in examination.nodes:
        # A group of which no node answers is told of, too: it has no leader that serves.
        by_broker.setdefault(node.broker, [])
    for node, status in _answering(examination):
        by_broker[node.broker].append(status)
        if status.recovering is not None:
            yield (
                "warning",
                node.address,
                f"it is recovering: it may lack {loss_in_words(status.recovering)}",
                "keep the others running until it has caught up: before, its vote counts only where all voters agree",
            )
        for sentence in status.recovered:
            yield "note", node.address, f"at its start: {sentence}", "look after its disk"
    for broker, statuses in by_broker.items():
        leader = next((status for status in statuses if status.serving), None)
        if leader is None:
            advice = "see that a majority of its nodes run and reach each other"
            # Nobody can tell one of two voters that the group is an old one (raft/recovery.py, An empty disk).
            if any(status.recovering == "all" and len(status.voters) == 2 for status in statuses):
                advice = (
                    "if its other voter has lost nothing, start the empty one once with "
                    "storage.accept_data_loss = true (docs/operations.md, After the loss of a disk)"
                )
            yield "fault", broker, "no leader serves", advice
            continue
        if len(leader.voters) == 1:
            yield (
                "note",
                broker,
                "it has one voter: nothing is replicated, and its death stops the group",
                "add nodes (trivet group add)",
            )
        elif len(leader.voters) % 2 == 0:
            yield (
                "note",
                broker,
                f"it has {len(leader.voters)} voters, and survives no more deaths than with {len(leader.voters) - 1}",
                "add or remove one",
            )
        # Only the leader knows how far its peers are.
        for peer in leader.peers:
            silent_ms, lag = peer.last_contact_ms, leader.last_index - peer.match_index
            has_vote = peer.id in leader.voters
            if silent_ms is None or silent_ms > SILENT_MS:
                since = "ever since it leads" if silent_ms is None else f"for {silent_ms / 1000:.0f} s"
                severity: Severity = "fault" if has_vote else "warning"
                yield severity, f"{broker} {peer.id}", f"its leader has not heard it {since}", "start it"
            elif lag > BEHIND_ENTRIES:
                yield (
                    "warning",
                    f"{broker} {peer.id}",
                    f"it lacks {lag:,} entries of its leader's log",
                    "wait; if it grows, look at its disk and network",
                )


CHECKS: Final[dict[str, Callable[[Examination], _Findings]]] = {
    "name servers": _name_servers,
    "nodes": _reachable,
    "names": _names,
    "addresses": _addresses,
    "replicas": _replicas,
    "clocks": _clocks,
    "disks": _disks,
    "damage": _damage,
    "files": _files,
    "versions": _versions,
    "certificates": _certificates,
    "subscriptions": _subscriptions,
}
"""By name, in the order in which they are told."""


def _answering(examination: Examination) -> Iterator[tuple[ExaminedNode, NodeStatus]]:
    for node in examination.nodes:
        if node.status is not None:
            yield node, node.status


def _host(address: str) -> str:
    try:
        return split_address(address)[0]
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"
