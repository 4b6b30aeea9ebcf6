"""Batches in the leader's log: each is one proposal of many messages, appended in slices, one a turn.

While one is under way no other message is appended: its queue offsets follow each other, and a send that may be the
same again comes before it or behind it. Commands may come between two slices.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import structlog

from broker.replica.internal_records import INTERNAL_TOPIC_BYTES
from broker.replica.proposals import BatchUnderWay, NewMessage, Waiter
from broker.replica.uncommitted import Uncommitted
from broker.requests.deadline import Time
from broker.requests.errors import NotServingError
from log.entries.entry_log import EntryLog
from log.entries.entry_room import make_room_for, make_room_for_all
from log.errors import DiskFullError
from log.formats.batch import BatchColumns
from log.formats.batch_entries import Shared, encode_each, encode_entries
from log.formats.columns import RUN_FROM, Places
from log.formats.layout import HEADER_BYTES
from log.formats.record import RECORD_BYTES_WITHOUT_VARIABLE_PARTS, SHORT_TOPIC_BYTES_MAX
from raft.core import Raft

log = structlog.get_logger("trivet.replica")


class Leading(Protocol):
    """The leadership, as far as a batch needs it."""

    def check_may_append(self) -> None:
        """Raises where a message cannot be appended now."""

    def check_proposal(self, count: int) -> None:
        """Raises where raft does not take `count` entries now."""

    def when_applied(self, waiter: Waiter) -> None:
        """Tells `waiter` when all that is in the log now is applied."""


@dataclass(slots=True, eq=False)
class BatchAppends:
    """The batch that is under way in a leader's log, if any."""

    _leading: Leading
    _log: EntryLog
    _raft: Raft
    _uncommitted: Uncommitted
    _time: Time
    _store_host: bytes
    """This node's address, packed as in a record."""
    _slice_messages: int
    """A slice has so many at most."""
    under_way: BatchUnderWay | None = None
    """The batch that has begun and is not over: no other message may be appended."""
    calls_when_over: dict[Callable[[], None], None] = field(default_factory=dict)
    """The calls to be made when it is over. Not empty while a turn is wanted that makes them (`let_go_on`), also where
    none is under way. To be looked at only."""

    def when_over(self, call: Callable[[], None]) -> None:
        """Has a part of this node that a batch keeps from appending called once, when that is over.

        It goes before the messages of clients that wait for the same: there may be a batch among them, each time.
        """
        self.calls_when_over[call] = None

    def let_go_on(self) -> None:
        """Makes the calls of those who wait until no batch is under way, while none is; one of them may begin one."""
        # Once each: a call that has more to do asks for another one, behind those of the others.
        for call in [*self.calls_when_over]:
            if self.under_way is not None:
                break
            del self.calls_when_over[call]
            call()

    def begin(self) -> BatchUnderWay:
        """Keeps all other messages away until `end`: a batch will be appended, or be refused.

        Raises as `Leadership.check_may_append`.
        """
        self._leading.check_may_append()
        self.under_way = BatchUnderWay()
        return self.under_way

    def end(self, batch: BatchUnderWay) -> None:
        """Lets other messages come again: all of the batch is in the log, or nothing of it is and will be."""
        if batch.is_lost:
            return
        assert batch is self.under_way, "one batch at a time"
        self.under_way = None
        # Of one that was refused nothing comes any more: a leadership that is handed over need not wait for it.
        self._raft.end_grant()
        for waiter in batch.waiting:
            self._leading.when_applied(waiter)

    def abandon(self) -> list[Waiter]:
        """Appends nothing more of the batch, as this node stopped leading. Returns the waiters who have to be told."""
        self.calls_when_over.clear()
        batch, self.under_way = self.under_way, None
        if batch is None:
            return []
        batch.is_lost = True
        return [*((batch.waiter,) if batch.waiter is not None else ()), *batch.waiting]

    def append(
        self, batch: BatchUnderWay, common: NewMessage, items: BatchColumns, waiter: Waiter
    ) -> Iterator[tuple[int, Places]]:
        """Appends a message for each item, one behind the other: all of them, or none.

        A slice is appended each time that the iterator is asked; the caller does that once a turn. It yields the queue
        offset of the slice's first message, and the physical offsets of all their records. The rest of each message is
        that of `common`. One proposal has them all, however many a batch may have. `waiter` is told as by
        `Leadership.append_message` with `told_at_commit`.

        Raises at the first slice, with nothing appended, as `Leadership.check_may_append` and `append_message`. If the
        leadership is lost behind it, the waiter is told so and the iterator ends.
        """
        count = len(items.bodies)
        assert count, "a batch has at least one message"
        if self.under_way is not batch:
            raise NotServingError(self._raft.leader)  # the leadership was lost while the messages were made
        topic_bytes = common.topic.encode()
        assert topic_bytes != INTERNAL_TOPIC_BYTES, "every replica would apply it as a command"
        beside = RECORD_BYTES_WITHOUT_VARIABLE_PARTS + len(common.born_host) + len(self._store_host)
        # As in `Leadership.append_message`: the length of a long topic takes a byte more.
        beside += len(topic_bytes) + (len(topic_bytes) > SHORT_TOPIC_BYTES_MAX)
        sizes = np.fromiter(map(len, items.bodies), np.int64, count) + beside
        sizes += np.fromiter(map(len, items.properties), np.int64, count)
        self._leading.check_proposal(count)
        slice_messages = self._slice_messages
        if count > slice_messages:
            # Room for all, or nothing is begun. What fits into one slice asks for what it needs exactly.
            make_room_for(self._log, count, int(sizes.sum()), int(sizes.max()))
        # From here on a leadership that is handed over waits for all of them: a part of a batch is not left to the next
        # leader.
        self._raft.grant(count)
        for at in range(0, count, slice_messages):
            # The leadership ended between two slices; `abandon` has seen to it that the waiter is told.
            if batch.is_lost:
                return
            end = min(at + slice_messages, count)
            is_last = end == count
            try:
                appended = self._append_slice(
                    common, topic_bytes, items.part(at, end), sizes[at:end], waiter if is_last else None
                )
            except DiskFullError as error:
                if not at:
                    raise
                # What others appended meanwhile has taken more than was kept for them.
                log.warning("batch stored in part", messages=at, of=count, error=str(error))
                waiter.lost()
                return
            # With the last slice `Uncommitted` has the waiter. Until then nobody but `abandon` would tell it of a lost
            # leadership.
            batch.waiter = None if is_last else waiter
            yield appended

    def _append_slice(
        self,
        common: NewMessage,
        topic_bytes: bytes,
        items: BatchColumns,
        sizes: Places,
        waiter: Waiter | None,
    ) -> tuple[int, Places]:
        """Appends a slice of a batch, all of it or nothing; `sizes` are those of the records.

        Returns the queue offset of its first message, and the physical offsets of all. Raises as
        `Leadership.append_message`.
        """
        entry_log, term = self._log, self._raft.term
        shared = Shared(
            topic_bytes,
            common.queue_id,
            common.sys_flag,
            common.born_timestamp,
            common.born_host,
            self._time.group_ms,
            self._store_host,
            common.reconsume_times,
        )
        positions = make_room_for_all(entry_log, sizes)
        key = (common.topic, common.queue_id)
        first_offset = self._uncommitted.queue_end(key)
        # All are encoded before the first is appended: one that cannot be raises here.
        if len(sizes) < RUN_FROM or not shared.fits:
            records = encode_each(shared, items, positions, first_offset)
            for record in records:
                entry_log.append(term, record)
        else:
            index = entry_log.last_index + 1
            for entries in encode_entries(
                shared, items, sizes, positions, entry_log.file_bytes, term, index, first_offset
            ):
                entry_log.append_range(entries)
        end = int(positions[-1] + sizes[-1]) + HEADER_BYTES
        assert entry_log.end_position == end, "the records are where they say"
        self._raft.propose(len(sizes), granted=True)
        self._uncommitted.add_messages(
            key,
            first_offset + len(sizes),
            entry_log.last_index,
            int(sizes.sum()),
            waiter,
            told_at_commit=True,
        )
        return first_offset, positions + HEADER_BYTES
