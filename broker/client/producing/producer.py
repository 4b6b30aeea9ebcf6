"""The producer: sends messages, and makes what it reports about them true.

A send is a series of attempts within one time limit (3 s by default), see one_send.py: a message is stored once,
however often it had to be sent and whatever fails in between. That is so at Trivet brokers; others do not look for
earlier attempts, and a reader can tell a repetition there by its unique key.

A send ends by a result; by an error that says that nothing was stored; or by `SendOutcomeUnknown`. `Producer.resume`
goes on asking about the same message then; a new `send` of it would be another message.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from broker.client.errors import ReplyTimeout, SendOutcomeUnknown, UsageError
from broker.client.message import Message, MessageQueue, MessageView, SendResult
from broker.client.producing.latency import LatencyClasses
from broker.client.producing.one_send import OneSend
from broker.client.producing.outbox import Outbox, open_outbox
from broker.client.producing.outgoing import Preparer, check_name
from broker.client.producing.requests import REPLY_TIMEOUT_S, Replies, Requests
from broker.client.producing.sender import QueueChoice, Sender
from broker.client.transport.core import CLOSE_TIMEOUT_S, ClientCore
from broker.client.transport.credentials import Credentials
from broker.client.transport.identity import UniqueKeys
from broker.client.transport.options import ConnectionOptions
from broker.client.transport.runtime import Runtime
from broker.remoting.bodies import HeartbeatData, ProducerData
from broker.trace import TraceWriter

SEND_TIMEOUT_S = 3.0
"""Time limit of a send, all attempts and pauses included."""


class Producer:
    """Sends messages to the brokers that the name servers know.

        async with Producer("127.0.0.1:9876", group="orders") as producer:
            result = await producer.send(Message("paid", b"order 17", keys=["17"]))
            print(result.queue, result.queue_offset)

    - ``name_servers``: addresses ``host:port``, a list or one text with ``;`` or ``,`` between them.
    - ``group``: the producer group, by which brokers know who sends.
    - ``send_timeout_s``: bounds a send with all its attempts.
    - ``attempt_timeout_s``: bounds one attempt, since a broker that is alive but silent must not use up the whole
      time; by default half of ``send_timeout_s``.
    - ``compress_above``: bodies of more bytes are sent zlib-compressed; None for never.
    - ``exactly_once``: Trivet brokers recognize an attempt that repeats a stored one. Without it, and at other
      brokers, a message may be stored twice when an acknowledgement is lost.
    - ``retry_unknown``: False ends a send at the first attempt of unknown outcome.
    - ``avoid_slow``: where the producer chooses the queue, it prefers broker groups that respond fast (latency.py).
    - ``trace``: records every attempt.
    - ``runtime``: clock, tasks and sockets; Trio and real ones by default.
    - ``tls``, ``credentials``: encrypt all connections, sign all requests (docs/security.md).

    Any number of tasks may send at the same time. Cancelling a send leaves its outcome unknown and the producer usable.
    Raises MessageRejected for a group's name that no broker takes, UsageError for name servers that are no addresses.
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
        self.group = group
        self.core = ClientCore(
            ConnectionOptions(name_servers, runtime, tls, credentials, trace), heartbeat=self._heartbeat
        )
        self.preparer = Preparer(UniqueKeys(self.core.runtime), compress_above)
        """Makes messages ready to be sent; for what is built on this producer."""
        self.sender = Sender(
            self.core,
            group,
            timeout_s=send_timeout_s,
            attempt_timeout_s=send_timeout_s / 2 if attempt_timeout_s is None else attempt_timeout_s,
            exactly_once=exactly_once,
            retry_unknown=retry_unknown,
            avoid_slow=avoid_slow,
        )
        """What all sends share; for what is built on this producer."""
        self.reply = Replies(self.core, group).reply
        """`Replies.reply`: reply to a request that a consumer has received."""
        self._requests = Requests(self.core)

    async def __aenter__(self) -> Producer:
        await self.core.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        with self.core.runtime.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            await self.core.unregister(producer_group=self.group)
        return await self.core.__aexit__(kind, error, traceback)

    def _heartbeat(self) -> HeartbeatData:
        return HeartbeatData(client_id=self.core.client_id, producer_data_set=[ProducerData(self.group)])

    # Sending -------------------------------------------------------------------------------------------------------

    async def send(
        self, message: Message, *, queue: QueueChoice = None, timeout_s: float | None = None
    ) -> SendResult:
        """Send one message and wait until it is stored; returns where.

        ``queue`` is a `MessageQueue`, a number or a key that stands for one, or a function that picks one out of the
        writable queues; without it the queues take turns. Messages with the same key, or to the same queue, keep the
        order in which they were acknowledged. ``timeout_s`` replaces the producer's ``send_timeout_s``.

        Raises MessageRejected, BrokerError (refused for good), NotDelivered, NoRoute or NameServerUnavailable when
        nothing was stored, SendOutcomeUnknown when nobody knows, UsageError for a queue of another topic.
        """
        (result,) = await OneSend(
            self.sender, self.preparer.message(message), message, queue, timeout_s
        ).run()
        return result

    async def send_batch(
        self, messages: Sequence[Message], *, queue: QueueChoice = None, timeout_s: float | None = None
    ) -> list[SendResult]:
        """Send messages of one topic as one append; they are stored side by side. Returns a result for each.

        Raises as `send`. A refusal says that none of them is stored. After `SendOutcomeUnknown` all may be, none, or
        the first of them: an append is one entry of the log for each message, and a group that loses its leader keeps
        those that the next leader has. `resume` finds that out: its results say that all are stored; it raises
        `SendOutcomeUnknown` again, with the number in ``last_error`` (code 3001), if only the first are, since adding
        the others would tear the batch apart.
        """
        outgoing = self.preparer.batch(messages)
        return await OneSend(self.sender, outgoing, messages[0], queue, timeout_s).run()

    async def resume(self, error: SendOutcomeUnknown, *, timeout_s: float | None = None) -> list[SendResult]:
        """Go on with a send of unknown outcome, as if its time limit had been longer; one result for each message.

        With ``exactly_once`` and a Trivet broker the message is stored once even if it was stored all along. Raises as
        `send`; UsageError for an error that does not come from this producer.
        """
        unfinished = error.unfinished
        if not isinstance(unfinished, OneSend) or unfinished.sender is not self.sender:
            raise UsageError("only a producer that began a send can go on with it")
        return await unfinished.resumed(timeout_s).run()

    async def send_one_way(self, message: Message, *, queue: QueueChoice = None) -> None:
        """Send one message and wait for nothing: it may be lost without anybody noticing.

        ``queue`` as in `send`. Raises MessageRejected, NoRoute, NameServerUnavailable, UsageError and, when no broker
        can be reached, ConnectionFailed.
        """
        self.core.check_open()
        await self.sender.send_one_way(self.preparer.message(message), message, queue)

    def outbox(
        self, *, in_flight: int = 64, waiting_max: int | None = None
    ) -> AbstractAsyncContextManager[Outbox]:
        """A block that sends in the background (outbox.py): at most ``in_flight`` messages at the same time.

        ``waiting_max`` more may wait (by default as many again). Leaving the block waits for all of them, and raises
        SendsFailed for those that failed without anyone asking; leaving it by an exception gives up what is under way.
        """
        self.core.check_open()
        return open_outbox(self.sender, self.preparer, in_flight, waiting_max)

    async def request(
        self, message: Message, *, queue: QueueChoice = None, timeout_s: float = REPLY_TIMEOUT_S
    ) -> MessageView:
        """Send one message and wait for the reply of the consumer that handles it; returns the reply.

        A reply counts, whatever is known of the sending. ``timeout_s`` bounds both. Raises ReplyTimeout when the
        message was sent and no reply came, and as `send`.
        """
        runtime = self.core.runtime
        deadline_ns = runtime.now_ns() + int(timeout_s * 1e9)
        correlation_id, addressed = self._requests.addressed(message, timeout_s)
        self._requests.expect(correlation_id)
        unknown: SendOutcomeUnknown | None = None
        try:
            try:
                await self.send(addressed, queue=queue, timeout_s=min(timeout_s, self.sender.timeout_s))
            except SendOutcomeUnknown as error:
                unknown = error  # whoever replies has got it
            remaining_s = (deadline_ns - runtime.now_ns()) / 1e9
            return await self._requests.wait(correlation_id, remaining_s)
        except ReplyTimeout:
            if unknown is not None:
                raise unknown from None
            raise
        finally:
            self._requests.forget(correlation_id)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be sent to, sorted. Raises NoRoute, NameServerUnavailable, BrokerError."""
        self.core.check_open()
        return list((await self.sender.route(topic)).writable)
