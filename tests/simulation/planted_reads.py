"""Mistakes about plain readers, broadcasting and questions, each put into the real code by a patch.

`planted_bugs` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import log.dispatching.dispatch
import log.formats.properties
from broker.client.consuming.consumer_offsets import StoredOffsets
from broker.client.consuming.intake import Batch, QueueReader
from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.message import MessageQueue, MessageView
from broker.node import request_states
from broker.node.client_registry import ClientRegistry
from broker.node.relayed_clients import RelayedClients
from broker.offsets.offsets_processor import OffsetsProcessor
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from broker.replica import log_head
from broker.replica.leadership import Leadership
from broker.requests.connection import Connection, RelayedConnection
from log.entries.expired_files import RetentionPolicy
from log.formats.properties import KEYS
from log.index.index_files import IndexFiles
from log.queues.consume_queue import Boundary, ConsumeQueue
from log.store import Store
from tests.simulation.planting import planted

# ---- pull consumers --------------------------------------------------------------------------------------


@planted("pull: older offset stored again", "a report that is repeated late", actor="puller")
def older_offset_stored_again(patch: pytest.MonkeyPatch) -> None:
    """An older offset is stored once more, behind the one stored now."""
    original = PullConsumer.commit
    before: dict[PullConsumer, Mapping[MessageQueue, int]] = {}

    async def commit(self: PullConsumer, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        chosen = self.positions() if offsets is None else offsets
        await original(self, chosen)
        await self._calls.commit_all(sorted(before.get(self, {}).items()))
        before[self] = chosen

    patch.setattr(PullConsumer, "commit", commit)


@planted("pull: fetched counts as polled", "at most once instead of at least once", actor="puller")
def fetched_counts_as_polled(patch: pytest.MonkeyPatch) -> None:
    """Of a batch that is handed out in parts the offset is behind all of it."""
    original = PullConsumer._hand_out

    def hand_out(
        self: PullConsumer, reader: QueueReader, batch: Batch, max_messages: int
    ) -> Sequence[MessageView]:
        messages = original(self, reader, batch, max_messages)
        reader.finished_batch(batch)
        return messages

    patch.setattr(PullConsumer, "_hand_out", hand_out)


@planted("pull: fetched stays after a seek", "what was read ahead is another place's", actor="puller")
def fetched_stays_after_a_seek(patch: pytest.MonkeyPatch) -> None:
    """The rest of a batch is handed out although the reader has been moved."""

    def take(self: PullConsumer) -> tuple[QueueReader, Batch] | None:
        rest, self._rest = self._rest, None
        return rest or self._intake.next_nowait()

    patch.setattr(PullConsumer, "_take", take)


@planted("pull: forward of another term acted on", "found here, seeds 108 and 306", actor="puller")
def forward_of_another_term_acted_on(patch: pytest.MonkeyPatch) -> None:
    """A leader keeps an offset that was forwarded to it until it leads again, in another term, and stores it then; its
    node, which saw that leader go, has had it stored by the next one."""
    kept: dict[RelayedClients, list[tuple[Connection, RemotingCommand]]] = {}
    original = RelayedClients.turn_ended

    def give_back_forgotten(self: RelayedClients) -> None:
        known = frozenset(self._connections.values())
        kept.setdefault(self, []).extend(
            (request.connection, request.command)
            for request in self._held.take_of(
                lambda holder: isinstance(holder, RelayedConnection) and holder not in known
            )
        )

    def turn_ended(self: RelayedClients) -> None:
        original(self)
        if self._view.serving:
            for connection, command in kept.pop(self, ()):
                self._received(connection, command)

    patch.setattr(RelayedClients, "_give_back_forgotten", give_back_forgotten)
    patch.setattr(RelayedClients, "turn_ended", turn_ended)
    patch.setattr(request_states, "ONCE", request_states.ONCE - {RequestCode.UPDATE_CONSUMER_OFFSET})


# ---- broadcasting ----------------------------------------------------------------------------------------


@planted(
    "broadcast: offsets at the brokers", "LocalFileOffsetStore: they live in the client", actor="receiver"
)
def broadcast_offsets_at_the_brokers(patch: pytest.MonkeyPatch) -> None:
    """A broadcast member stores its offsets where all members of a group find them."""
    original = StoredOffsets.store

    async def store(self: StoredOffsets, readers: Sequence[QueueReader]) -> Any:
        failures = await original(self, readers)
        return failures + await self._store_at_brokers(readers) if self._broadcast else failures

    patch.setattr(StoredOffsets, "store", store)


@planted("broadcast: offsets not read", "a member that begins anew each time", actor="receiver")
def broadcast_offsets_not_read(patch: pytest.MonkeyPatch) -> None:
    """A broadcast member begins anew at each start."""
    original = StoredOffsets.find

    async def find(self: StoredOffsets, queue: MessageQueue, *, zero_if_young: bool) -> int | None:
        return None if self._broadcast else await original(self, queue, zero_if_young=zero_if_young)

    patch.setattr(StoredOffsets, "find", find)


@planted("broadcast: offset behind what is fetched", "a crash leaves out what was fetched", actor="receiver")
def broadcast_offset_behind_what_is_fetched(patch: pytest.MonkeyPatch) -> None:
    """Fetched messages count as done with when offsets are stored on the member's machine."""
    original = StoredOffsets._store_locally

    async def store_locally(self: StoredOffsets, readers: Sequence[QueueReader]) -> Any:
        for reader in readers:
            if reader.has_batch():
                reader.finished_batch(reader._batches[-1])
        return await original(self, readers)

    patch.setattr(StoredOffsets, "_store_locally", store_locally)


@planted(
    "broadcast: members told to rebalance", "ConsumerManager: not for broadcast groups", actor="receiver"
)
def broadcast_members_told_to_rebalance(patch: pytest.MonkeyPatch) -> None:
    """ConsumerManager: not for broadcast groups."""

    def connections_to_notify(self: ClientRegistry[Any], group: str) -> list[Any]:
        found = self._consumers.get(group)
        return [] if found is None else [client.connection for client in found.members()]

    patch.setattr(ClientRegistry, "connections_to_notify", connections_to_notify)


# ---- questions -------------------------------------------------------------------------------------------


@planted("search: passes the first of a time", "off by one at the boundary", actor="inquirer")
def search_passes_the_first_of_a_time(patch: pytest.MonkeyPatch) -> None:
    """The earliest message behind a time, not the one at it."""
    original = ConsumeQueue.offset_at_time

    def offset_at_time(
        self: ConsumeQueue, timestamp: int, store_time_of: Any, boundary: Boundary = Boundary.LOWER
    ) -> int:
        return original(self, timestamp + (boundary is Boundary.LOWER), store_time_of, boundary)

    patch.setattr(ConsumeQueue, "offset_at_time", offset_at_time)


@planted("search: upper before the last of a time", "off by one at the boundary", actor="inquirer")
def search_upper_before_the_last_of_a_time(patch: pytest.MonkeyPatch) -> None:
    """The latest message before a time, not the one at it."""
    original = ConsumeQueue.offset_at_time

    def offset_at_time(
        self: ConsumeQueue, timestamp: int, store_time_of: Any, boundary: Boundary = Boundary.LOWER
    ) -> int:
        return original(self, timestamp - (boundary is Boundary.UPPER), store_time_of, boundary)

    patch.setattr(ConsumeQueue, "offset_at_time", offset_at_time)


@planted("begin of another queue", "queues lose their heads one by one", actor="inquirer")
def begin_of_another_queue(patch: pytest.MonkeyPatch) -> None:
    """All queues of a topic are said to begin where the first one does."""
    original = OffsetsProcessor._queue

    def min_offset(self: OffsetsProcessor, connection: Any, command: Any) -> None:
        def queue_0(topic: str, queue_id: int) -> ConsumeQueue | None:
            return original(self, topic, 0)

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "_queue", queue_0)
            original_min_offset(self, connection, command)

    original_min_offset = OffsetsProcessor.min_offset
    patch.setattr(OffsetsProcessor, "min_offset", min_offset)


@planted("begin remembered", "stale after retention", actor="inquirer")
def begin_remembered(patch: pytest.MonkeyPatch) -> None:
    """The begin of a queue is what it was at the first question, whatever retention has done since."""
    original = OffsetsProcessor._answer
    known: dict[tuple[int, str, int], int] = {}

    def min_offset(self: OffsetsProcessor, connection: Any, command: Any) -> None:
        def answer(connection: Any, command: Any, offset: int) -> None:
            key = (id(self), command.fields.get("topic"), int(command.fields.get("queueId")))
            original(self, connection, command, known.setdefault(key, offset))

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "_answer", answer)
            original_min_offset(self, connection, command)

    original_min_offset = OffsetsProcessor.min_offset
    patch.setattr(OffsetsProcessor, "min_offset", min_offset)


@planted(
    "begin of the leader's own log",
    "found here: each node deletes by itself, as in RocketMQ",
    actor="inquirer",
)
def begin_of_the_leaders_own_log(patch: pytest.MonkeyPatch) -> None:
    """A queue begins with what its node still has, and not at the group's head."""
    original = Store.delete_head

    def delete_head(self: Store, *arguments: Any, **named: Any) -> int:
        removed = original(self, *arguments, **named)
        for queue in self.queues:
            queue.correct_min(self.log.first_position)
        return removed

    patch.setattr(Store, "delete_head", delete_head)
    patch.setattr(Store, "_begin_queues_at_head", lambda self: None)


@planted("head: a leader deletes of its own", "what no other leader will know of is told")
def leader_deletes_of_its_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_head, "_NOTHING", RetentionPolicy(reserved_ms=0))


@planted(
    "head: not said before a leader serves", "what it has deleted as a follower no other leader knows of"
)
def head_is_not_said_before_a_leader_serves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "_lacks_what_the_group_keeps", False)


@planted("earliest time of the end", "another message's time", actor="inquirer")
def earliest_time_of_the_end(patch: pytest.MonkeyPatch) -> None:
    """The time of the last message that is kept for that of the first."""
    original = ConsumeQueue.unit

    def earliest_store_time(self: OffsetsProcessor, connection: Any, command: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ConsumeQueue, "unit", lambda queue, _: original(queue, queue.max_offset - 1))
            original_earliest(self, connection, command)

    original_earliest = OffsetsProcessor.earliest_store_time
    patch.setattr(OffsetsProcessor, "earliest_store_time", earliest_store_time)


@planted("index: only the first key", "KEYS holds several", actor="inquirer")
def only_the_first_key_indexed(patch: pytest.MonkeyPatch) -> None:
    """A message with several keys is found by one of them."""
    original = log.formats.properties.get_property

    def first_key(properties: bytes, name: bytes) -> bytes | None:
        value = original(properties, name)
        return value.partition(b" ")[0] if name == KEYS and value is not None else value

    patch.setattr(log.dispatching.dispatch, "get_property", first_key)


@planted("index: second file not looked at", "the newest file only", actor="inquirer")
def second_index_file_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """Keys are looked for in the newest file of the index only."""
    original = IndexFiles.query

    def query(self: IndexFiles, *arguments: Any, **options: Any) -> list[int]:
        files, self._files = self._files, self._files[-1:]
        try:
            return original(self, *arguments, **options)
        finally:
            self._files = files

    patch.setattr(IndexFiles, "query", query)
