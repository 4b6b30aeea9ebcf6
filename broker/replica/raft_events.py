"""The events of raft for whoever is on call: who leads and why, and which peers are slow."""

from broker.statistics.events import EventKind, Events
from raft.effects import PeerSlow, Role, RoleChanged


def tell_of_role(events: Events, change: RoleChanged) -> None:
    """Says why the role has changed; apart from that, why a leader steps down or is not followed any more."""
    cause = change.cause
    reason = cause.reason.value
    facts: dict[str, object] = {"term": change.term}
    if cause.peer is not None:
        facts["peer"] = cause.peer
    if cause.after_ns:
        facts["after_ms"] = cause.after_ns // 1_000_000
    events.note(EventKind.ROLE_CHANGED, reason, role=change.role.value, leader=change.leader, **facts)
    if change.before is Role.LEADER:
        events.note(EventKind.STEPPED_DOWN, reason, **facts)
    elif change.lost_leader is not None:
        events.note(EventKind.LEADER_LOST, reason, leader=change.lost_leader, **facts)


def tell_of_slow_peer(events: Events, slow: PeerSlow, now_ns: int) -> None:
    """Says on a leader that a peer has been behind or silent for a while."""
    events.warn(
        EventKind.SLOW_PEER,
        "behind or silent",
        now_ns,
        source=slow.node,
        for_ms=slow.since_ns // 1_000_000,
        lacks=slow.lag,
    )
