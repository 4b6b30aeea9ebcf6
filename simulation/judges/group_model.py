"""The committed entries of the group as one sequence of bytes, and what follows from them: all else is held to that.

Nothing here comes from a client's view or from a node's promises. The first commit of an entry that any node reports
defines it; every other report must agree, byte for byte. From those bytes the model derives each queue's messages and
each consumer group's stored offsets, with the true time at which they came to be, so that what clients see can be
judged exactly: an answer is right if the model was in that state at some moment between question and answer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import cbor2

from broker.state.commands import (
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    EndResets,
    ForgetOffsets,
    PutTopic,
    ResetOffsets,
    Several,
    decode_command,
)
from broker.state.topic_rules import INTERNAL_TOPIC
from log.entries.entry_log import EntryLog, Run
from log.formats.layout import HEADER, HEADER_BYTES
from log.formats.properties import TAGS, UNIQ_KEY, get_property
from log.formats.record import Record, decode_record, peek
from simulation.journal import Violation
from simulation.judges.as_written import NO_DAMAGE, Damage
from simulation.judges.log_heads import LogHeads

_RUN_BYTES_MAX = 1 << 20
Value = TypeVar("Value")


def values_since(history: Sequence[tuple[int, Value]], since_ns: int) -> list[Value]:
    """Returns what was in force at that moment and all that came later, of (true time, value) in their order."""
    first = bisect_left(history, since_ns, key=lambda change: change[0])
    return [value for _, value in history[max(first - 1, 0) :]]


@dataclass(frozen=True, slots=True)
class CommittedMessage:
    """A message of the log, as the group has committed it. `record.physical_offset` is what a message id holds."""

    record: Record
    index: int
    """The index of its entry in the log."""
    time_ns: int
    """The true time at which it was committed."""

    def property(self, name: bytes) -> str | None:
        """Returns the value of a property, None if the message has none of that name."""
        value = get_property(self.record.properties, name)
        return None if value is None else value.decode()


class Listener(Protocol):
    """A listener for what the group commits."""

    def committed(self, message: CommittedMessage) -> None:
        """A message has been committed; called in the order of the log."""

    def applied(self, command: Command, now_ns: int) -> None:
        """A metadata command has been committed; called in the order of the log."""

    def waiting(self) -> Iterable[CommittedMessage]:
        """Returns the messages that nobody can get yet: age alone takes none of them."""


@dataclass(slots=True)
class _TermImage:
    """The entries of one term, as its leader wrote them."""

    first_index: int
    first_position: int
    previous_term: int
    last_index: int
    data: bytearray


class CommittedQueue:
    """A queue's messages: unique key and physical offset by offset, and when each was committed."""

    __slots__ = ("keys", "positions", "sizes", "times")

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.positions: list[int] = []
        self.sizes: list[int] = []
        self.times: list[int] = []

    def first_kept(self, begin: int, end: int, kept_from: int) -> int:
        """Returns the lowest offset in [begin, end) whose message no node has deleted; `end` if there is none."""
        return bisect_left(self.positions, kept_from, begin, end)

    def end_at(self, time_ns: int) -> int:
        """Returns how many messages were committed before a time."""
        return bisect_left(self.times, time_ns)


class GroupModel:
    """Everything committed. Positions and indices are the log's; times are true ones."""

    def __init__(self) -> None:
        self.last_index = -1
        self.end_position = 0
        self.damage: Callable[[str], Damage] = lambda node: NO_DAMAGE
        """Returns what of a node's log faults have damaged on its disk, and is not repaired yet."""
        self.image = bytearray()
        self.positions: list[int] = []
        """The position of each entry, by index."""
        self.commit_terms: list[tuple[int, int]] = []
        """(first index, term of the leader under which it and what follows was first committed), rising."""
        self.queues: dict[tuple[str, int], CommittedQueue] = {}
        self.offsets: dict[tuple[str, str, int], list[tuple[int, int | None]]] = {}
        """(consumer group, topic, queue id) -> (time, next offset; None for none), in the order of the log."""
        self._parked: dict[tuple[str, str, int], int] = {}
        """(consumer group, topic, queue id) -> where an order sends the consumer group: until it follows, no report
        moves it."""
        self.heads = LogHeads()
        """The positions at which the logs begin."""
        self._topics: dict[str, None] = {}
        self.deleted_topics: dict[str, int] = {}
        """Topic -> the true time at which it was deleted last."""
        self.keys: dict[tuple[str, str], list[tuple[int, int]]] = {}
        """(topic, unique key) -> (queue id, offset) of each message that has it. A message that the broker moves (a
        half message, a retry) keeps its key in its next topic."""
        self.voters: tuple[str, ...] = ()
        self.learners: tuple[str, ...] = ()
        """Members by the newest committed configuration."""
        self.listeners: list[Listener] = []
        self._terms: dict[int, _TermImage] = {}
        self._leaders: dict[int, str] = {}

    @property
    def kept_from(self) -> int:
        """All nodes keep what is at that position of the log and behind it; readers may be sent forward to there."""
        return self.heads.kept_from

    def end_of(self, index: int) -> int:
        """Returns the position behind a committed entry."""
        position = self.positions[index]
        return position + int(HEADER.unpack_from(self.image, position)[1])

    def term_of(self, index: int) -> int:
        """Returns the term of a committed entry; 0 of the place before the first."""
        return int(HEADER.unpack_from(self.image, self.positions[index])[3]) if index >= 0 else 0

    # ---- forgotten offsets ---------------------------------------------------------------------------

    def _check_leads_nowhere(self, node: str, key: tuple[str, str, int], offset: int) -> None:
        """Checks an offset that the group forgets: the message that comes next is deleted, and nobody could go on from
        there. Raises Violation.

        Nothing is checked before the group agrees on where its log begins: until then each node deletes by itself.
        """
        group, topic, queue_id = key
        positions = self.queues.get((topic, queue_id), CommittedQueue()).positions
        if self.heads.is_agreed and not (offset < len(positions) and positions[offset] < self.kept_from):
            raise Violation(
                "offsets stay while they lead somewhere",
                node,
                f"{group} at {topic}/{queue_id}: {offset} of {len(positions)} is forgotten, "
                f"kept is what stands from {self.kept_from} on",
            )

    # ---- elections -----------------------------------------------------------------------------------

    def elected(self, node: str, term: int, log: EntryLog, now_ns: int) -> None:
        """Checks election safety (Raft 5.2) and leader completeness (5.4.3) for a new leader. Raises Violation."""
        self.heads.elected(node, now_ns)
        other = self._leaders.setdefault(term, node)
        if other != node:
            raise Violation("election safety", node, f"{other} and {node} both lead term {term}")
        must_hold = self.committed_before(term)
        if must_hold > log.last_index:
            raise Violation(
                "leader completeness",
                node,
                f"elected in term {term} with a log up to {log.last_index}; committed is {must_hold}",
            )
        self.compare(node, log, log.first_index, must_hold, "leader completeness")

    def committed_before(self, term: int) -> int:
        """Returns the last entry that was committed in an earlier term: who leads this one has it (5.4.3)."""
        if self.commit_terms and self.commit_terms[-1][1] >= term:
            at = bisect_right(self.commit_terms, term - 1, key=lambda run: run[1])
            return self.commit_terms[at][0] - 1
        return self.last_index

    # ---- what is kept --------------------------------------------------------------------------------

    def may_be_gone(self, message: CommittedMessage) -> bool:
        """True if some node has deleted the message with its log's head."""
        return message.record.physical_offset < self.kept_from

    def may_pass(self, topic: str, queue_id: int, begin: int, end: int) -> bool:
        """True if a reader at offset `begin` may be sent forward to `end`: some node has deleted all in between."""
        queue = self.queues.get((topic, queue_id), CommittedQueue())
        return begin <= end <= len(queue.keys) and queue.first_kept(begin, end, self.kept_from) == end

    # ---- logs ----------------------------------------------------------------------------------------

    def has_record(self, topic: str, queue_id: int, offset: int, record: bytes) -> bool:
        """Tells whether a queue has just this record at that offset."""
        queue = self.queues.get((topic, queue_id))
        if queue is None or offset >= len(queue.positions):
            return False
        begin = queue.positions[offset]
        return record == self.image[begin : begin + len(record)]

    def appended(self, node: str, log: EntryLog, first_index: int, last_index: int, term: int) -> None:
        """Checks log matching (Raft 5.3): an entry of an index and term is one entry, with one history.

        Raises Violation.
        """
        leader = self._leaders.get(term)
        while first_index <= last_index:
            last, position, data = self._run(node, log, first_index, last_index)
            image = self._terms.get(term)
            if image is None:
                # Its leader writes an entry before it sends it, so nobody else can be the first to have one of its
                # term.
                if leader != node:
                    raise Violation("log matching", node, f"entries of term {term}, which {leader} leads")
                image = _TermImage(first_index, position, log.term_of(first_index - 1), last, bytearray(data))
                self._terms[term] = image
            else:
                self._match(node, image, log, term, first_index, last, position, data, leader)
            first_index = last + 1

    def _match(
        self,
        node: str,
        image: _TermImage,
        log: EntryLog,
        term: int,
        first_index: int,
        last_index: int,
        position: int,
        data: memoryview,
        leader: str | None,
    ) -> None:
        begin = position - image.first_position
        if first_index == image.first_index and log.term_of(first_index - 1) != image.previous_term:
            previous = log.term_of(first_index - 1)
            raise Violation(
                "log matching",
                node,
                f"term {previous} comes before term {term}, and {image.previous_term} elsewhere",
            )
        known = image.data[begin : begin + len(data)]
        if begin < 0 or first_index < image.first_index or known != data[: len(known)]:
            raise Violation(
                "log matching",
                node,
                f"entries {first_index}..{last_index} of term {term} differ from {leader}'s",
            )
        if last_index > image.last_index:
            if node != leader:
                raise Violation(
                    "log matching", node, f"entry {last_index} of term {term} was never {leader}'s"
                )
            if begin > len(image.data):
                image.data += bytes(begin - len(image.data))  # the rest of a data file
            image.data[begin:] = data
            image.last_index = last_index

    def _run(self, node: str, log: EntryLog, first_index: int, last_index: int) -> Run:
        """Returns a run of a node's entries as they were written.

        What a fault has damaged on its disk, and is not repaired yet, is looked at by `Monitor.check_repaired`.
        """
        return self.damage(node).run(log, first_index, last_index, _RUN_BYTES_MAX)

    # ---- commits -------------------------------------------------------------------------------------

    def committed(
        self, node: str, log: EntryLog, first_index: int, last_index: int, term: int, now_ns: int
    ) -> int:
        """Checks state machine safety (Raft 5.4.3).

        Returns the first index that is new, or last + 1. Raises Violation.
        """
        # The first node to commit an entry says what it is; every other one must commit the same bytes.
        known_last = min(last_index, self.last_index)
        self.compare(node, log, first_index, known_last, "state machine safety")
        new_first = max(first_index, self.last_index + 1)
        if new_first > last_index:
            return last_index + 1
        if new_first != self.last_index + 1:
            raise Violation("state machine safety", node, f"commits {new_first} after {self.last_index}")
        if not self.commit_terms or self.commit_terms[-1][1] < term:
            self.commit_terms.append((new_first, term))
        index = new_first
        while index <= last_index:
            last, position, data = self._run(node, log, index, last_index)
            if position > len(self.image):  # the end of a file that was too short for this entry
                self.image += bytes(position - len(self.image))
            self.image[position:] = data
            self.learn(node, bytes(data), now_ns)
            index = last + 1
        self.last_index = last_index
        self.end_position = len(self.image)
        return new_first

    def compare(self, node: str, log: EntryLog, first_index: int, last_index: int, invariant: str) -> None:
        """Raises Violation if a node's entries are not the committed ones, as far as its log reaches back."""
        index = max(first_index, log.first_index)
        while index <= last_index:
            last, position, data = self._run(node, log, index, last_index)
            if self.image[position : position + len(data)] != data:
                raise Violation(invariant, node, f"entries {index}..{last} are not the committed ones")
            index = last + 1

    def learn(self, node: str, data: bytes, now_ns: int) -> None:
        """Learns from committed entries, which follow those before them in the log of `node`.

        Neither `image` nor `last_index` changes: `committed` does that, and who judges a group by its files when all is
        over needs neither. Raises Violation.
        """
        at = 0
        while at < len(data):
            _, size, index, term, position, *_ = HEADER.unpack_from(data, at)
            assert index == len(self.positions), "entries are learned one after the other"
            self.positions.append(position)
            record = data[at + HEADER_BYTES : at + size]
            head = peek(record)
            topic = record[head.topic_begin : head.topic_end].decode()
            properties = record[head.properties_begin : head.properties_end]
            if topic == INTERNAL_TOPIC:
                tag = get_property(properties, TAGS)
                if tag == b"command":
                    self._apply(node, index, term, record[head.body_begin : head.body_end], now_ns)
                elif tag == b"configuration":
                    self._change_members(node, index, record[head.body_begin : head.body_end])
            else:
                # Offsets are the log's: the leader numbered the messages of a queue in the order of the log.
                queue = self.queues.setdefault((topic, head.queue_id), CommittedQueue())
                if head.queue_offset != len(queue.keys):
                    raise Violation(
                        "queue order",
                        node,
                        f"entry {index} has offset {head.queue_offset} in {topic}/{head.queue_id}, "
                        f"which ends at {len(queue.keys)}",
                    )
                key = (get_property(properties, UNIQ_KEY) or b"").decode()
                self.keys.setdefault((topic, key), []).append((head.queue_id, head.queue_offset))
                queue.keys.append(key)
                queue.positions.append(position + HEADER_BYTES)
                queue.sizes.append(size - HEADER_BYTES)
                queue.times.append(now_ns)
                if self.listeners:
                    message = CommittedMessage(decode_record(record), index, now_ns)
                    for listener in self.listeners:
                        listener.committed(message)
            at += size

    def _change_members(self, node: str, index: int, body: bytes) -> None:
        """Checks that one voter comes or goes at a time: then majorities overlap (dissertation 4.1).

        Raises Violation.
        """
        voters, learners, _ = cbor2.loads(body)
        changed = [
            name
            for name in dict.fromkeys((*voters, *self.voters))
            if (name in voters) != (name in self.voters)
        ]
        if len(changed) > 1:
            raise Violation(
                "one member at a time",
                node,
                f"entry {index} makes the voters {voters}, they were {self.voters}",
            )
        self.voters, self.learners = tuple(voters), tuple(learners)

    def _apply(self, node: str, index: int, term: int, body: bytes, now_ns: int) -> None:
        command = decode_command(body)
        for single in command.commands if isinstance(command, Several) else (command,):
            self.heads.applied(node, index, term, single, now_ns)
            for listener in self.listeners:
                listener.applied(single, now_ns)
            match single:
                case CommitOffsets(offsets, is_order):
                    # A report moves nothing while an order stands; an administrator's order without a reset ends one.
                    for group, topic, queue_id, offset in offsets:
                        if is_order:
                            self._parked.pop((group, topic, queue_id), None)
                        if topic in self._topics and (group, topic, queue_id) not in self._parked:
                            self.offsets.setdefault((group, topic, queue_id), []).append((now_ns, offset))
                case ResetOffsets(offsets):
                    for group, topic, queue_id, offset in offsets:
                        if topic in self._topics:
                            self.offsets.setdefault((group, topic, queue_id), []).append((now_ns, offset))
                            self._parked[group, topic, queue_id] = offset
                case EndResets(offsets):
                    # Of the order that the member has followed; a newer one to another offset goes on.
                    for group, topic, queue_id, offset in offsets:
                        if self._parked.get((group, topic, queue_id)) == offset:
                            del self._parked[group, topic, queue_id]
                case ForgetOffsets(offsets):
                    # Only what was still unused when this was applied: a member may have come back meanwhile.
                    for group, topic, queue_id, offset in offsets:
                        history = self.offsets.get((group, topic, queue_id), [])
                        if history and history[-1][1] == offset:
                            self._check_leads_nowhere(node, (group, topic, queue_id), offset)
                            history.append((now_ns, None))
                            self._parked.pop((group, topic, queue_id), None)
                case PutTopic(config):
                    self._topics[config.topic_name] = None
                case DeleteTopic(topic, _):
                    self._topics.pop(topic, None)
                    self.deleted_topics[topic] = now_ns
                    for key in [key for key in self.queues if key[0] == topic]:
                        del self.queues[key]
                    for history in [h for key, h in self.offsets.items() if key[1] == topic]:
                        history.append((now_ns, None))
                    self._parked = {key: to for key, to in self._parked.items() if key[1] != topic}
                case DeleteGroup(group, cleans_offsets, _):
                    if cleans_offsets:
                        for history in [h for key, h in self.offsets.items() if key[0] == group]:
                            history.append((now_ns, None))
                    self._parked = {key: to for key, to in self._parked.items() if key[0] != group}
                case _:
                    pass
