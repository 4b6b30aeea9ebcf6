"""Questions about queues and single messages: their ends, offsets by time, messages by key and by id.

Answers are held against the log. Each was true at some moment between question and answer, so the begin of a queue is
where the log of a leader of that time begins, its end one that it had then, and what was committed before the question
and is kept by all nodes is found.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.consuming.queue_calls import SearchBoundary
from broker.client.errors import ClientError
from broker.client.message import Message, MessageQueue, MessageView
from broker.client.transport.runtime import Runtime
from broker.replica.replica import Replica
from broker.trace import TraceWriter
from log.formats.message_id import offset_message_id
from simulation.journal import Violation
from simulation.judges.client_judge import ENDS
from simulation.judges.group_model import CommittedMessage, CommittedQueue, GroupModel
from simulation.machines.broker_host import BrokerHost
from simulation.randomness import Random
from simulation.workload.context import Context, Invariant
from simulation.workload.names import TOPIC as EVENTS
from simulation.workload.sending import send_now_and_then

TOPIC: Final = "ledger"
_KEYS: Final = 12
_QUESTION_PAUSE_S: Final = 0.8
_SEND_PAUSE_S: Final = 1.2
_LANES: Final = 2
_NEWEST: Final = 0.4
"""The share of questions that are about the newest message of a queue."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets where a queue may have begun while a question was out, and those where it may have ended."""

    begins: Sequence[int]
    lowest_end: int
    highest_end: int

    def may_end_at(self, offset: int) -> bool:
        """True if the queue's end may have been there."""
        return self.lowest_end <= offset <= self.highest_end


def extent_of(model: GroupModel, topic: str, queue_id: int, since_ns: int) -> Extent:
    """Returns the extent of a queue for a question that left then."""
    known = model.queues.get((topic, queue_id), CommittedQueue())
    begins = [
        known.first_kept(0, len(known.keys), position) for position in model.heads.begins_since(since_ns)
    ]
    return Extent(list(dict.fromkeys(begins)), known.end_at(since_ns), len(known.keys))


def is_found_by_time(
    times: Sequence[int], extent: Extent, timestamp_ms: int, boundary: SearchBoundary, answer: int
) -> bool:
    """True if a search by time may find this offset in a queue of messages with these times of storing.

    By the rule of 5.x: the earliest message not before the time, the queue's end without one; or the latest not after
    it, the queue's begin without one. Where a new leader's clock was behind the last one's, times fall, and there are
    several places between a message before and one behind; a binary search finds any of them.
    """

    def from_begin(begin: int) -> bool:
        if not begin <= answer <= extent.highest_end:
            return False
        # What stands at the end is not looked at where the queue may have ended there while the question was out.
        if boundary == "lower":
            is_before = answer == begin or times[answer - 1] < timestamp_ms
            return is_before and (extent.may_end_at(answer) or times[answer] >= timestamp_ms)
        if answer == begin and (extent.may_end_at(begin) or times[begin] > timestamp_ms):
            return True
        is_at = answer < extent.highest_end and times[answer] <= timestamp_ms
        return is_at and (extent.may_end_at(answer + 1) or times[answer + 1] > timestamp_ms)

    return any(from_begin(begin) for begin in extent.begins)


class Inquiries(Invariant):
    """Each answer is what the log says; nothing that has a key is missing from the index."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._messages: dict[tuple[str, int], list[CommittedMessage]] = {}
        """(topic, queue id) -> all of its messages."""
        self._by_key: dict[str, list[CommittedMessage]] = {}
        self._times: dict[tuple[str, int], list[int]] = {}
        self._latest_ms = 0
        self._times_fall = False
        """True if a message of any topic was stored with an earlier time than one before: the index, which counts
        seconds from the first message of a file, cannot tell such times."""

    def committed(self, message: CommittedMessage) -> None:
        """Notes a message to ask about."""
        record = message.record
        self._times_fall |= record.store_timestamp < self._latest_ms
        self._latest_ms = max(self._latest_ms, record.store_timestamp)
        if record.topic in (TOPIC, EVENTS):
            place = (record.topic, record.queue_id)
            self._messages.setdefault(place, []).append(message)
            self._times.setdefault(place, []).append(record.store_timestamp)
            if record.topic == TOPIC:
                for key in (message.property(b"KEYS") or "").split():
                    self._by_key.setdefault(key, []).append(message)

    # ---- what to ask ---------------------------------------------------------------------------------

    def any_message(self, random: Random) -> CommittedMessage | None:
        """Returns any committed message; rather often the newest of a queue, which not every node has."""
        if not self._messages:
            return None
        held = random.choice(list(self._messages.values()))
        return held[-1] if random.random() < _NEWEST else random.choice(held)

    # ---- what is answered ----------------------------------------------------------------------------

    def begins_at(self, queue: MessageQueue, since_ns: int, answer: int) -> None:
        """Judges the begin of a queue: the first offset that is kept. Raises Violation."""
        extent = self._extent(queue, since_ns)
        if answer not in extent.begins:
            raise _untrue("the begin of a queue is linearizable", queue, f"begins at {answer}", extent)
        self.context.journal.did("begin of a queue asked")

    def ends_at(self, queue: MessageQueue, since_ns: int, answer: int) -> None:
        """Judges the end of a queue: one past the last message. Raises Violation."""
        extent = self._extent(queue, since_ns)
        if not extent.may_end_at(answer):
            raise _untrue(ENDS, queue, f"ends at {answer}", extent)

    def found_by_time(
        self, queue: MessageQueue, since_ns: int, timestamp_ms: int, boundary: SearchBoundary, answer: int
    ) -> None:
        """Judges a search for an offset by time. Raises Violation."""
        extent = self._extent(queue, since_ns)
        times = self._times.get((queue.topic, queue.queue_id), [])
        if not is_found_by_time(times, extent, timestamp_ms, boundary, answer):
            near = times[max(0, answer - 1) : answer + 2]
            detail = f"{timestamp_ms} {boundary} gives {answer}; times from {max(0, answer - 1)} on: {near}"
            raise _untrue("offsets by time are exact", queue, detail, extent)
        self.context.journal.did("offset searched by time")

    def earliest_was(self, queue: MessageQueue, since_ns: int, answer: int | None) -> None:
        """Judges the time at which the first message that is kept was stored. Raises Violation."""
        extent = self._extent(queue, since_ns)
        times = self._times.get((queue.topic, queue.queue_id), [])
        for begin in extent.begins:
            if answer == (times[begin] if begin < len(times) else None):
                break
            if answer is None and extent.may_end_at(begin):
                break
        else:
            raise _untrue("the begin of a queue is linearizable", queue, f"earliest is of {answer}", extent)

    def found_by_key(
        self, key: str, since_ns: int, begin_ms: int, end_ms: int, found: Sequence[MessageView]
    ) -> None:
        """Judges the messages found by a key of their senders'."""
        held = self._by_key.get(key, [])
        timed = (begin_ms, end_ms) != (0, _FOREVER_MS)
        if timed and self._times_fall:
            return
        wanted = [message for message in held if begin_ms <= message.record.store_timestamp <= end_ms]
        # Seconds are compared, counted from the first message of an index file.
        allowed = [
            message for message in held if begin_ms - 1000 < message.record.store_timestamp < end_ms + 1000
        ]
        self._check_found(f"{TOPIC} key {key}", since_ns, wanted, allowed, found)

    def found_by_unique_key(self, topic: str, key: str, since_ns: int, found: Sequence[MessageView]) -> None:
        """Judges the messages of a topic found by a unique key."""
        places = self.context.model.keys.get((topic, key), [])
        held = [self._messages[topic, queue_id][offset] for queue_id, offset in places]
        self._check_found(f"{topic} id {key}", since_ns, held, held, found)

    def viewed(self, message: CommittedMessage, found: MessageView | None) -> None:
        """Judges the message found by the id that its broker gave; None for none. Raises Violation."""
        self.context.journal.did("message viewed by its id")
        if found is not None:
            self._check_bytes("its id", found)
        elif not self.context.model.may_be_gone(message):
            raise Violation("messages are found by their ids", "inquirers", _described(message))

    # ---- at the end ----------------------------------------------------------------------------------

    def check_node(self, host: BrokerHost, replica: Replica) -> None:
        """Checks that the node's index has all keys of what it keeps. Raises Violation."""
        store = replica.store
        for key, held in self._by_key.items():
            found = store.index.query(TOPIC, key, 64, 0, _FOREVER_MS)
            kept = [message for message in held if message.record.physical_offset >= store.log.first_position]
            for message in kept[-64:]:
                if message.record.physical_offset not in found:
                    raise Violation("index agrees with log", host.name, f"key {key}: {_described(message)}")

    # ---- inside --------------------------------------------------------------------------------------

    def _extent(self, queue: MessageQueue, since_ns: int) -> Extent:
        return extent_of(self.context.model, queue.topic, queue.queue_id, since_ns)

    def _check_found(
        self,
        what: str,
        since_ns: int,
        wanted: Sequence[CommittedMessage],
        allowed: Sequence[CommittedMessage],
        found: Sequence[MessageView],
    ) -> None:
        model = self.context.model
        places = [message.head.physical_offset for message in found]
        if places != sorted(dict.fromkeys(places), reverse=True):
            raise Violation("messages are found newest first", "inquirers", f"{what}: {places}")
        # What was committed while the question was out may be found or not; what was there before must be.
        known = [message.record.physical_offset for message in allowed]
        for message in found:
            self._check_bytes(what, message)
            if message.head.physical_offset not in known:
                raise Violation("only what has the key is found", "inquirers", f"{what}: {message!r}")
        for one in wanted:
            if (
                one.time_ns < since_ns
                and not model.may_be_gone(one)
                and one.record.physical_offset not in places
            ):
                raise Violation(
                    "what has the key is found",
                    "inquirers",
                    f"{what}: {_described(one)} is not among {places}",
                )
        self.context.journal.did("messages found by key")

    def _check_bytes(self, what: str, message: MessageView) -> None:
        begin = message.head.physical_offset
        if message.record_bytes() != self.context.model.image[begin : begin + message.head.total_size]:
            raise Violation("messages are read as they were committed", "inquirers", f"{what}: {message!r}")


_FOREVER_MS: Final = (1 << 62) - 1


def _described(message: CommittedMessage) -> str:
    record = message.record
    return f"{record.topic}/{record.queue_id} at {record.queue_offset}, stored at {record.store_timestamp}"


def _untrue(invariant: str, queue: MessageQueue, said: str, extent: Extent) -> Violation:
    return Violation(invariant, "inquirers", f"{queue.topic}/{queue.queue_id}: {said}; {extent}")


async def inquire(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Sends messages with keys, and asks about them and others, from several lanes."""
    random = runtime.random

    def entry() -> Message:
        keys = list(dict.fromkeys(_key(random) for _ in range(random.choice((1, 1, 2, 3)))))
        return Message(TOPIC, random.randbytes(random.choice((10, 300))), keys=keys)

    async with PullConsumer(context.name_servers, group="inquirers", runtime=runtime) as consumer:
        inquirer = _Inquirer(context, runtime, consumer)
        async with runtime.task_group() as group:
            group.start_soon(send_now_and_then, context, runtime, "accountants", _SEND_PAUSE_S, entry)
            for _ in range(_LANES):
                group.start_soon(inquirer.keep_asking)


class _Inquirer:
    """Asks questions, and hands the answers to the judge, with the time at which each question left."""

    def __init__(self, context: Context, runtime: Runtime, consumer: PullConsumer) -> None:
        self._scheduler = context.scheduler
        self._judge = context.invariant(Inquiries)
        self._runtime = runtime
        self._random = runtime.random
        self._consumer = consumer
        self._questions: list[Callable[[MessageQueue, CommittedMessage], Awaitable[None]]] = [
            self._ask_begin,
            self._ask_end,
            self._ask_earliest,
            self._search,
            self._search,
            self._search,
            self._find_key,
            self._find_unique_key,
            self._view,
        ]

    async def keep_asking(self) -> None:
        """Asks one question after the other, for ever, as soon as there is a message to ask about. Raises Violation."""
        random = self._random
        while True:
            await self._runtime.sleep(random.expovariate(1 / _QUESTION_PAUSE_S))
            message = self._judge.any_message(random)
            if message is None:
                continue
            topic = random.choice((TOPIC, EVENTS))
            try:
                queues = await self._consumer.queues(topic)
                if not queues:
                    raise Violation("what may not be written can be read", "inquirer", f"{topic}: no queue")
                await random.choice(self._questions)(random.choice(queues), message)
            except ClientError:
                pass

    def _some_time(self, message: CommittedMessage) -> int:
        random = self._random
        return message.record.store_timestamp + random.choice((-1, 0, 0, 1, random.randrange(-3000, 3000)))

    async def _ask_begin(self, queue: MessageQueue, message: CommittedMessage) -> None:
        if not self._judge.context.model.heads.is_agreed:
            return  # with members of an earlier release a first offset may fall, and the checker would say so
        since_ns = self._scheduler.now_ns
        self._judge.begins_at(queue, since_ns, await self._consumer.min_offset(queue))

    async def _ask_end(self, queue: MessageQueue, message: CommittedMessage) -> None:
        since_ns = self._scheduler.now_ns
        self._judge.ends_at(queue, since_ns, await self._consumer.max_offset(queue))

    async def _ask_earliest(self, queue: MessageQueue, message: CommittedMessage) -> None:
        since_ns = self._scheduler.now_ns
        self._judge.earliest_was(queue, since_ns, await self._consumer.earliest_store_time(queue))

    async def _search(self, queue: MessageQueue, message: CommittedMessage) -> None:
        queue = queue._replace(topic=message.record.topic, queue_id=message.record.queue_id)
        boundary: SearchBoundary = self._random.choice(("lower", "upper"))
        timestamp_ms = self._some_time(message)
        since_ns = self._scheduler.now_ns
        answer = await self._consumer.search_offset(queue, timestamp_ms, boundary)
        self._judge.found_by_time(queue, since_ns, timestamp_ms, boundary, answer)

    async def _find_key(self, queue: MessageQueue, message: CommittedMessage) -> None:
        key = _key(self._random)
        begin_ms, end_ms = 0, _FOREVER_MS
        if self._random.random() < 0.4:
            begin_ms, end_ms = sorted((self._some_time(message), message.record.store_timestamp))
        since_ns = self._scheduler.now_ns
        found = await self._consumer.messages_with_key(TOPIC, key, begin_ms=begin_ms, end_ms=end_ms)
        self._judge.found_by_key(key, since_ns, begin_ms, end_ms, found)

    async def _find_unique_key(self, queue: MessageQueue, message: CommittedMessage) -> None:
        topic, key = message.record.topic, message.property(b"UNIQ_KEY") or ""
        since_ns = self._scheduler.now_ns
        found = await self._consumer.messages_with_id(topic, key)
        self._judge.found_by_unique_key(topic, key, since_ns, found)

    async def _view(self, queue: MessageQueue, message: CommittedMessage) -> None:
        record = message.record
        message_id = offset_message_id(record.store_host, record.physical_offset)
        self._judge.viewed(message, await self._consumer.view_message(record.topic, message_id))


def _key(random: Random) -> str:
    return f"account{random.randrange(_KEYS)}"
