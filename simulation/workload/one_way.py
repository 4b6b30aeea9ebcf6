"""Messages that their senders do not wait for: one-way sends, and an outbox that sends in the background.

A one-way send is one request that nobody answers and nobody repeats: its message may be lost, and is stored once at
most, unaltered. It is not stored if the sender was told that it could not be sent. An outbox makes of each message
what `send` would: it is stored once at most, where its `Sending` says if that says so, and not at all if that says
that it was not delivered. Messages of an outbox that sends one at a time, and that were all stored, stand in the order
in which it took them.
"""

from dataclasses import dataclass, field
from typing import Final

from broker.client.errors import (
    ClientError,
    ConnectionFailed,
    NameServerUnavailable,
    NoRoute,
    NotDelivered,
    SendsFailed,
)
from broker.client.message import Message, SendResult
from broker.client.producing.outbox import Outbox, Sending
from broker.client.producing.producer import Producer
from broker.client.transport.runtime import Runtime
from broker.trace import TraceWriter
from simulation.journal import Violation
from simulation.judges.group_model import CommittedMessage
from simulation.workload.context import Context, Invariant

TOPIC: Final = "notes"
_OUTBOX_MAX: Final = 12
"""One outbox gets so many messages at most."""


@dataclass(slots=True)
class _Note:
    """A note as its sender made it, and the places where the group has it: (queue id, offset)."""

    body: bytes
    tag: str | None
    flag: int
    must_not_come: bool = False
    places: list[tuple[int, int]] = field(default_factory=list)


class Notes(Invariant):
    """Knows each note as its sender made it, and judges what becomes of it: none is stored twice or altered, none whose
    sender was told that it was not sent, and each stands where its sender was told."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._notes: dict[str, _Note] = {}

    def new(self, note: _Note) -> Message:
        """Notes a note, and returns its message."""
        name = f"note{len(self._notes)}"
        self._notes[name] = note
        return Message(TOPIC, note.body, keys=[name], tags=note.tag, flag=note.flag)

    def not_sent(self, message: Message) -> None:
        """Judges the answer that a message was not sent. Raises Violation."""
        note = self._notes[message.keys[0]]
        note.must_not_come = True
        if note.places:
            raise Violation(
                "what is not sent does not come", "clients", f"{message.keys[0]} is at {note.places}"
            )

    def stored(self, message: Message, result: SendResult) -> None:
        """Judges the place where an outbox says that a message is. Raises Violation."""
        places = self._notes[message.keys[0]].places
        if places != [(result.queue.queue_id, result.queue_offset)]:
            raise Violation(
                "acknowledged messages are committed",
                "clients",
                f"{message.keys[0]}: told {result.queue.queue_id} at {result.queue_offset}, it is at {places}",
            )
        self.context.journal.did("outbox message stored")

    def committed(self, message: CommittedMessage) -> None:
        """Checks that a note is committed as it was written, and once. Raises Violation."""
        record = message.record
        if record.topic != TOPIC:
            return
        name = message.property(b"KEYS") or ""
        note = self._notes.get(name)
        if note is None or (record.body, message.property(b"TAGS"), record.flag) != (
            note.body,
            note.tag,
            note.flag,
        ):
            raise Violation("notes are what was written", "group", f"{record}; {note}")
        if note.must_not_come:
            raise Violation("what is not sent does not come", "group", f"{name} is at {record.queue_offset}")
        # Nobody repeats a one-way request, and an outbox says to brokers when it does.
        note.places.append((record.queue_id, record.queue_offset))
        if len(note.places) > 1:
            raise Violation("committed once", "group", f"{name} is at {note.places}")
        self.context.journal.did("note stored")


def _check_order(results: list[SendResult | None]) -> None:
    """Checks the places of messages that were sent one after the other; None for one that is not known to be stored."""
    last: dict[int, int] = {}
    for result in results:
        if result is None:
            continue
        before = last.get(result.queue.queue_id, -1)
        if result.queue_offset <= before:
            raise Violation("an outbox keeps its order", "clients", f"{result} comes before {before}")
        last[result.queue.queue_id] = result.queue_offset


async def post(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Sends notes one way, and by outboxes that live for some messages. Raises Violation."""
    async with (
        Producer(context.name_servers, group="posters", trace=writer, runtime=runtime) as producer,
        runtime.task_group() as group,
    ):
        poster = _Poster(context, runtime, producer)
        group.start_soon(poster.send_one_way)
        group.start_soon(poster.send_by_outbox)


class _Poster:
    """The work of one process. Both parts go on for ever, and raise Violation."""

    def __init__(self, context: Context, runtime: Runtime, producer: Producer) -> None:
        self._context = context
        self._runtime = runtime
        self._random = runtime.random
        self._producer = producer
        self._invariant = context.invariant(Notes)

    async def send_one_way(self) -> None:
        """Sends notes of which nobody says what became of them."""
        while True:
            await self._context.pause(self._runtime, 0.5)
            message = self._note()
            try:
                await self._producer.send_one_way(message)
            except (NoRoute, NameServerUnavailable):
                self._invariant.not_sent(message)
            except ConnectionFailed as error:
                if not error.request_left:
                    self._invariant.not_sent(message)
            else:
                self._context.journal.did("note sent one way")

    async def send_by_outbox(self) -> None:
        """Sends notes by outboxes, of which some are given up in the middle, with what they have not sent."""
        random, runtime = self._random, self._runtime
        while True:
            await self._context.pause(runtime, 3.0)
            in_flight = random.choice((1, 4))
            taken: list[tuple[Message, Sending]] = []
            failures = 0
            with runtime.move_on_after(random.choice((0.3, 60.0))) as limit:
                try:
                    async with self._producer.outbox(in_flight=in_flight, waiting_max=3) as outbox:
                        await self._fill(outbox, taken)
                except SendsFailed as error:
                    failures = len(error.failures)
            results = [await self._outcome(*sending) for sending in taken]
            failed = results.count(None)
            if not limit.cancelled_caught and failed != failures:
                raise Violation("no failure is lost", "clients", f"{failures} told of {failed}")
            if in_flight == 1:
                _check_order(results)

    def _note(self) -> Message:
        random = self._random
        body = random.randbytes(random.choice((10, 100, 700)))
        return self._invariant.new(_Note(body, random.choice((None, "urgent")), random.randrange(1000)))

    async def _fill(self, outbox: Outbox, taken: list[tuple[Message, Sending]]) -> None:
        """Sends some notes; `taken` gets those that the outbox takes."""
        random = self._random
        for _ in range(random.randrange(1, _OUTBOX_MAX)):
            message = self._note()
            taken.append((message, await outbox.send(message)))
            await self._runtime.sleep(random.choice((0.0, random.expovariate(1 / 0.1))))

    async def _outcome(self, message: Message, sending: Sending) -> SendResult | None:
        """Judges what became of a note; returns None if it is not known to be stored."""
        if not sending.is_done:
            raise Violation("an outbox leaves nothing open", "clients", message.keys[0])
        try:
            result = await sending.wait()
        except NotDelivered:
            self._invariant.not_sent(message)
            self._context.journal.did("outbox message not sent")
        except ClientError:
            self._context.journal.did("outbox message of unknown outcome")
        else:
            self._invariant.stored(message, result)
            return result
        return None
