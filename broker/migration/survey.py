"""One pass over all entries of a source: each message is checked, and what follows from them is found out.

A message must be whole (sizes, checksum of its body), name its own place in the log, and have the next offset of its
queue: ConsumeQueues have no holes. Where a queue begins anew at offset 0 its topic was deleted and made again; RocketMQ
forgets the queue then and keeps the messages in its log. They stay in their places, but bear the mark of a message that
was rolled back, since on Trivet's side whatever a log holds is built into queues again (`Survey.is_dead`). So does a
message with an offset that its queue had already, which RocketMQ ignores.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from broker.migration.dledger import Head, Piece
from broker.migration.errors import DamagedSourceError, MigrationError
from broker.migration.source_queues import Unit
from broker.migration.tables import Tables
from broker.migration.transactions_found import HalfMessages
from broker.state.topic_rules import HALF_OPERATIONS_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from log.errors import RecordError
from log.formats.java_hash import java_hash_utf8
from log.formats.layout import HEADER_BYTES
from log.formats.own_topics import INTERNAL_TOPIC
from log.formats.properties import TAGS, TIMER_CANCELS, TIMER_OUT_MS, get_property
from log.formats.record import (
    SYS_FLAG_INNER_BATCH,
    SYS_FLAG_PREPARED,
    SYS_FLAG_ROLLBACK,
    SYS_FLAG_TRANSACTION_MASK,
    RecordHead,
    check_record,
)
from log.queues.consume_queues import is_storable_topic

_TAGS_REMEMBERED: Final = 4096
_ROLLED: Final = b"TIMER_ROLL_TIMES"

_AGAIN: Final = 1
_CANCELS: Final = 2

QueueKey = tuple[str, int]


class TimedWaiting(NamedTuple):
    """Records that wait for a time: `messages` in all, of which `again` are second copies, which RocketMQ's timer wheel
    stores of messages beyond its span, and `cancels` are orders to cancel another one."""

    messages: int
    again: int
    cancels: int


class KnownQueues(Protocol):
    """The queues as the source tells of them."""

    exists: bool
    """False if it says nothing."""

    def topics(self) -> set[str]:
        """Returns the topics that have queues."""

    def ends(self) -> dict[QueueKey, int]:
        """Returns by queue the offset behind its last unit. Raises DamagedSourceError, OSError."""

    def unit(self, topic: str, queue_id: int, offset: int) -> Unit | None:
        """Returns one unit, None where there is none to compare. Raises OSError."""


@dataclass(slots=True)
class FoundQueue:
    """A queue as the log has it since it began (anew): offsets `first_offset`..`next_offset` - 1.

    Entries before `alive_from` are of a queue of that name that is gone.
    """

    first_offset: int
    next_offset: int
    alive_from: int = -1
    messages: int = 0
    last_place: int = -1
    """The place of the last one's record in the log."""
    compared: int = 0
    """Units of the source that lead to the message whose number they have."""
    differing: str = ""
    """The first unit that leads elsewhere, or says something else."""


@dataclass(slots=True)
class Survey:
    """The findings of the pass. `take` is given every piece in order; `config` and `queues` are the source's."""

    config: Tables
    queues: KnownQueues
    delay_levels_ms: tuple[int, ...]
    left_out: frozenset[str] = frozenset()
    """Topics whose messages are not to be taken."""
    entries: int = 0
    found: dict[QueueKey, FoundQueue] = field(default_factory=dict)
    halves: HalfMessages = field(init=False)
    repeated: set[int] = field(default_factory=set)
    """Entries with an offset that their queue had already: RocketMQ ignores them."""
    dead: int = 0
    """Messages of queues that are gone or left out."""
    unstorable: int = 0
    """Messages whose topic cannot name a directory."""
    delays_seen: dict[int, int] = field(default_factory=dict)
    """By delay level, its delay in ms by the source's own queues, where that is not Trivet's."""
    lost_topics: frozenset[str] = frozenset()
    _tags: dict[bytes, int] = field(default_factory=dict)
    _timed: array[int] = field(default_factory=lambda: array("q"))
    """Three numbers of each timed message: its offset, when it is due in ms, and what it is."""

    def __post_init__(self) -> None:
        self.halves = HalfMessages(_half_position(self.config))

    # ------------------------------------------------------------------ the pass

    def take(self, piece: Piece) -> None:
        """Checks the messages of a piece. Raises DamagedSourceError, MigrationError."""
        view = memoryview(piece.data)
        for head in piece.heads:
            # The chain of headers vouches for where an entry is, and for nothing in it: the record has a checksum of
            # its body, and names its own size and place.
            record = view[head.at + HEADER_BYTES : head.at + head.size]
            try:
                found = check_record(record)
            except RecordError as error:
                raise self._damaged(piece, head, str(error)) from error
            if found.total_size != len(record):
                raise self._damaged(piece, head, f"{len(record) - found.total_size} bytes are left over")
            if found.physical_offset != piece.position + head.at + HEADER_BYTES:
                raise self._damaged(
                    piece,
                    head,
                    f"it says that it is at {found.physical_offset}, and is at "
                    f"{piece.position + head.at + HEADER_BYTES}",
                )
            self._take_record(piece, head, record, found)
        self.entries += len(piece.heads)

    def _take_record(self, piece: Piece, head: Head, record: memoryview, found: RecordHead) -> None:
        raw_topic = bytes(record[found.topic_begin : found.topic_end])
        if raw_topic == INTERNAL_TOPIC:
            raise MigrationError(
                f"entry {head.entry} is one of Trivet's own: this is the store of a Trivet node (trivet backup)"
            )
        try:
            topic = raw_topic.decode()
        except UnicodeDecodeError:
            raise self._damaged(piece, head, f"its topic {raw_topic[:40]!r} is no text") from None
        transaction = found.sys_flag & SYS_FLAG_TRANSACTION_MASK
        # The half message itself lies in a topic of its own, without the flag. A record that bears it (one that says
        # that a transaction was rolled back, or a half message as very old releases kept it) is in no queue
        # (`CommitLogDispatcherBuildConsumeQueue`), and so has no offset.
        if transaction in (SYS_FLAG_PREPARED, SYS_FLAG_ROLLBACK):
            if found.queue_offset:
                raise self._damaged(
                    piece, head, f"a transaction's record that no queue has says offset {found.queue_offset}"
                )
            return
        if topic in self.left_out:
            self.dead += 1
            return
        if not is_storable_topic(topic):
            self.unstorable += 1
            return
        if found.queue_id < 0 or found.queue_offset < 0:
            raise self._damaged(piece, head, f"queue {found.queue_id} and offset {found.queue_offset}")
        if found.sys_flag & SYS_FLAG_INNER_BATCH:
            raise MigrationError(
                f"entry {head.entry} is a batch of {topic}, whose queues are of a kind (BatchCQ) that is not kept "
                f"here: leave the topic out with --leave-out {topic}"
            )
        queue = self._queue(piece, head, topic, found)
        if queue is None:
            return
        self._compare(queue, topic, record, found)
        if topic in (HALF_TOPIC, HALF_OPERATIONS_TOPIC, TIMER_TOPIC):
            self._take_waiting(topic, record, found)

    def _queue(self, piece: Piece, head: Head, topic: str, found: RecordHead) -> FoundQueue | None:
        """Returns the queue with the record added; None for a repeated one. Raises MigrationError."""
        offset = found.queue_offset
        queue = self.found.get((topic, found.queue_id))
        if queue is None:
            queue = self.found[topic, found.queue_id] = FoundQueue(offset, offset)
        elif offset != queue.next_offset:
            # A second 0 may be a repeated first message. It begins the queue anew if more was in it by then, or if the
            # source's own queue leads here.
            if offset == 0 and (queue.next_offset > 1 or self._leads_here(topic, found)):
                self.dead += queue.messages
                queue = FoundQueue(0, 0, head.entry)
                self.found[topic, found.queue_id] = queue
            elif offset < queue.next_offset:
                self.repeated.add(head.entry)
                return None
            else:
                raise MigrationError(
                    f"{piece.path} at byte {piece.begin + head.at}: queue {found.queue_id} of {topic} goes on with "
                    f"offset {offset} where {queue.next_offset} is next. A queue here has no holes: take the store of "
                    f"another node, or leave the topic out with --leave-out {topic}"
                )
        queue.next_offset = offset + 1
        queue.messages += 1
        queue.last_place = found.physical_offset
        return queue

    def _leads_here(self, topic: str, found: RecordHead) -> bool:
        unit = self.queues.unit(topic, found.queue_id, found.queue_offset)
        return unit is not None and unit[0] == found.physical_offset

    def _compare(self, queue: FoundQueue, topic: str, record: memoryview, found: RecordHead) -> None:
        """Compares the source's unit with the one that will be built, as far as it has one."""
        unit = self.queues.unit(topic, found.queue_id, found.queue_offset)
        if unit is None:
            return
        offset, size, code = unit
        wanted = self._code(topic, record, found, code)
        if (offset, size, code) == (found.physical_offset, found.total_size, wanted):
            queue.compared += 1
        elif not queue.differing:
            queue.differing = (
                f"unit {found.queue_offset} of queue {found.queue_id} of {topic} says (offset, size, code) "
                f"{offset}, {size}, {code}; by the log it is {found.physical_offset}, {found.total_size}, {wanted}"
            )

    def _code(self, topic: str, record: memoryview, found: RecordHead, code: int) -> int:
        properties = bytes(record[found.properties_begin : found.properties_end])
        if topic == SCHEDULE_TOPIC:
            delays, level = self.delay_levels_ms, found.queue_id + 1
            delay = delays[min(level, len(delays)) - 1] if delays else 0
            if code - found.store_timestamp != delay:
                self.delays_seen[level] = code - found.store_timestamp
            return code  # the source's levels are not Trivet's: that is told once, and not for each unit
        if topic == TIMER_TOPIC:
            return code  # RocketMQ keeps a tags code here, Trivet the time
        tag = get_property(properties, TAGS)
        if tag is None:
            return 0
        known = self._tags.get(tag)
        if known is None:
            if len(self._tags) >= _TAGS_REMEMBERED:
                self._tags.clear()
            known = self._tags[tag] = java_hash_utf8(tag)
        return known

    def _take_waiting(self, topic: str, record: memoryview, found: RecordHead) -> None:
        properties = bytes(record[found.properties_begin : found.properties_end])
        if topic == HALF_TOPIC:
            self.halves.add_half(found.queue_offset, properties)
        elif topic == HALF_OPERATIONS_TOPIC:
            self.halves.add_decision(record)
        else:
            due = get_property(properties, TIMER_OUT_MS)
            due_ms = int(due) if due is not None and due.isdigit() and len(due) <= 18 else 0
            again = get_property(properties, _ROLLED) not in (None, b"0")
            cancels = get_property(properties, TIMER_CANCELS) is not None
            self._timed.extend((found.queue_offset, due_ms, again * _AGAIN + cancels * _CANCELS))

    # ------------------------------------------------------------------ afterwards

    def take_newer(self, config: Tables, queues: KnownQueues) -> None:
        """Takes tables that were written since the pass began."""
        self.config, self.queues = config, queues
        self.halves.begin = _half_position(config)

    def finish(self) -> None:
        """Finds the topics that were deleted: their messages are in the log, and neither topic nor queues are there."""
        named = self.config.topics.keys() | self.queues.topics()
        gone = {topic for topic, _ in self.found if topic not in named} if self.queues.exists else set()
        lost = {topic for topic in gone if not _is_own(topic)}
        self.lost_topics |= lost
        for key in [key for key in self.found if key[0] in lost]:
            self.dead += self.found.pop(key).messages

    def is_dead(self, index: int, topic: str, queue_id: int) -> bool:
        """Tells whether a message of the log is in no queue any more: its topic is deleted or left out, its queue has
        begun anew since, or its offset belongs to another message.
        """
        if index in self.repeated:
            return True
        if topic in self.left_out or topic in self.lost_topics:
            return True
        queue = self.found.get((topic, queue_id))
        return queue is not None and index < queue.alive_from

    def timed_waiting(self) -> TimedWaiting:
        """Counts the timed messages that the source has not delivered."""
        timers = self.config.timers
        taken = self._timed
        kinds = [
            kind
            for offset, due_ms, kind in zip(taken[::3], taken[1::3], taken[2::3], strict=True)
            if timers is None or offset >= timers.queue_offset or due_ms >= timers.read_ms
        ]
        again, cancels = (sum(bool(kind & bit) for kind in kinds) for bit in (_AGAIN, _CANCELS))
        return TimedWaiting(len(kinds), again, cancels)

    @property
    def has_dead(self) -> bool:
        """Tells whether there is any message for which `is_dead` holds."""
        return self.dead > 0 or bool(self.repeated)

    def ends(self) -> dict[QueueKey, int]:
        """Returns by queue the next offset, of those too whose messages are all deleted. Raises DamagedSourceError."""
        ends = {
            key: end
            for key, end in self.queues.ends().items()
            if end and key[0] not in self.left_out and is_storable_topic(key[0])
        }
        return ends | {key: queue.next_offset for key, queue in self.found.items()}

    @staticmethod
    def _damaged(piece: Piece, head: Head, reason: str) -> DamagedSourceError:
        return DamagedSourceError(piece.path, piece.begin + head.at, f"entry {head.entry}: {reason}")


def _half_position(config: Tables) -> int:
    return config.offsets.get(("CID_RMQ_SYS_TRANS", HALF_TOPIC), {}).get(0, 0)


def _is_own(topic: str) -> bool:
    """RocketMQ keeps messages that wait in topics that need not be in its table."""
    return topic in (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, HALF_OPERATIONS_TOPIC)
