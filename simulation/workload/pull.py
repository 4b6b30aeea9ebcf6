"""Readers of chosen queues, who keep to no consumer group: they poll, store offsets, look them up again, and seek.

Each machine has a consumer group of its own, whose stored offsets nobody else touches: so it knows at any time where it
is, and what it must find when it comes back.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from broker.client.consuming.intake import FetchLimits
from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.errors import ClientError
from broker.client.message import MessageQueue, MessageView
from broker.client.transport.runtime import Runtime
from broker.trace import TraceWriter
from simulation.journal import Violation
from simulation.judges.group_model import CommittedQueue
from simulation.randomness import Random
from simulation.workload.context import Context, Invariant
from simulation.workload.names import TOPIC

_LIMITS: Final = FetchLimits(batch=32)
_PAUSE_S: Final = 1.0
_COMMITS: Final = 0.2
_LOOKS_UP: Final = 0.15
_SEEKS: Final = 0.05
"""The shares of polls after which the reader stores an offset, looks a stored one up, or seeks."""


class _Reader:
    """A machine that reads, with what is known of all its processes."""

    def __init__(self, context: Context, name: str) -> None:
        self._context = context
        self._model = context.model
        self.group = f"pull-{name}"
        self._at: dict[int, tuple[int, int]] = {}
        """Queue id -> the least and the greatest offset at which it may go on; they differ after a seek beyond the
        queue's end."""
        self._stored: dict[int, int] = {}
        """Queue id -> the offset that was acknowledged last."""
        self._doubtful: dict[int, list[int]] = {}
        """Queue id -> offsets since then whose storing failed, or whose outcome the process did not live to see."""

    def goes_on(self, queue: MessageQueue, offset: int) -> None:
        """Notes that the reader goes on at an offset: it was assigned the queue, or has sought."""
        end = len(self._queue(queue.queue_id).keys)
        self._at[queue.queue_id] = (min(offset, end), offset)

    def polled(self, messages: Sequence[MessageView]) -> None:
        """Judges polled messages: the next ones of each queue, without a gap, as they were committed.

        Raises Violation.
        """
        for message in messages:
            queue_id, offset = message.queue.queue_id, message.queue_offset
            self._check_place(queue_id, offset, "polled")
            if not self._model.has_record(TOPIC, queue_id, offset, message.record_bytes()):
                raise self._violation(
                    "messages are read as they were committed", f"{TOPIC}/{queue_id} at {offset}"
                )
            self._at[queue_id] = (offset + 1, offset + 1)
            self._context.journal.did("message pulled")

    def offsets_are(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Judges what the reader would store: where it goes on, which may be behind what retention took.

        Raises Violation.
        """
        for queue, offset in offsets.items():
            if queue.queue_id in self._at:
                self._check_place(queue.queue_id, offset, "offset")

    def stores(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Notes that the brokers are asked to store these offsets."""
        for queue, offset in offsets.items():
            self._doubtful.setdefault(queue.queue_id, []).append(offset)

    def was_stored(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Notes that the brokers have acknowledged all of these offsets."""
        for queue, offset in offsets.items():
            self._stored[queue.queue_id] = offset
            del self._doubtful[queue.queue_id]
        self._context.journal.did("puller's offset stored")

    def is_stored(self, queue: MessageQueue, offset: int | None) -> None:
        """Judges the consumer group's stored offset: the one acknowledged last, or one of unknown outcome.

        Raises Violation.
        """
        acknowledged = self._stored.get(queue.queue_id)
        unknown = self._context.judge.offsets_to_come(self.group, queue.topic, queue.queue_id)
        unknown += self._doubtful.get(queue.queue_id, ())
        # A consumer group without an offset starts at 0 on a queue from which nothing was deleted yet.
        if offset in (acknowledged, *unknown) or (offset == 0 and acknowledged is None):
            return
        raise self._violation(
            "a puller's offset stays",
            f"{queue.topic}/{queue.queue_id}: told {offset}, acknowledged {acknowledged}, perhaps {unknown}",
        )

    def check_end(self) -> None:
        """Checks that it has read everything. Raises Violation."""
        for queue_id, (lowest, highest) in self._at.items():
            end = len(self._queue(queue_id).keys)
            if highest < end and not self._model.may_pass(TOPIC, queue_id, lowest, end):
                raise self._violation("liveness", f"{TOPIC}/{queue_id}: polled up to {lowest} of {end}")

    def _check_place(self, queue_id: int, offset: int, what: str) -> None:
        lowest, highest = self._at[queue_id]
        if not lowest <= offset <= highest and not self._model.may_pass(TOPIC, queue_id, highest, offset):
            raise self._violation(
                "pulls go on where they were",
                f"{TOPIC}/{queue_id}: {what} {offset}, was at {lowest}..{highest}",
            )

    def _queue(self, queue_id: int) -> CommittedQueue:
        return self._model.queues.get((TOPIC, queue_id), CommittedQueue())

    def _violation(self, invariant: str, detail: str) -> Violation:
        return Violation(invariant, self.group, detail)


class Pulls(Invariant):
    """A poll returns the log from the reader's offset on; a stored offset changes by its owner's will only."""

    asks_readers = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._readers: dict[str, _Reader] = {}

    def reader(self, address: str) -> _Reader:
        """Returns the reader of a machine."""
        name = address.replace(".", "-")
        return self._readers.setdefault(name, _Reader(self.context, name))

    def check_end(self) -> None:
        """Checks that no reader was left behind."""
        for reader in self._readers.values():
            reader.check_end()


async def pull(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Goes on where its consumer group is stored to be, and reads all queues for ever."""
    reader = context.invariant(Pulls).reader(runtime.local_address())
    random = runtime.random
    async with PullConsumer(
        context.name_servers, group=reader.group, limits=_LIMITS, trace=writer, runtime=runtime
    ) as consumer:
        await _begin(consumer, reader, runtime)
        while True:
            messages = await consumer.poll(max_messages=random.choice((1, 5, 32)), timeout_s=_PAUSE_S)
            reader.polled(messages)
            reader.offsets_are(consumer.positions())
            chance = random.random()
            try:
                if chance < _COMMITS:
                    await _commit(consumer, reader, random)
                elif chance < _COMMITS + _LOOKS_UP:
                    queue = random.choice(sorted(consumer.positions()) or await consumer.queues(TOPIC))
                    reader.is_stored(queue, await consumer.committed(queue))
                elif chance < _COMMITS + _LOOKS_UP + _SEEKS and not context.is_calm():
                    await _seek(context, consumer, reader, random)
            except ClientError:
                pass


async def _begin(consumer: PullConsumer, reader: _Reader, runtime: Runtime) -> None:
    starts: dict[MessageQueue, int] | None = None
    while starts is None:
        try:
            stored = {queue: await consumer.committed(queue) for queue in await consumer.queues(TOPIC)}
        except ClientError:
            await runtime.sleep(0.2)
            continue
        for queue, offset in stored.items():
            reader.is_stored(queue, offset)
        starts = {queue: offset or 0 for queue, offset in stored.items()}
    for queue, offset in starts.items():
        reader.goes_on(queue, offset)
    consumer.assign(starts)


async def _commit(consumer: PullConsumer, reader: _Reader, random: Random) -> None:
    # Told to the judge before they leave: from then on they may be stored, also if this process does not live to see
    # it.
    offsets = consumer.positions()
    if offsets and random.random() < 0.3:
        chosen = random.choice(sorted(offsets))
        offsets = {chosen: offsets[chosen]}
        reader.stores(offsets)
        await consumer.commit(offsets)
    else:
        reader.stores(offsets)
        await consumer.commit()
    reader.was_stored(offsets)


async def _seek(context: Context, consumer: PullConsumer, reader: _Reader, random: Random) -> None:
    queue = random.choice(await consumer.queues(TOPIC))
    end = await consumer.max_offset(queue)
    offset = random.choice((end, end + 3, max(0, end - random.randrange(40))))
    reader.goes_on(queue, offset)
    consumer.seek(queue, offset)
    context.journal.did("puller sought")
