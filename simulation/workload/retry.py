"""Messages that are sent back: couriers with parcels that nobody takes in, at the first attempt or at any.

Each parcel says how often delivering it is to fail, and the listener fails accordingly, and now and then without need.
The rest is the client's and the brokers': CONSUMER_SEND_MSG_BACK, the wait for the delay level, the consumer group's
retry topic, and after the last retry its dead letters.

What is stored again how often. A broker stores a message once for each request that gives it back, and a request is
made only for a delivery whose listener failed; a member that finds its message gone with the log's head sends it to
the retry topic itself, which is a request like the others. So there are as many copies as requests at most, and as
requests that were confirmed at least. More than one for one delivery come from requests of unknown outcome, which the
client repeats (the reference's client then sends the message itself, with the same result), and more than one delivery
from what any group consumer may see: a member that ends, loses its queue or dies before it has stored its offset.
Nothing else makes a second one: each copy comes back once, whoever leads when.

Delays run on the group's time. When all nodes were down that is made anew from wall clocks, which differ by up to an
hour and jump. So a retry is early if it comes before its delay is over both by the times that the leaders stamped on
the record that waited and on its delivery, and in truth, give or take the rates of clocks. It is late when its delay
has passed in truth while one leader led.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from broker.client.admin import AdminClient
from broker.client.consuming.consumer import Consumer
from broker.client.consuming.intake import FetchLimits
from broker.client.consuming.listening import Handled, listen
from broker.client.errors import ClientError
from broker.client.message import Message, MessageView
from broker.client.transport.connection import Fields
from broker.client.transport.runtime import Buffer, Runtime
from broker.remoting.bodies import SubscriptionGroupConfig
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.headers import SendMessageHeaderV2
from broker.remoting.json_body import encode_body
from broker.replica.replica import Replica
from broker.sending.send_back_processor import FIRST_RETRY_LEVEL
from broker.state.commands import Command, CommitOffsets, DeliverDelayed
from broker.state.topic_rules import DEAD_LETTER_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC
from broker.trace import TraceWriter
from log.formats.message_id import offset_message_id
from log.formats.properties import parse_properties
from simulation.journal import Violation
from simulation.judges.group_model import CommittedMessage
from simulation.machines.broker_host import BrokerHost
from simulation.scheduler import SECOND
from simulation.workload.context import Context, Invariant
from simulation.workload.sending import send_now_and_then
from simulation.workload.watched_pool import Attempt, WatchedPool

TOPIC: Final = "parcels"
GROUP: Final = "couriers"
RETRIES_MAX: Final = 3
DELAY_LEVELS_S: Final = (1, 2, 1, 2, 4, 8)
"""The setting of the simulated brokers: with it the three retries fit into a run. None of these gets to the last one,
which is longer than messages may be kept for."""

_RETRY_TOPIC: Final = RETRY_PREFIX + GROUP
_DEAD_LETTERS: Final = DEAD_LETTER_PREFIX + GROUP
_RETRY_QUEUES: Final = 2
_LATE_NS: Final = 2 * SECOND
"""A retry may be missing at the end for so long after its time."""
_ELECTED_AFTER_NS: Final = 12 * SECOND
"""From so long after all faults on there is a leader, and it stays."""
_SETTLED_AFTER_NS: Final = 4 * SECOND
"""A message that came so long before the end of a run has been handled by then."""
_LONG_S: Final = 3.0
_SUSPEND_S: Final = 2.0
"""The time for which a broker holds a pull: 5 s after it a member learns that the machine went dark."""
_WHILE_WAITING: Final = ("DELAY", "REAL_TOPIC", "REAL_QID")


@dataclass(slots=True)
class _Parcel:
    """A parcel as its sender made it."""

    body: bytes
    properties: dict[str, str]
    failures: int
    """The number of deliveries that are to fail; beyond `RETRIES_MAX` the parcel becomes a dead letter."""


@dataclass(slots=True)
class Stage:
    """The fate of a message that was sent back so many times. `requests` may have had an effect."""

    requests: int = 0
    confirmed: int = 0
    copies: int = 0


@dataclass(slots=True)
class _Place:
    """A committed message that the consumer group gets: as it was sent, or for a retry."""

    message: CommittedMessage
    origin: str
    stage: Stage
    has_failed: bool = False
    is_settled: bool = False
    """Set when a listener has accepted it, or a broker has confirmed that it took it back."""


class Retries(Invariant):
    """A message that failed comes again, in time, counted and as it was, or is a dead letter after the last retry."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._parcels: dict[str, _Parcel] = {}
        self._origins: dict[str, CommittedMessage] = {}
        """Parcels as they were committed first, by message id."""
        self.stages: dict[tuple[str, int], Stage] = {}
        """Stages by origin and number of times sent back."""
        self._places: dict[int, _Place] = {}
        """Places by physical offset."""
        self._again: dict[str, None] = {}
        """The origins of which a member has sent a retry itself, which is born at the member."""
        self._waiting: dict[tuple[int, int], CommittedMessage] = {}
        """The messages that wait, by delay level and offset in its queue."""
        self._announced = DeliverDelayed(0, 0, 0, 0)
        """The deliveries that the leader has announced last."""
        self._queues: dict[tuple[str, int], list[_Place]] = {}
        self._settled: dict[tuple[str, int], int] = {}
        """The offset up to which stored offsets have been judged."""

    # ---- what senders and listeners tell -------------------------------------------------------------

    def new(self, parcel: _Parcel) -> str:
        """Notes a parcel, and returns its name."""
        name = f"parcel{len(self._parcels)}"
        self._parcels[name] = parcel
        return name

    def given(self, message: MessageView) -> _Parcel:
        """Judges a message that a listener gets: it is committed, as it was sent, under its first topic.

        Raises Violation.
        """
        place = self._place(message.head.physical_offset)
        name = message.keys[0] if message.keys else ""
        parcel = self._parcels.get(name)
        properties = {key: message.properties.get(key) for key in parcel.properties} if parcel else {}
        if (
            parcel is None
            or (message.topic, message.reconsume_times) != (TOPIC, place.message.record.reconsume_times)
            or (message.body, properties) != (parcel.body, parcel.properties)
        ):
            raise Violation("what comes again is what was sent", "couriers", f"{name}: {message!r}")
        return parcel

    def failed(self, message: MessageView) -> None:
        """Notes that the listener is about to fail."""
        self._place(message.head.physical_offset).has_failed = True

    def accepted(self, message: MessageView) -> None:
        """Notes that the listener is about to accept the message."""
        self._place(message.head.physical_offset).is_settled = True

    @contextmanager
    def sending_back(self, fields: Fields, body: Buffer) -> Iterator[Attempt]:
        """Watches a request that sends back, from its leaving to its outcome. Raises Violation."""
        place = self._place(int(fields["offset"])) if isinstance(fields, dict) else self._sent_again(fields)
        if not place.has_failed:
            raise self._violation("retries follow failures", place, "sent back, and no listener failed")
        # Counted before it leaves: its copy may be committed long before the answer comes, or without one.
        place.stage.requests += 1
        attempt = Attempt()
        yield attempt
        if attempt.is_confirmed:
            place.is_settled = True
            place.stage.confirmed += 1
            if place.stage.copies < place.stage.confirmed:
                raise self._violation("what was taken back is committed", place, f"{place.stage}")
        elif attempt.is_refused:
            place.stage.requests -= 1
            if place.stage.copies > place.stage.requests:
                raise self._violation("refused requests leave nothing", place, f"{place.stage}")

    def _sent_again(self, fields: Fields) -> _Place:
        """Finds the place of a message that a member sends itself because retention has taken it, or one like it."""
        assert isinstance(fields, SendMessageHeaderV2), "the header of 310"
        origin = parse_properties((fields.properties or "").encode()).get("ORIGIN_MESSAGE_ID", "")
        stage = self.stages.get((origin, (fields.reconsume_times or 0) - 1))
        for place in self._places.values():
            if place.stage is stage and place.has_failed and self._is_deleted(place.message):
                self._again[origin] = None
                self.context.journal.did("parcel sent again")
                return place
        raise Violation("sent back where it is", "couriers", f"{origin} is sent again, {stage}")

    def _place(self, physical_offset: int) -> _Place:
        place = self._places.get(physical_offset)
        if place is None:
            raise Violation("listeners get what is committed", "couriers", f"nothing is at {physical_offset}")
        return place

    # ---- what the group commits ----------------------------------------------------------------------

    def committed(self, message: CommittedMessage) -> None:
        """Follows parcels, what waits for a retry, what is delivered for one, and dead letters."""
        record = message.record
        if record.topic == TOPIC:
            origin = offset_message_id(record.store_host, record.physical_offset)
            self._origins[origin] = message
            self._offer(message, origin)
        elif record.topic == SCHEDULE_TOPIC:
            if message.property(b"REAL_TOPIC") == _RETRY_TOPIC:
                self._stage_before(message).copies += 1
                self._waiting[record.queue_id + 1, record.queue_offset] = message
        elif record.topic == _RETRY_TOPIC:
            self._retried(message)
        elif record.topic == _DEAD_LETTERS:
            self._stage_before(message).copies += 1
            self.context.journal.did("dead letter")

    def _stage_before(self, message: CommittedMessage) -> Stage:
        """Finds the stage of which a copy is made: the message that was sent, sent back once more."""
        record = message.record
        origin = self._check_content(message)
        times = record.reconsume_times
        is_dead = record.topic == _DEAD_LETTERS
        if times != RETRIES_MAX + 1 if is_dead else not 1 <= times <= RETRIES_MAX:
            raise Violation(
                "retries are counted",
                "group",
                f"{origin} in {record.topic} with {times}, {RETRIES_MAX} at most",
            )
        level = 0 if is_dead else FIRST_RETRY_LEVEL + times - 1
        if not is_dead and (record.queue_id != level - 1 or message.property(b"DELAY") != str(level)):
            raise Violation("delays grow", "group", f"{origin}, retry {times}: queue {record.queue_id}")
        stage = self.stages.get((origin, times - 1))
        if stage is None or stage.copies >= stage.requests:
            raise Violation("retries follow failures", "group", f"{origin}, retry {times}: {stage} before it")
        return stage

    def _check_content(self, message: CommittedMessage) -> str:
        """Checks that body, flags, birth and properties are what they were; returns the origin."""
        record = message.record
        properties = record.properties_by_name()
        origin = properties.get("ORIGIN_MESSAGE_ID", "")
        first = self._origins.get(origin)
        if first is None:
            raise Violation("what comes again is what was sent", "group", f"nobody sent {origin!r}")
        added = {"RETRY_TOPIC": TOPIC, "ORIGIN_MESSAGE_ID": origin}
        if record.topic == _DEAD_LETTERS:
            added |= {"DLQ_ORIGIN_TOPIC": TOPIC, "DLQ_ORIGIN_MESSAGE_ID": origin}
        # What waits says besides for how long, and where it is to go then.
        ignored = _WHILE_WAITING if record.topic == SCHEDULE_TOPIC else ()
        found = {name: value for name, value in properties.items() if name not in ignored}
        sent = first.record
        if (
            found != sent.properties_by_name() | added
            or (record.body, record.flag, record.sys_flag) != (sent.body, sent.flag, sent.sys_flag)
            or record.born_timestamp != sent.born_timestamp
            or (record.born_host != sent.born_host and origin not in self._again)
        ):
            raise Violation("what comes again is what was sent", "group", f"{record}; sent {sent}")
        return origin

    def _retried(self, message: CommittedMessage) -> None:
        """Judges a delivery: its place behind the leader's announcement says of which message it is
        (broker/delayed/delays.py)."""
        record = message.record
        origin = self._check_content(message)
        announced = self._announced
        number = message.index - announced.index - 1
        held = None
        if 0 <= number < announced.count:
            held = self._waiting.pop((announced.level, announced.offset + number), None)
        what = f"{origin}, retry {record.reconsume_times}, at {record.store_timestamp}"
        if (
            held is None
            or held.property(b"ORIGIN_MESSAGE_ID") != origin
            or held.record.reconsume_times != record.reconsume_times
            or held.property(b"REAL_QID") != str(record.queue_id)
        ):
            raise Violation("each retry comes once, after waiting", "group", f"{what}; waiting was {held}")
        # Early only by both times: leaders may have other clocks, and true time is not what any of them shows.
        waited_ms = record.store_timestamp - held.record.store_timestamp
        if max(waited_ms, (message.time_ns - held.time_ns) / 0.94e6) < _delay_ms(held):
            raise Violation("no retry is early", "group", f"{what}: waited {waited_ms} ms, {held.record}")
        self._offer(message, origin)
        self.context.journal.did("retry delivered")

    def _offer(self, message: CommittedMessage, origin: str) -> None:
        record = message.record
        stage = self.stages.setdefault((origin, record.reconsume_times), Stage())
        place = self._places[record.physical_offset] = _Place(message, origin, stage)
        queue = self._queues.setdefault((record.topic, record.queue_id), [])
        assert record.queue_offset == len(queue), "queues are learned from their first message on"
        queue.append(place)

    def applied(self, command: Command, now_ns: int) -> None:
        """Checks that an offset passes only what is accepted, taken back, or deleted before anybody got it.

        Raises Violation.
        """
        if isinstance(command, DeliverDelayed):
            self._announced = command
        if not isinstance(command, CommitOffsets):
            return
        for group, topic, queue_id, offset in command.offsets:
            if group != GROUP:
                continue
            queue = self._queues.get((topic, queue_id), [])
            begin = self._settled.get((topic, queue_id), 0)
            for place in queue[begin:offset]:
                if not place.is_settled and not self._is_deleted(place.message):
                    raise self._violation("offsets pass what is settled", place, f"{offset} is stored")
            self._settled[topic, queue_id] = max(begin, min(offset, len(queue)))

    def waiting(self) -> Iterable[CommittedMessage]:
        """Returns what has not been delivered again."""
        return self._waiting.values()

    # ---- at the end ----------------------------------------------------------------------------------

    def check_node(self, host: BrokerHost, replica: Replica) -> None:
        """Checks that nothing is overdue: a leader keeps no message for longer than its delay, whatever clocks show.

        Raises Violation.
        """
        if not replica.serving:
            return
        now_ns = self.context.scheduler.now_ns
        for held in self._waiting.values():
            since_ns = max(held.time_ns, self.context.calm_ns + _ELECTED_AFTER_NS)
            if now_ns - since_ns > _delay_ms(held) * 1.06e6 + _LATE_NS and not self._is_deleted(held):
                raise Violation("what failed comes again", host.name, f"{held.record}: not there at {now_ns}")

    def check_end(self) -> None:
        """Checks that everything that came, for the first time or again, has been accepted or taken back.

        Raises Violation.
        """
        long_ago_ns = self.context.scheduler.now_ns - _SETTLED_AFTER_NS
        for place in self._places.values():
            if (
                not place.is_settled
                and place.message.time_ns < long_ago_ns
                and not self._is_deleted(place.message)
            ):
                raise self._violation("what failed comes again", place, f"{place.stage}")

    def _is_deleted(self, message: CommittedMessage) -> bool:
        """True if some node has deleted the message with its log's head."""
        return message.record.physical_offset < self.context.model.kept_from

    def _violation(self, invariant: str, place: _Place, detail: str) -> Violation:
        record = place.message.record
        return Violation(
            invariant,
            "couriers",
            f"{place.origin}, retry {record.reconsume_times}, {record.topic}/{record.queue_id} at "
            f"{record.queue_offset}: {detail}",
        )


def _delay_ms(held: CommittedMessage) -> int:
    return DELAY_LEVELS_S[held.record.queue_id] * 1000


async def _make_group(context: Context, runtime: Runtime) -> None:
    """Makes the consumer group before it has a member, who would make it with the default of sixteen retries."""
    config = SubscriptionGroupConfig(
        group_name=GROUP, retry_max_times=RETRIES_MAX, retry_queue_nums=_RETRY_QUEUES
    )
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    async with AdminClient(context.name_servers, runtime=runtime) as admin:
        while True:
            try:
                for broker in (await admin.cluster_info()).broker_table.values():
                    for address in broker.broker_addresses.values():
                        answer = await admin.call(address, code, None, encode_body(config))
                        if answer.code == ResponseCode.SUCCESS:
                            return
            except ClientError:
                pass
            await runtime.sleep(0.2)


async def deliver(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Sends parcels, and delivers them as a member that stays for a while and comes again. Raises Violation."""
    invariant = context.invariant(Retries)
    random = runtime.random
    await _make_group(context, runtime)
    courier = _Courier(context, runtime)

    async def send() -> None:
        await send_now_and_then(
            context, runtime, "shippers", 1.0, courier.pack, compress_above=64, trace=writer
        )

    async with runtime.task_group() as group:
        group.start_soon(send)
        while True:
            async with Consumer(
                context.name_servers,
                group=GROUP,
                topics=TOPIC,
                start="first",
                limits=FetchLimits(suspend_s=_SUSPEND_S),
                trace=writer,
                runtime=runtime,
            ) as consumer:
                codes = (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2)
                consumer.core.pool = WatchedPool(consumer.core.pool, codes, invariant.sending_back)
                with runtime.move_on_after(context.stay_s(random, 20)):
                    await listen(consumer, courier.handle, concurrency=3)
            await runtime.sleep(random.random())


class _Courier:
    """What a process does with each parcel."""

    def __init__(self, context: Context, runtime: Runtime) -> None:
        self._context = context
        self._runtime = runtime
        self._random = runtime.random
        self._invariant = context.invariant(Retries)

    def pack(self) -> Message:
        """Makes the next parcel."""
        random = self._random
        # At most one failure more than there are retries: such a parcel becomes a dead letter.
        failures = random.choices(range(RETRIES_MAX + 2), (50, 18, 10, 10, 12))[0]
        body = random.choice((random.randbytes(20), random.randbytes(3) * 40))
        parcel = _Parcel(body, {"to": f"door {random.randrange(100)}"}, failures)
        return Message(
            TOPIC,
            body,
            tags=random.choice((None, "fragile")),
            keys=[self._invariant.new(parcel)],
            properties=parcel.properties,
            flag=random.randrange(1000),
        )

    async def handle(self, message: MessageView) -> Handled:
        """Delivers a parcel, or fails to, which it says or raises."""
        try:
            return await self._deliver(message)
        except Violation as violation:
            # The client takes it for the application's mistake, and goes on.
            self._context.journal.found(violation)
            raise

    async def _deliver(self, message: MessageView) -> Handled:
        random, invariant = self._random, self._invariant
        parcel = invariant.given(message)
        chance = random.random()
        is_long = chance < 0.03 and not self._context.is_calm()
        # Now and then for long: a member may end, or lose its queue, before it has told what became of the message.
        await self._runtime.sleep(random.random() * (_LONG_S if is_long else 0.02))
        if message.reconsume_times >= parcel.failures and chance < 0.97:
            invariant.accepted(message)
            self._context.journal.did("parcel accepted")
            return Handled.DONE
        invariant.failed(message)
        # An exception counts for the client as if the listener had asked for a retry.
        if chance < 0.2:
            raise LookupError("nobody is at home")
        return Handled.RETRY
