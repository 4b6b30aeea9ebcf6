"""Requests and their replies: letters to whoever reads them, and answers that must come back to their writers.

A letter says what to answer and whether to: some are left alone, some answered too late or twice. Each reply is one
request to a broker (or several, where the first one's outcome is unknown), which pushes it to the writer's connection,
wherever in the group that is, and stores a copy.

What may come how often: an answer once for each request that brings it, at most, and at least once before such a
request is confirmed. A call takes the first answer and returns once. That an answer does not come at all is allowed
while there are faults: it is not stored for a writer who is away.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

from broker.client.consuming.consumer import Consumer
from broker.client.consuming.intake import FetchLimits
from broker.client.consuming.listening import Handled, listen
from broker.client.errors import ClientError
from broker.client.message import Message, MessageView
from broker.client.producing.producer import Producer
from broker.client.transport.connection import Connection, Fields
from broker.client.transport.runtime import Buffer, Runtime
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import PushReplyMessageHeader, SendMessageHeaderV2
from broker.trace import TraceWriter
from log.formats.properties import parse_properties
from simulation.journal import Violation
from simulation.judges.group_model import CommittedMessage
from simulation.scheduler import SECOND
from simulation.workload.context import Context, Invariant
from simulation.workload.time_limits import TimeLimits
from simulation.workload.watched_pool import Attempt, WatchedPool

TOPIC: Final = "letters"
_REPLIES: Final = "_REPLY_TOPIC"
"""The end of the reply topic's name, behind the cluster's name."""

_LANES: Final = 2
_SUSPEND_S: Final = 2.0
"""The time for which a broker holds a pull: 5 s after it a member learns that the machine went dark."""
_ANSWERED_FROM_NS: Final = 10 * SECOND
"""From so long after all faults on each letter is answered."""

Wish = Literal["prompt", "late", "twice", "never"]


@dataclass(slots=True)
class _Letter:
    """A call: who made it, what is asked, and by what name the group knows it once it is committed."""

    writer: str
    body: bytes
    wish: Wish
    correlation: str = ""


@dataclass(slots=True)
class _Exchange:
    """The answers to one letter, and what happens to them. `requests` may have had an effect."""

    letter: _Letter
    answers: dict[bytes, None] = field(default_factory=dict)
    requests: int = 0
    confirmed: int = 0
    pushed: int = 0
    stored: int = 0


class Letters(Invariant):
    """Answers reach who asked, unaltered, no more often than they are sent; calls end in time."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._letters: dict[str, _Letter] = {}
        self._exchanges: dict[str, _Exchange] = {}
        """Exchanges by correlation id."""
        self.limits = TimeLimits("calls end in time", context.scheduler)

    # ---- what writers tell ---------------------------------------------------------------------------

    def wish(self, name: str) -> Wish:
        """Returns what the writer wants to happen."""
        return self._letters[name].wish

    @contextmanager
    def writing(self, runtime: Runtime, letter: _Letter, limit_s: float) -> Iterator[str]:
        """Gives a call its name, and checks that it ends in time: within the block."""
        name = f"letter{len(self._letters)}"
        self._letters[name] = letter
        with self.limits.in_time(runtime, f"the call of {name}", limit_s):
            yield name

    def answered(self, name: str, reply: MessageView) -> None:
        """Judges the reply that a call has returned. Raises Violation."""
        letter = self._letters[name]
        exchange = self._exchanges.get(letter.correlation)
        correlation = reply.properties.get("CORRELATION_ID")
        if exchange is None or reply.body not in exchange.answers or correlation != letter.correlation:
            raise Violation(
                "answers reach who asked", "clients", f"{name} got {reply.body!r} of {correlation}"
            )
        self.context.journal.did("letter answered")

    def unanswered(self, name: str, error: ClientError, began_ns: int) -> None:
        """Judges a call that has failed. Raises Violation."""
        letter = self._letters[name]
        exchange = self._exchanges.get(letter.correlation)
        if exchange is not None and exchange.pushed:
            raise Violation("answers reach who asked", "clients", f"{name} got an answer, and {error!r}")
        must_answer_ns = self.context.calm_ns + _ANSWERED_FROM_NS
        # A leader that has not heard of the requester yet cannot bring it an answer.
        if letter.wish == "prompt" and began_ns >= must_answer_ns and self.context.facts.hears_of_all_clients:
            raise Violation("liveness", "clients", f"{name} was not answered: {error!r}, {exchange}")

    def pushed(self, client: str, command: RemotingCommand) -> None:
        """Judges a reply that a broker brings. Raises Violation."""
        properties = parse_properties(
            (command.decode_fields(PushReplyMessageHeader).properties or "").encode()
        )
        exchange = self._exchange(properties)
        if properties.get("REPLY_TO_CLIENT") != client or exchange.letter.writer != client:
            raise Violation("answers reach who asked", client, f"{exchange} came here")
        if exchange.pushed >= exchange.requests:
            raise Violation("answers come once for each request", client, f"{exchange}, once more")
        self._check_body(exchange, command.body, client)
        exchange.pushed += 1

    # ---- what repliers tell --------------------------------------------------------------------------

    @contextmanager
    def replying(self, fields: Fields, body: Buffer) -> Iterator[Attempt]:
        """Watches a request with a reply, from its leaving to its outcome. Raises Violation."""
        assert isinstance(fields, SendMessageHeaderV2), "the header of 325"
        exchange = self._exchange(parse_properties((fields.properties or "").encode()))
        exchange.answers[bytes(body)] = None
        # Counted before it leaves: the answer may be pushed, and stored, before its request is answered, or without
        # that.
        exchange.requests += 1
        attempt = Attempt()
        yield attempt
        if attempt.is_confirmed:
            exchange.confirmed += 1
            if exchange.pushed < exchange.confirmed:
                raise Violation("a confirmed answer has arrived", "clients", str(exchange))
        elif attempt.is_refused:
            exchange.requests -= 1
            if max(exchange.pushed, exchange.stored) > exchange.requests:
                raise Violation("refused requests leave nothing", "clients", str(exchange))

    def _exchange(self, properties: dict[str, str]) -> _Exchange:
        exchange = self._exchanges.get(properties.get("CORRELATION_ID", ""))
        if exchange is None:
            raise Violation("answers reach who asked", "clients", f"nobody asked for {properties}")
        return exchange

    def _check_body(self, exchange: _Exchange, body: bytes | memoryview, node: str) -> None:
        if bytes(body) not in exchange.answers:
            raise Violation("answers come as they were sent", node, f"{bytes(body)!r}: {exchange}")

    # ---- what the group commits ----------------------------------------------------------------------

    def committed(self, message: CommittedMessage) -> None:
        """Notes letters, and judges stored copies of replies. Raises Violation."""
        record = message.record
        if record.topic == TOPIC:
            properties = record.properties_by_name()
            name, correlation = properties.get("KEYS", ""), properties.get("CORRELATION_ID", "")
            letter = self._letters.get(name)
            if letter is None or (record.body, properties.get("REPLY_TO_CLIENT")) != (
                letter.body,
                letter.writer,
            ):
                raise Violation("letters are what was written", "group", f"{record}; {letter}")
            if letter.correlation:
                raise Violation("committed once", "group", f"{name} is there twice")
            letter.correlation = correlation
            self._exchanges[correlation] = _Exchange(letter)
        elif record.topic.endswith(_REPLIES):
            exchange = self._exchange(record.properties_by_name())
            self._check_body(exchange, record.body, "group")
            # A request with a reply may be carried out before its answer is lost: each may have stored one copy.
            exchange.stored += 1
            if exchange.stored > exchange.requests:
                raise Violation("answers come once for each request", "group", f"stored: {exchange}")

    def check_end(self) -> None:
        """Checks that no call goes on for ever."""
        self.limits.check_end()


async def correspond(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Writes letters and waits for the answers, and answers letters of all."""
    invariant = context.invariant(Letters)
    invariant.limits.starts(runtime.local_address())
    producer = Producer(context.name_servers, group="writers", runtime=runtime)
    _judge_pushed(context, producer)
    codes = (RequestCode.SEND_REPLY_MESSAGE_V2,)
    async with (
        producer,
        Consumer(
            context.name_servers,
            group="correspondents",
            topics=TOPIC,
            start="first",
            limits=FetchLimits(suspend_s=_SUSPEND_S),
            runtime=runtime,
        ) as consumer,
        runtime.task_group() as group,
    ):
        for core in (producer.core, consumer.core):
            core.pool = WatchedPool(core.pool, codes, invariant.replying)
        correspondent = _Correspondent(context, runtime, producer, consumer)
        for _ in range(_LANES):
            group.start_soon(correspondent.write)
        await listen(consumer, correspondent.answer, concurrency=4)


def _judge_pushed(context: Context, producer: Producer) -> None:
    """Stands in front of the client's own handler of answers, so that an answer is judged before the call that waits
    for it returns.
    """
    invariant, client = context.invariant(Letters), producer.core.client_id

    def pushed(connection: Connection, command: RemotingCommand) -> None:
        try:
            invariant.pushed(client, command)
        except Violation as violation:
            context.journal.found(violation)
        assert take is not None, "a producer takes replies"
        take(connection, command)

    take = producer.core.on_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed)


class _Correspondent:
    """The work of one process."""

    def __init__(self, context: Context, runtime: Runtime, producer: Producer, consumer: Consumer) -> None:
        self._context = context
        self._runtime = runtime
        self._random = runtime.random
        self._producer = producer
        self._consumer = consumer
        self._invariant = context.invariant(Letters)

    async def write(self) -> None:
        """Writes a letter and waits for its answer, again and again. Raises Violation."""
        context, random, invariant = self._context, self._random, self._invariant
        while True:
            await context.pause(self._runtime, 1.2)
            wish: Wish = random.choices(("prompt", "late", "twice", "never"), (80, 7, 8, 5))[0]
            body = random.randbytes(random.choice((10, 300)))
            letter = _Letter(self._producer.core.client_id, body, wish)
            limit_s = random.choice((0.5, 1.5, 3.0)) if not context.is_calm() else 3.0
            began_ns = context.scheduler.now_ns
            with invariant.writing(self._runtime, letter, limit_s) as name:
                try:
                    reply = await self._producer.request(
                        Message(TOPIC, letter.body, keys=[name]), timeout_s=limit_s
                    )
                except ClientError as error:
                    invariant.unanswered(name, error, began_ns)
                else:
                    invariant.answered(name, reply)

    async def answer(self, message: MessageView) -> Handled:
        """Answers a letter as its writer wishes."""
        random, invariant = self._random, self._invariant
        try:
            name = message.keys[0]
            wish = invariant.wish(name)
            await self._runtime.sleep(random.random() * (3.0 if wish == "late" else 0.02))
            for _ in range({"never": 0, "twice": 2}.get(wish, 1)):
                body = f"{name} {random.getrandbits(64):x}".encode()
                reply = random.choice((self._consumer.reply, self._producer.reply))
                with invariant.limits.in_time(self._runtime, f"a reply to {name}", 1.0):
                    try:
                        await reply(message, body, timeout_s=1.0)
                    except ClientError:
                        self._context.journal.did("reply in vain")
        except Violation as violation:
            # The client takes it for the application's mistake, and goes on.
            self._context.journal.found(violation)
        return Handled.DONE
