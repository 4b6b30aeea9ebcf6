"""A sixth ten, chosen as the fourth and the fifth were: from other systems' trackers, by whoever had read the product's
code alone.

docs/planted-mistakes.md tells of them.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.client.consuming.listening import _Account
from broker.client.producing.lane import Lane
from broker.client.producing.one_send import OneSend
from broker.client.transport.connection import Connection
from broker.reading.held_pulls import HeldPull, HeldPulls
from broker.replica.read_barriers import ReadBarriers
from broker.sending.repeated_sends import RepeatedSends
from log.files.disk import Disk
from log.index.index_files import IndexFiles
from log.notes.checkpoint import ABORT, NOTES
from log.store import Store
from raft.core import Raft
from raft.effects import ReadReady
from raft.election import Election
from raft.messages import Message, VoteRequest
from tests.simulation.planting import planted


@planted("a longer log is a newer one", "sile/noraft #22, streed/simpleRaft #10", part="consensus")
def longer_log_is_a_newer_one(patch: pytest.MonkeyPatch) -> None:
    """Voters compare lengths first, and terms where these are equal: who was cut off with much of its own may win."""

    def has_more_than(self: Election, candidate: VoteRequest) -> bool:
        log = self._state.log
        return (log.last_index, log.last_term) > (candidate.last_index, candidate.last_term)

    patch.setattr(Election, "_has_more_than", has_more_than)


@planted(
    "a read that a majority has confirmed waits for nothing else",
    "baidu/braft #315, hashicorp/raft #359",
    part="consensus",
)
def confirmed_read_waits_for_nothing_else(patch: pytest.MonkeyPatch) -> None:
    """What is committed and not applied yet, it does not see, though its sender may have heard of the commit."""
    original = ReadBarriers.confirmed

    def confirmed(self: ReadBarriers, effect: ReadReady) -> None:
        original(self, ReadReady(effect.token, -1))

    patch.setattr(ReadBarriers, "confirmed", confirmed)


@planted(
    "a request for a vote needs no room",
    "horcrux #95, baidu/braft #200",
    part="consensus",
)
def request_for_a_vote_needs_no_room(patch: pytest.MonkeyPatch) -> None:
    """A PreVote needs none. A vote is noted before it is given, as its term is: a full disk ends the node then."""
    original = Raft.may_note

    def may_note(self: Raft, message: Message) -> bool:
        return not isinstance(message, VoteRequest) and original(self, message)

    patch.setattr(Raft, "may_note", may_note)


@planted(
    "a start applies only what its queues lack",
    "nats-server #7824",
    part="storage",
)
def start_applies_only_what_its_queues_lack(patch: pytest.MonkeyPatch) -> None:
    """Dispatch goes on where the checkpoint ended: commands between the snapshot and there never reach the state."""
    original = Store._recover_derived

    def recover_derived(self: Store, *arguments: Any) -> None:
        original(self, *arguments)
        self.dispatched_index = self._dispatcher.built_index

    patch.setattr(Store, "_recover_derived", recover_derived)


@planted(
    "a store that was stopped in order once counts as stopped in order",
    "KAFKA-10471",
    part="storage",
)
def store_once_stopped_in_order_counts_as_stopped_in_order(patch: pytest.MonkeyPatch) -> None:
    """The mark of a run is made with the store, and not again after an orderly stop: no later crash is one."""
    original = Store._open.__func__  # type: ignore[attr-defined]

    def open_store(cls: type[Store], disk: Disk, *arguments: Any, **options: Any) -> Any:
        was_in_order = not disk.exists(ABORT) and any(name.startswith(NOTES) for name in disk.list("."))
        opened = original(cls, disk, *arguments, **options)
        if was_in_order:
            disk.remove(ABORT)
        return opened

    patch.setattr(Store, "_open", classmethod(open_store))


@planted(
    "a query looks through the files of the index alone",
    "scylladb #309",
    part="storage",
)
def query_looks_through_the_files_alone(patch: pytest.MonkeyPatch) -> None:
    """The last 255 keys may still wait to be written: whoever asks for one of them is told that there is no message."""
    original = IndexFiles.query

    def query(self: IndexFiles, *arguments: Any, **options: Any) -> list[int]:
        waiting = self._keys, self._hashed, self._hashed_count
        self._keys, self._hashed, self._hashed_count = ([], [], []), [], 0
        try:
            return original(self, *arguments, **options)
        finally:
            self._keys, self._hashed, self._hashed_count = waiting

    patch.setattr(IndexFiles, "query", query)


@planted(
    "what the log has no more was never stored",
    "KAFKA-7190",
    part="broker",
)
def what_the_log_has_no_more_was_never_stored(patch: pytest.MonkeyPatch) -> None:
    """A repeated attempt is looked for from where the log begins, instead of being refused as undecidable."""
    original = RepeatedSends._find

    def find(self: RepeatedSends, decision: Any) -> Any:
        decision.floor = max(decision.floor, self._leadership.store.log.first_position)
        return original(self, decision)

    patch.setattr(RepeatedSends, "_find", find)


@planted(
    "a pull that is to come anew comes behind what it has passed",
    "apache/rocketmq #92",
    part="broker",
)
def pull_comes_anew_behind_what_it_has_passed(patch: pytest.MonkeyPatch) -> None:
    """The messages that its old subscription did not want are lost to the new one."""
    original = HeldPulls._answer_or_wait_on

    def answer_or_wait_on(self: HeldPulls, held: HeldPull) -> None:
        original(self, held)
        held.asked_offset = held.header.queue_offset

    patch.setattr(HeldPulls, "_answer_or_wait_on", answer_or_wait_on)


@planted(
    "a repeated attempt has the newest floor",
    "librdkafka #4953",
    part="broker",
)
def repeated_attempt_has_the_newest_floor(patch: pytest.MonkeyPatch) -> None:
    """Other sends may have been acknowledged since the first attempt, which lies before that floor and is not found."""
    original = OneSend._begin

    def begin(self: OneSend, connection: Connection, lane: Lane) -> None:
        if not self._has_own_floor:
            self._floor = self.sender.floors.get(lane.queue.broker_name, 0)
        original(self, connection, lane)

    patch.setattr(OneSend, "_begin", begin)


@planted(
    "the oldest message in hand counts as done",
    "robinhood/faust #682, bsm/sarama-cluster #148",
    part="broker",
)
def oldest_message_in_hand_counts_as_done(patch: pytest.MonkeyPatch) -> None:
    """The consumer offset of a listener is the one behind the first message that is not done with, off by one."""
    original = _Account._settle

    def settle(self: _Account) -> None:
        original(self)
        oldest = self._open[0] if self._open else None
        if oldest is not None and oldest.first_open:
            self._reader.finished(oldest.batch.messages[oldest.first_open])

    patch.setattr(_Account, "_settle", settle)
