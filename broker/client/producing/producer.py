"""The producer, which sends messages and reports truly what became of them.

A send is a series of attempts within one time limit (one_send.py). At Trivet brokers a message is stored once, however
often it had to be sent and whatever fails in between. Other brokers do not look for earlier attempts; there a reader
can tell a repetition by its unique key.

A send ends with a result, with an error that says that nothing was stored, or with `SendOutcomeUnknown`. After the last
one `Producer.resume` goes on asking about the same message; a new `send` of it would be another message.
"""

import ssl
from collections.abc import AsyncIterable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager

from broker.client.checks import LONG_MAX, check_kind, check_seconds, check_whole
from broker.client.errors import ReplyTimeout, SendOutcomeUnknown, UsageError
from broker.client.message import Message, MessageQueue, MessageView, SendResult
from broker.client.producing.latency import LatencyClasses
from broker.client.producing.one_send import OneSend
from broker.client.producing.outbox import Outbox, open_outbox, send_many
from broker.client.producing.outgoing import Preparer, check_name
from broker.client.producing.portion import Portion
from broker.client.producing.requests import REPLY_TIMEOUT_S, Replier, Requests
from broker.client.producing.sender import QueueChoice, Sender
from broker.client.transport.core import CLOSE_TIMEOUT_S, ClientCore
from broker.client.transport.credentials import Credentials
from broker.client.transport.options import ConnectionOptions
from broker.client.transport.runtime import Runtime
from broker.remoting.bodies import HeartbeatData, ProducerData
from broker.trace import TraceWriter

SEND_TIMEOUT_S = 3.0
"""Time limit of a send in seconds, all attempts and pauses included."""
SHORTEST_S = 0.001
"""The shortest time limit that a producer may be given, in seconds; without any time nothing is ever sent."""


class Producer(Replier):
    """Sends messages to the brokers that the name servers know.

        async with Producer("127.0.0.1:9876", group="orders") as producer:
            result = await producer.send(Message("paid", b"order 17", keys=["17"]))
            print(result.queue, result.queue_offset)

    - ``name_servers``: addresses ``host:port``, a list or one text with ``;`` or ``,`` between them.
    - ``group``: the producer group, by which brokers know who sends.
    - ``send_timeout_s``: bounds a send with all its attempts, in seconds.
    - ``attempt_timeout_s``: bounds one attempt, in seconds, since a broker that is alive but silent must not use up the
      whole time; by default half of ``send_timeout_s``.
    - ``compress_above``: bodies of more bytes are sent zlib-compressed; None means never.
    - ``exactly_once``: has Trivet brokers recognize an attempt that repeats a stored one. Without it, and at other
      brokers, a message may be stored twice when an acknowledgement is lost.
    - ``retry_unknown``: False ends a send at the first attempt of unknown outcome.
    - ``avoid_slow``: where the producer chooses the queue, it prefers broker groups that respond fast (latency.py).
    - ``trace``: records every attempt (docs/trace-format.md).
    - ``runtime``: clock, tasks and sockets; by default Trio's and real ones.
    - ``tls``: encrypts all connections; ``credentials``: sign all requests (docs/security.md).

    Any number of tasks may send at the same time. After a send was cancelled its outcome is unknown, and the producer
    can be used on. Leaving the block takes 3 s at most, also when brokers are silent. Every method raises ClientClosed
    outside the block. The constructor raises MessageRejected for a group name that no broker takes, and UsageError for
    name servers that are no addresses and for any other option that cannot be.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        group: str,
        send_timeout_s: float = SEND_TIMEOUT_S,
        attempt_timeout_s: float | None = None,
        compress_above: int | None = None,
        exactly_once: bool = True,
        retry_unknown: bool = True,
        avoid_slow: LatencyClasses | None = None,
        trace: TraceWriter | None = None,
        runtime: Runtime | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        check_name("group", group)
        check_seconds(SHORTEST_S, send_timeout_s=send_timeout_s)
        if attempt_timeout_s is None:
            attempt_timeout_s = send_timeout_s / 2
        check_seconds(SHORTEST_S / 2, attempt_timeout_s=attempt_timeout_s)
        if compress_above is not None:
            check_whole(compress_above=compress_above)
        check_kind(bool, exactly_once=exactly_once, retry_unknown=retry_unknown)
        check_kind(LatencyClasses | None, avoid_slow=avoid_slow)
        self.group = group
        self.core = ClientCore(
            ConnectionOptions(name_servers, runtime, tls, credentials, trace),
            heartbeat=self._heartbeat,
            take_leave=self._take_leave,
        )
        self.preparer = Preparer(self.core.runtime, compress_above)
        """Makes messages ready to be sent. Transactions, which are built on this producer, use it."""
        self.sender = Sender(
            self.core,
            group,
            timeout_s=send_timeout_s,
            attempt_timeout_s=attempt_timeout_s,
            exactly_once=exactly_once,
            retry_unknown=retry_unknown,
            avoid_slow=avoid_slow,
        )
        """The routes, queues and request fields of all sends. Transactions, which are built on this producer, use
        it."""
        self._requests = Requests(self.core)

    async def _take_leave(self) -> None:
        with self.core.runtime.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            await self.core.unregister("producerGroup", self.group)

    def _heartbeat(self) -> HeartbeatData:
        return HeartbeatData(client_id=self.core.client_id, producer_data_set=[ProducerData(self.group)])

    # Sending -------------------------------------------------------------------------------------------------------

    async def send(
        self, message: Message, *, queue: QueueChoice = None, timeout_s: float | None = None
    ) -> SendResult:
        """Send one message and wait until it is stored; returns where it is.

        ``queue`` is a `MessageQueue`; a number or a text that stands for one; or a function that gets the writable
        queues and the message and returns one of the queues. Without it the queues take turns, those of a group without
        a leader excepted. Messages with the same text, or to the same queue, keep the order in which they were
        acknowledged: a send to a group without a leader waits for the next one. ``timeout_s`` replaces the
        ``send_timeout_s`` of the producer.

        When nothing was stored, raises MessageRejected (illegal), BrokerError (refused for good), NotDelivered, NoRoute
        or NameServerUnavailable; UsageError for a queue of another topic. Raises SendOutcomeUnknown when the message
        may be stored or not.
        """
        (result,) = await OneSend(
            self.sender, self.preparer.message(message), message, queue, timeout_s
        ).run()
        return result

    async def send_batch(
        self, messages: Sequence[Message], *, queue: QueueChoice = None, timeout_s: float | None = None
    ) -> list[SendResult]:
        """Send messages of one topic as one append, so that they are stored side by side; returns a result for each.

        ``queue`` and ``timeout_s`` are those of `send`. Raises what `send` raises, and UsageError without messages.
        When nothing was stored, none of the messages was. After SendOutcomeUnknown all may be stored, none, or only the
        first ones: each message is an entry of the log, and a group that loses its leader keeps those that the next
        leader has. `resume` finds out. If only the first ones are stored it raises SendOutcomeUnknown again, with their
        number in ``last_error`` (code 3001), since adding the others would tear the batch apart.
        """
        outgoing = self.preparer.batch(messages)
        return await OneSend(self.sender, outgoing, messages[0], queue, timeout_s).run()

    async def resume(self, error: SendOutcomeUnknown, *, timeout_s: float | None = None) -> list[SendResult]:
        """Go on with a send of unknown outcome, as if its time limit had been longer; returns a result for each
        message.

        With ``exactly_once`` and a Trivet broker the message is stored once, also if it was stored all along.
        ``timeout_s`` is that of `send`. Raises what `send` raises, and UsageError for an error of another producer.
        """
        unfinished = error.unfinished
        if not isinstance(unfinished, OneSend) or unfinished.sender is not self.sender:
            raise UsageError("only a producer that began a send can go on with it")
        return await unfinished.resumed(timeout_s).run()

    async def send_one_way(self, message: Message, *, queue: QueueChoice = None) -> None:
        """Send one message without a response: it may be lost without anybody noticing.

        Waits only for a route, a connection, and room in the connection. ``queue`` is that of `send`. Raises
        MessageRejected, NoRoute, NameServerUnavailable, BrokerError (of a name server), ConnectionFailed, and
        UsageError for a queue of another topic.
        """
        self.core.check_open()
        await self.sender.send_one_way(self.preparer.message(message), message, queue)

    def outbox(
        self, *, in_flight: int = 64, waiting_max: int | None = None
    ) -> AbstractAsyncContextManager[Outbox]:
        """Return a block that sends in the background (outbox.py), at most ``in_flight`` messages at the same time.

        ``waiting_max`` more may wait; by default as many again. The end of the block waits for all messages, and raises
        SendsFailed for those that failed and were not waited for. An exception that leaves the block gives up what is
        under way. Raises UsageError for numbers below 1.
        """
        self.core.check_open()
        return open_outbox(self.sender, self.preparer, in_flight, waiting_max)

    async def send_many(
        self,
        messages: Iterable[Message] | AsyncIterable[Message],
        *,
        queue: QueueChoice = None,
        in_flight: int = 64,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        """Send messages one by one, at most ``in_flight`` at the same time, and wait until all are stored.

        Returns a result for each, in the order of the messages, which may be of several topics. This is the fastest way
        to send messages that are stored independently of each other. They are taken from ``messages`` as there is room
        for them. ``queue`` and ``timeout_s`` are those of `send`, for each.

        When one fails, no more are taken, those under way are waited for, and SendsFailed is raised: it has the
        failures, and the results of all others. An exception of ``messages``, or a cancellation, gives up what is under
        way. Raises UsageError for an ``in_flight`` below 1.
        """
        self.core.check_open()
        return await send_many(self.sender, self.preparer, messages, queue, in_flight, timeout_s)

    def portion(
        self, writer: str, number: int, *, in_flight: int = 256, timeout_s: float | None = None
    ) -> Portion:
        """Return an attempt at a portion of messages that may be written again, and are stored once (portion.py).

        ``writer`` names who writes it, in 1 to 255 characters, ``number`` the portion: a writer's numbers grow, and
        none begins before the one before it has ended. ``in_flight`` messages at most are under way at the same time.
        ``timeout_s`` bounds each call. Trivet brokers only; topics must exist. Raises UsageError for a name or number
        that cannot be.
        """
        if not isinstance(writer, str) or not 1 <= len(writer) <= 255 or not writer.isprintable():
            raise UsageError(f"writer is {writer!r}, and must be 1 to 255 printable characters")
        check_whole(0, LONG_MAX, number=number)
        check_whole(1, in_flight=in_flight)
        if timeout_s is not None:
            check_seconds(timeout_s=timeout_s)
        limit_s = self.sender.timeout_ns / 1e9 if timeout_s is None else timeout_s
        return Portion(self.sender, self.preparer, writer, number, in_flight=in_flight, timeout_s=limit_s)

    async def request(
        self, message: Message, *, queue: QueueChoice = None, timeout_s: float = REPLY_TIMEOUT_S
    ) -> MessageView:
        """Send one message and wait for the reply of the consumer that handles it; returns the reply.

        ``timeout_s`` bounds sending and waiting together, ``queue`` is that of `send`. A reply is returned even when
        the outcome of the send is unknown. Raises what `send` raises, UsageError for a message that has properties of a
        request already, and ReplyTimeout when the message was stored and no reply came in time.
        """
        check_seconds(timeout_s=timeout_s)
        runtime = self.core.runtime
        deadline_ns = runtime.now_ns() + int(timeout_s * 1e9)
        correlation_id, addressed = self._requests.addressed(message, timeout_s)
        unknown: SendOutcomeUnknown | None = None
        try:
            try:
                await self.send(
                    addressed, queue=queue, timeout_s=min(timeout_s, self.sender.timeout_ns / 1e9)
                )
            except SendOutcomeUnknown as error:
                unknown = error  # a reply would prove that it was stored, so it is waited for
            remaining_s = (deadline_ns - runtime.now_ns()) / 1e9
            return await self._requests.wait(correlation_id, remaining_s)
        except ReplyTimeout:
            if unknown is not None:
                raise unknown from None
            raise
        finally:
            self._requests.forget(correlation_id)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be sent to, sorted.

        Raises NoRoute, NameServerUnavailable, BrokerError.
        """
        self.core.check_open()
        return list((await self.sender.route(topic)).writable)
