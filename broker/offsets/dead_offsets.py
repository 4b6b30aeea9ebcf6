"""Offsets of consumer groups that nobody uses any more: forgotten once they say nothing.

A consumer group that is not deleted leaves its offsets behind, and so does one that is deleted without `cleanOffset`.
They are forgotten, through the log, when nobody could go on from them: every message that the consumer group would read
next, in all queues of the topic that it has an offset in, has been deleted, and in two looks, ten minutes apart, no
client of the consumer group was connected to any node. Only what is unchanged when the command is applied goes; a
consumer that reports meanwhile keeps its place. A consumer group that comes back afterwards begins like a new one,
where it would have been sent to the beginning of what is left.

An administrator's order that no consumer has followed yet (broker/offsets/resets.py) is for whenever the consumer group
comes, and says something also when the message that it names is deleted: the consumer group is to begin at what is left
then. So where there is one nothing is forgotten, and nothing while anything of the consumer group in that topic is in
the log and not applied: an order, or a report, may name the very offset that is stored, and the command that forgets
would come behind it and take it for unchanged. All that is under way is this leader's own (broker/offsets/commits.py).

Each look takes a few turns, so that a million offsets keep nobody waiting. What was seen in the look before is the
leader's own memory: after a failover it takes two looks again.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

import structlog

from broker.node.client_registry import ClientRegistry
from broker.node.listeners import Listeners
from broker.node.ports import Proposals
from broker.offsets.commits import OffsetCommits, StoredOffset
from broker.requests.connection import Connection
from broker.requests.deadline import MS, NEVER, Time
from broker.requests.errors import ReplicaError
from broker.state.commands import ForgetOffsets
from broker.state.topic_rules import is_system_group
from log.errors import DiskFullError

log = structlog.get_logger("trivet.offsets")

SLICE: Final = 1_000
"""Topics by consumer group that are looked at in one turn."""


_Key = tuple[str, str]


class DeadOffsets:
    """Looks for offsets that nobody uses, while this node serves."""

    def __init__(
        self,
        leadership: Proposals,
        commits: OffsetCommits,
        registry: ClientRegistry[Connection],
        time: Time,
        listeners: Listeners,
    ) -> None:
        self._leadership = leadership
        self._commits = commits
        self._registry = registry
        self._time = time
        self._interval_ns = leadership.limits.unused_offsets_look_ms * MS
        self._remaining: Iterator[_Key] | None = None
        """Consumer group and topic of the offsets that this look has yet to come to; None between two looks."""
        self._unused: dict[_Key, None] = {}
        """The consumer groups and topics that no client was seen to use in this look."""
        self._unused_before: dict[_Key, None] = {}
        """The consumer groups and topics that no client was seen to use in the look before."""
        listeners.role_changes.append(self._role_changed)
        self._deadline = time.add_deadline(self._run)

    def _role_changed(self) -> None:
        if not self._leadership.serving:
            self._deadline.due_ns = NEVER
            self._remaining = None
            self._unused, self._unused_before = {}, {}
        elif self._deadline.due_ns == NEVER:
            self._deadline.due_ns = self._time.now_ns + self._interval_ns

    def _run(self) -> None:
        offsets = self._leadership.metadata.offsets
        if self._remaining is None:
            self._remaining = iter(offsets)
            self._unused, self._unused_before = {}, self._unused
        dead: list[StoredOffset] = []
        some = list(islice(self._remaining, SLICE))
        for key in some:
            group, topic = key
            # Taken out as the look comes to it: to let go of all of them at once takes long, too.
            was_unused = key in self._unused_before
            self._unused_before.pop(key, None)
            if (
                key not in offsets
                # The brokers' own consumer groups have no clients.
                or is_system_group(group)
                or self._registry.consumer_group(group) is not None
            ):
                continue
            self._unused[key] = None
            if was_unused and self._leads_nowhere(key):
                dead += [(group, topic, queue_id, offset) for queue_id, offset in offsets[key].items()]
        if dead:
            self._forget(dead)
        if len(some) < SLICE:
            self._remaining = None
        self._deadline.due_ns = (
            self._time.now_ns + self._interval_ns if self._remaining is None else self._time.now_ns
        )

    def _leads_nowhere(self, key: _Key) -> bool:
        """Tells whether the offsets are of no use: in every queue the next message is deleted, no order stands, and
        nothing is on its way in their place."""
        metadata, queues = self._leadership.metadata, self._leadership.store.queues
        if key in metadata.parked.offsets:
            return False
        for queue_id, offset in metadata.offsets[key].items():
            queue = queues.get(key[1], queue_id)
            # Of a queue that is not there nothing was deleted.
            if queue is None or offset >= queue.min_offset:
                return False
        return not self._commits.has_any_under_way(*key, metadata.offsets[key])

    def _forget(self, dead: list[StoredOffset]) -> None:
        log.info("offsets of unused groups are forgotten", count=len(dead))
        per_command = self._leadership.limits.queues_per_command
        try:
            for begin in range(0, len(dead), per_command):
                command = ForgetOffsets(tuple(dead[begin : begin + per_command]))
                self._leadership.propose_command(command)
        except (ReplicaError, DiskFullError):
            pass  # the next look comes to them again
