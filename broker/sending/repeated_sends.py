"""Exactly once for repeated sends: a broker that is asked a second time to store a message finds it in its log.

A producer that hears nothing of a send can only send again, and has the message twice if the first attempt arrived.
Here the log itself is the memory: it holds each message's UNIQ_KEY, the IndexFile leads from the key to the record,
and both are on every replica. This module sees to it that the log is asked at the right moment, and not for every
message.

The request says two things (remoting fields ``once`` and ``again``, in both serializations, forwarded as they are):

- ``once``, the floor: a position that the group's committed log had reached before the message was made. Senders take
  that of their last acknowledged message, or 0 when they know none. Every record of this send lies behind it.
- ``again``: an earlier attempt of this send may have had an effect, or may have one still.

The leader appends an attempt at once, or *decides* it: it waits until everything that is in its log now is committed
and applied, looks the key up behind the floor, verifies the record (hashes collide), and answers with the place that
the message has, or leadership. Attempts that arrive while one of the same message is being decided wait for it. All
repeated attempts are decided, and those first ones whose floor is not behind `suspect`. That is the log's end at the
last arrival of a repeated attempt in this term, or when this leader first met such a send. So an ordinary send costs
one comparison of two integers, and neither a window of keys nor a clock is needed.

Why a message is committed at most once. Let a leader append an attempt of message K with floor F in term t.

1. Appended directly: it is the first attempt (there is one), and F > suspect. F was committed after this leader's
   term had begun, so what leaders of earlier terms append after K was made can never be committed: it lies behind the
   end that this term's no-op was given, in logs without that no-op. And had a repeated attempt of K reached this
   leader in this term before, suspect would have been set to the log's end then, which is behind F.
2. Appended after being decided: everything in the log when it arrived, the committed entries of earlier terms
   included, was looked through. Between that moment and the append no other attempt of K is appended: those that
   arrive wait, and after a repeated one has arrived a first one is no longer appended directly, as in 1.
3. A leader's log thus holds K once at most, and all that is committed is in the log of one leader.

An attempt may be late by any time: held in a paused follower, in a socket, in a process that stood still. It is decided
when it comes, and finds what was stored meanwhile. Only when the log was deleted up to behind the floor (retention, or
a log that began anew), or very many newer messages have keys of the same hash, nobody can tell: then the attempt is
refused with code ONCE_UNDECIDABLE, nothing is stored, and the response carries a newer floor with which a send of which
nothing was stored may be tried as a new one. A first attempt whose floor lies far back (a sender that was silent for
long) is refused so, too: to hear a newer floor costs it one more round trip, to search all that happened since would
cost everybody.

Nothing is added to the state of the group: after a failover the new leader's `suspect` is behind every floor that
anybody knows, so the sends that were under way are decided by what is in the log, and the first acknowledgement of
the term gives its sender a floor that is fast again.

A batch is one append, which a lost leader may leave in the log in part. Its messages follow each other there, so only
the first is looked up: a batch may have tens of thousands. If all of it is found, the response has its place. If only
its beginning is found, the attempt is refused as undecidable: to add the rest would tear the batch apart. A long batch
is looked through in steps, one a turn; its decision stands meanwhile, and other attempts of it wait.

Delayed, timed and half messages wait in topics of the broker's own, where they are indexed by their key (and again
where they are delivered): they are looked for there, by their REAL_TOPIC. The oldest record is the one that the send
made.

Who repeats not a send but all the work that led to it, and has forgotten what was sent, begins a portion first: so
there is one first attempt of each message, and a floor that all attempts share (portions_processor.py).

Not promised: to recognize keys after all replicas of a group were wiped, since positions begin anew then; and a user
who calls `send` again after an unknown outcome makes a new message (`Producer.resume` asks for the old one).
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from broker.node.listeners import Listeners
from broker.node.ports import Appends, Requests
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import SendHeader
from broker.replica.internal_records import read_internal
from broker.requests.budget import Budget
from broker.requests.connection import Connection
from broker.requests.deadline import NEVER, Time
from broker.requests.errors import BatchUnderWayError, ReplicaError, RequestError
from broker.requests.in_turn import InTurn
from broker.requests.responses import reply
from broker.sending.properties import SentProperties
from broker.sending.responses import send_fields
from broker.state.topic_rules import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from log.entries.entry_reads import index_at, record_at
from log.errors import DamagedLogError, DiskFullError, OutOfRangeError, RecordError
from log.formats.batch import batch_columns
from log.formats.layout import HEADER_BYTES
from log.formats.message_id import offset_message_ids
from log.formats.properties import REAL_QUEUE_ID, REAL_TOPIC, UNIQ_KEY, get_property
from log.formats.record import RecordHead, peek

SEARCHED_INDEX_FILES: Final = 2
"""First attempts are looked up in so many of the newest IndexFiles; attempts with an older floor are refused."""

FOUND: Final = "found"
"""Value of the response's field ``once`` when an earlier attempt had stored the message."""

_HIDDEN_TOPICS: Final = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC)
"""Topics of messages that consumers do not see yet; REAL_TOPIC names the topic that each is for."""

_EVERYTHING: Final = 1 << 62
_LATEST: Final = 1 << 62
_CANDIDATES_MAX: Final = 64
"""Records of one key's hash, the newest, that are looked at. Who sends to a topic can choose keys of one hash: where
all of these are others' the send is undecidable."""


class RepeatedSends:
    """Decides which attempts of sends with a floor may be appended; one for each node.

    The caller compares a first attempt's floor with `suspect`, and asks `may_append` only for what must be decided.
    """

    def __init__(self, leadership: Appends, requests: Requests, time: Time, listeners: Listeners) -> None:
        self.suspect = _EVERYTHING
        """Attempts with a floor up to here are decided: see the head of this module."""
        self._leadership = leadership
        self._requests = requests
        self._time = time
        self._decisions: dict[tuple[str, str], _Decision] = {}
        """By topic and first key; each is in the replica's hands, or waits behind a batch, and ends with `committed` or
        `lost`."""
        self._behind_batch: deque[_Decision] = deque()
        """Those of the decisions that found nothing, whose attempts wait to be appended until a batch is over."""
        self.leaving: InTurn[tuple[Connection, RemotingCommand]] = InTurn()
        """Attempts that have waited for a decision, which may be thousands for one, and are handled anew, some in each
        turn. To be looked at only."""
        requests.stops_behind(self.leaving)
        self._leave_at = time.add_deadline(self._handle_some)
        self._budget = Budget("the decision whether they are stored")
        """The budget of attempts that wait for a decision, or are leaving."""
        self._decided: RemotingCommand | None = None
        """The attempt that is being handled anew because it was decided that it may be appended."""
        listeners.role_changes.append(self._role_changed)

    def _role_changed(self) -> None:
        self.suspect = _EVERYTHING
        if not self._leadership.serving:
            behind_batch, self._behind_batch = self._behind_batch, deque()
            for decision in behind_batch:
                self.lost(decision)

    def is_decided(self, command: RemotingCommand) -> bool:
        """Tells whether this very attempt is being handled anew because it may be appended."""
        return command is self._decided

    def may_append(
        self,
        connection: Connection,
        command: RemotingCommand,
        header: SendHeader,
        properties: SentProperties,
    ) -> bool:
        """Tells whether an attempt that must be decided may be appended now. If not, it is answered later, from here.

        Raises `RequestError` for a send without a key, `OverloadedError` where too much waits already.
        """
        # By identity: another attempt with the same key was not looked up.
        if command is self._decided:
            return True
        floor = header.once
        assert floor is not None, "only sends with a floor come here"
        # From here on first attempts of messages that were made before now are decided, too: their send may be the one
        # that this attempt repeats.
        end = self._leadership.store.log.end_position
        if header.again or self.suspect == _EVERYTHING:
            self.suspect = end
        # A floor is told of what is committed, and all of that is in the log of every leader (5.4.3).
        if floor > end:
            raise RequestError(
                ResponseCode.ONCE_UNDECIDABLE,
                f"the floor is position {floor}, and this log ends before that, at {end}: the floor is of another log, "
                "so nobody can tell here whether the message is stored",
            )
        # One decision for each message at a time: what it appends the others must find.
        key = _first_key(command, header, properties)
        name = (header.topic, key)
        decision = self._decisions.get(name)
        # Attempts that wait for another's decision take memory, too.
        self._budget.take(connection, command)
        if decision is not None:
            decision.others.append((connection, command))
            return False
        is_batch = _is_batch(command, header)
        decision = _Decision(
            self,
            connection,
            command,
            header.topic,
            key,
            is_batch,
            floor,
            bool(header.again),
            self._leadership.term,
        )
        self._decisions[name] = decision
        self._leadership.when_applied(decision)
        return False

    # ------------------------------------------------------------------ called by decisions

    def decide(self, decision: "_Decision") -> None:
        """Answers an attempt, or appends it: everything that was in the log when it came is applied now."""
        if decision.appended:
            # It is applied itself: the attempts that waited find it now.
            self._end(decision)
            return
        self._requests.handle_in_steps(decision.connection, decision.command, self._look_up(decision))

    def _look_up(self, decision: "_Decision") -> Iterator[None]:
        """Looks for the message, and answers the attempt or appends it; a batch is looked through in steps.

        Raises `RequestError` for a malformed batch, and for one with a message that has no key.
        """
        connection, command = decision.connection, decision.command
        log, applied_index = self._leadership.store.log, self._leadership.applied_index
        try:
            for _ in self._find(decision):
                yield
                # Another leader may have appended the message since, where this search has been already.
                if not self._leadership.serving or self._leadership.term != decision.term:
                    self.lost(decision)
                    return
        except (_UndecidableError, OutOfRangeError) as error:
            floor = log.end_of(applied_index)
            reply(connection, command, ResponseCode.ONCE_UNDECIDABLE, str(error), {"once": str(floor)})
            self._end(decision)
            return
        except DamagedLogError as error:
            # Nothing of this attempt is stored. The log tells when the group has repaired it.
            reply(connection, command, ResponseCode.SYSTEM_BUSY, f"[DAMAGED]{error}")
            self._end(decision)
            return
        except RequestError:
            self._end(decision)
            raise
        if decision.fields is not None:
            reply(connection, command, ResponseCode.SUCCESS, None, decision.fields)
            self._end(decision)
            return
        self._append(decision)

    def _append(self, decision: "_Decision") -> None:
        """Appends an attempt whose message was not found.

        A batch may have begun since the attempt came, and keeps it waiting. It has not this message, whose other
        attempts wait for the decision. So nothing is looked for again, and the attempt goes before those messages that
        wait for the batch, too: among them there may be another one.
        """
        try:
            self._leadership.check_may_append()
        except BatchUnderWayError:
            self._behind_batch.append(decision)
            self._leadership.batches.when_over(self._append_some)
            return
        except (ReplicaError, DiskFullError):
            pass  # its handling says so
        connection, command = decision.connection, decision.command
        # This decision is over when what is in the log now is applied.
        decision.appended = True
        self._decided = command
        try:
            self._requests.handle_admitted(connection, command)
        finally:
            self._decided = None
        self._leadership.when_applied(decision)

    def _append_some(self) -> None:
        """Appends some of the attempts that a batch has kept waiting, as none is under way now."""
        waiting, batches = self._behind_batch, self._leadership.batches
        for _ in range(min(len(waiting), self._leadership.limits.held_at_once)):
            self._append(waiting.popleft())
            if batches.under_way is not None:
                break  # it has begun one itself
        if waiting:
            batches.when_over(self._append_some)

    def lost(self, decision: "_Decision") -> None:
        """This node stopped leading before it appended the attempts that wait: the next leader decides."""
        if decision.appended:
            self._end(decision)
        else:
            # Nothing of these is in the log: the next leader may have them as they came.
            self._leave(decision, [(decision.connection, decision.command), *decision.others])

    def _end(self, decision: "_Decision") -> None:
        """An attempt is answered: those that have waited for that are handled anew."""
        self._budget.free(decision.connection, decision.command)
        self._leave(decision, decision.others)

    def _leave(self, decision: "_Decision", attempts: Iterable[tuple[Connection, RemotingCommand]]) -> None:
        """Ends a decision; has turns handle attempts anew, which go to the leader where that is another node."""
        name = decision.topic, decision.key
        # With two decisions of one message under way both could find nothing, and append it.
        assert self._decisions[name] is decision, f"another attempt of {name} is being decided"
        del self._decisions[name]
        for attempt in attempts:
            self.leaving.add(attempt[0].share, attempt)
        if self.leaving:
            self._leave_at.due_ns = self._time.now_ns

    def _handle_some(self) -> None:
        for _ in range(min(len(self.leaving), self._leadership.limits.held_at_once)):
            connection, command = self.leaving.take()
            self._budget.free(connection, command)
            if self._requests.is_connected(connection):
                self._requests.handle_late(connection, command)
        self._leave_at.due_ns = self._time.now_ns if self.leaving else NEVER

    # ------------------------------------------------------------------ looking up

    def _find(self, decision: "_Decision") -> Iterator[None]:
        """Sets the decision's `fields` where its message is stored. Raises as `_look_up`.

        Raises `_UndecidableError`, or `OutOfRangeError`, where the log does not tell.
        """
        store = self._leadership.store
        floor = decision.floor
        keys = [decision.key]
        if decision.is_batch:
            keys.clear()
            for part in _keys_of_batch(decision.command, store.options.batch_messages):
                if keys:
                    yield
                keys += part
        # No step between this and the search: what was deleted between the floor and the log's head may have been this
        # message.
        if floor < store.log.first_position:
            raise _UndecidableError(
                f"the log begins at {store.log.first_position} now: what lay between the floor, {floor}, and that is "
                "deleted, so nobody can tell whether the message was there"
            )
        # A first attempt is looked up in the newest files only: it is cheaper for all to send it as a new one.
        if not decision.repeated and floor < store.index.begin_of_newest(SEARCHED_INDEX_FILES):
            raise _UndecidableError(
                f"so much was stored since the floor, {floor}, that it is not looked through for a first attempt; "
                "nothing of this message is stored: send it as a new one"
            )
        record = self._oldest_record(decision.topic, decision.key, floor)
        if record is None:
            return
        # The messages of a batch follow each other in the log, where a lost leader may have cut them off.
        first = peek(record)
        offsets = [first.physical_offset]
        index = index_at(store.log, first.physical_offset) + 1
        step = store.options.batch_messages
        for at in range(1, len(keys), step):
            if at > 1:
                yield
            part = keys[at : at + step]
            found, index = self._offsets_behind(index, decision.topic, part)
            offsets += found
            if len(found) < len(part):
                raise _UndecidableError(
                    f"the batch is stored in part: {len(offsets)} of {len(keys)} messages"
                )
        fields = send_fields(
            offset_message_ids(first.store_host, np.array(offsets, np.int64)),
            _queue_id(record, first, decision.topic),
            first.queue_offset,
            ",".join(keys),
        )
        fields["once"] = FOUND
        decision.fields = fields

    def _offsets_behind(self, index: int, topic: str, keys: Sequence[str]) -> tuple[list[int], int]:
        """The physical offsets of a batch's messages with these keys, up to the first that is not there.

        They are looked for from entry `index` on; with the offsets comes the entry behind them.
        """
        leadership, found = self._leadership, list[int]()
        log = leadership.store.log
        for key in keys:
            while index <= leadership.applied_index:
                offset = log.position_of(index) + HEADER_BYTES
                record = record_at(log, offset)
                index += 1
                if _is(record, topic, topic, key):
                    found.append(offset)
                    break
                if read_internal(record) is None:  # the group's own may come between two slices, nothing else
                    return found, index
            else:
                return found, index
        return found, index

    def _oldest_record(self, topic: str, key: str, floor: int) -> memoryview | None:
        """The first record behind the floor of a message for `topic` with that key; None if there is none.

        Raises `_UndecidableError` where it may lie behind the records that are looked at.
        """
        store = self._leadership.store
        oldest: memoryview | None = None
        oldest_offset = _EVERYTHING
        has_more = False
        for place in (topic, *_HIDDEN_TOPICS):
            candidates = store.index.query(place, key, _CANDIDATES_MAX, 0, _LATEST, least_offset=floor + 1)
            has_more |= len(candidates) == _CANDIDATES_MAX
            for offset in candidates:
                if offset < oldest_offset:
                    try:
                        record = record_at(store.log, offset)
                    except OutOfRangeError:
                        continue
                    if _is(record, topic, place, key):
                        oldest, oldest_offset = record, offset
        if oldest is None and has_more:
            raise _UndecidableError(
                f"the index leads to {_CANDIDATES_MAX} messages of other keys with the same hash, and no more are "
                "looked at: nobody can tell whether the message is stored"
            )
        return oldest


@dataclass(slots=True, eq=False)
class _Decision:
    """An attempt that waits for the log's end to be applied, and other attempts of its message that came meanwhile."""

    sends: RepeatedSends
    connection: Connection
    command: RemotingCommand
    topic: str
    key: str
    """The unique key, of a batch that of its first message: it names the decision."""
    is_batch: bool
    floor: int
    repeated: bool
    """The attempt is not the first one, or may not be."""
    term: int
    """The leader's when the attempt came."""
    fields: dict[str, str] | None = None
    """The fields of the response, where the message was found."""
    appended: bool = False
    """True if no message was found and the attempt was appended: it waits until that is applied."""
    others: list[tuple[Connection, RemotingCommand]] = field(default_factory=list)

    def committed(self) -> None:
        self.sends.decide(self)

    def lost(self) -> None:
        self.sends.lost(self)


class _UndecidableError(Exception):
    """The log does not tell whether the message was stored; the text says why."""


def _is_batch(command: RemotingCommand, header: SendHeader) -> bool:
    return command.code == RequestCode.SEND_BATCH_MESSAGE or bool(header.batch)


def _first_key(command: RemotingCommand, header: SendHeader, properties: SentProperties) -> str:
    """The unique key of a message, or of a batch's first. Raises `RequestError` where it has none."""
    if _is_batch(command, header):
        return next(_keys_of_batch(command, 1))[0]
    if not properties.unique_key:
        raise _keyless()
    return properties.unique_key


def _keys_of_batch(command: RemotingCommand, messages_max: int) -> Iterator[list[str]]:
    """The unique keys of a batch's messages, so many at a time.

    Raises `RequestError` where one is missing, and for a body that is no batch.
    """
    try:
        for part in batch_columns(bytes(command.body), messages_max):
            keys = [get_property(properties, UNIQ_KEY) for properties in part.properties]
            found = [key.decode("utf-8", "replace") for key in keys if key]
            if len(found) < len(keys):
                raise _keyless()
            yield found
    except RecordError as error:
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error


def _keyless() -> RequestError:
    return RequestError(ResponseCode.MESSAGE_ILLEGAL, "a message to be stored once needs a UNIQ_KEY")


def _properties(record: memoryview, head: RecordHead) -> bytes:
    return bytes(record[head.properties_begin : head.properties_end])


def _queue_id(record: memoryview, head: RecordHead, topic: str) -> int:
    """The queue that the sender named. While a message is hidden, the broker has noted it in a property; of any other
    message that property is only the sender's word.
    """
    if record[head.topic_begin : head.topic_end] == topic.encode():
        return head.queue_id
    noted = get_property(_properties(record, head), REAL_QUEUE_ID)
    assert noted is not None, "a hidden message says where it is going"
    return int(noted)


def _is(record: memoryview, topic: str, place: str, key: str) -> bool:
    """Tells whether a record is in topic `place`, for `topic` and with that key, and not only one of the same hash."""
    try:
        head = peek(record)
    except RecordError:
        return False
    if record[head.topic_begin : head.topic_end] != place.encode():
        return False
    properties = _properties(record, head)
    if get_property(properties, UNIQ_KEY) != key.encode():
        return False
    return place == topic or get_property(properties, REAL_TOPIC) == topic.encode()
