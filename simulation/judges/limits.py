"""The work that a node lets wait stays within its limits, whatever is asked of it."""

from __future__ import annotations

from typing import Final

from broker.requests.connection import UNREAD_BYTES_MAX
from broker.state.topic_rules import CHECK_EXHAUSTED_TOPIC
from broker.transactions.checks import PROGRESS_GROUP
from simulation.journal import Violation
from simulation.machines.broker_host import BrokerHost

LIMITED: Final = "what waits stays within its limits"

_ENTRIES_BESIDE: Final = 16
"""Beyond the limit of messages: what a leader finds in its log, a batch that comes alone, and its own small entries."""


def check_limits(host: BrokerHost) -> None:
    """Raises Violation if more waits at a node than its settings allow."""
    process = host.process
    if process is None:
        return
    node, limits, inner_limits = process.node, host.settings.limits, host.limits
    raft = node.replica.raft
    if node.replica.serving:
        pending = raft.log_terms.last_index - raft.commit_index
        _check(host, "entries wait for a majority", pending, limits.max_pending_proposals + _ENTRIES_BESIDE)
    _check(host, "pulls are held", node.stats.pulls_held(), limits.max_held_pulls)
    _check(host, "requests wait for a leader", node.held_count, inner_limits.held_requests_max)
    places = node.waiting_places
    _check(host, "requests wait for the leader's answer", places.answer.taken, inner_limits.forwarded_max)
    _check(host, "requests wait for a turn", places.turn.taken, inner_limits.unhandled_max)
    _check(
        host, "reports of other nodes' clients wait for a turn", places.news.taken, inner_limits.unhandled_max
    )
    metadata = node.replica.metadata
    # What brokers need for transactions they make without asking for room.
    own_topics = int(CHECK_EXHAUSTED_TOPIC in metadata.topics)
    own_offsets = sum(map(len, metadata.offsets.by_group.get(PROGRESS_GROUP, {}).values()))
    _check(host, "topics are there", len(metadata.topics), limits.max_topics + own_topics)
    _check(host, "consumer groups are there", metadata.group_count, limits.max_groups)
    stored = metadata.offsets.count - own_offsets
    _check(host, "offsets are stored", stored, limits.max_stored_offsets)
    unread_max = limits.max_pending_bytes_per_connection + UNREAD_BYTES_MAX
    for connection in process.connections():
        unread = connection.unread_bytes
        if unread > unread_max:  # so that a connection is described only then
            _check(host, f"bytes unread by {connection}", unread, unread_max)


def _check(host: BrokerHost, what: str, number: int, limit: int) -> None:
    if number > limit:
        raise Violation(LIMITED, host.name, f"{number} {what}, at most {limit} may be")
