"""The producer: sends messages, and makes what it reports about them true.

A send is a loop of attempts within one time limit (3 s by default). Every attempt carries the same unique key, and
tells a Trivet broker whether an earlier one may have been stored: then the broker looks, and answers with the first
place (broker/sending/once.py). So a message is stored once, however often it had to be sent and whatever fails in
between.
Other brokers do not look; there a reader can tell a repetition by its key.

After each attempt one of four things is known:

- stored: the send returns.
- refused for good (the message is illegal, the topic is forbidden): raised at once.
- not stored, and another attempt may succeed (no connection, broker busy, group without leader): tried again, with a
  new route, at another member of the group or another group.
- unknown (the connection broke or the time was up after the request had left, or the broker reports an error that does
  not say): tried again too, in the same group, which knows what it has; but once all attempts are used up, the error is
  `SendOutcomeUnknown` and not `NotDelivered`. `Producer.resume` goes on asking about the same message; a new `send` of
  it would be another message.

Trivet's followers forward to their leader, so within a group any member will do: the next attempt need not wait until
the name server has heard of the new leader.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType

from broker.client.errors import (
    BrokerError,
    ClientError,
    ConnectionFailed,
    MessageRejected,
    NameServerUnavailable,
    NoRoute,
    NotDelivered,
    ReplyTimeout,
    SendOutcomeUnknown,
    UsageError,
)
from broker.client.message import Message, MessageQueue, MessageView, SendResult, SendStatus, trace_key
from broker.client.producing.latency import LatencyClasses, SlowGroups
from broker.client.producing.outbox import Outbox, open_outbox
from broker.client.producing.outgoing import BATCH_CODE, Outgoing, Preparer, check_name
from broker.client.producing.requests import REPLY_TIMEOUT_S, Requests, send_reply
from broker.client.transport.connection import Connection
from broker.client.transport.core import BUSY_CODES, CLOSE_TIMEOUT_S, ClientCore, broker_error
from broker.client.transport.credentials import Credentials
from broker.client.transport.identity import UniqueKeys
from broker.client.transport.routes import DEFAULT_TOPIC, DEFAULT_TOPIC_QUEUES, TopicRoute
from broker.client.transport.runtime import Runtime
from broker.remoting.bodies import HeartbeatData, ProducerData
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import RemotingError
from broker.remoting.headers import SendMessageResponseHeader
from broker.trace import TraceWriter
from log.java_hash import java_hash

SEND_TIMEOUT_S = 3.0
"""Time limit of a send, all attempts and pauses included."""
_PAUSE_FIRST_S = 0.01
_PAUSE_MAX_S = 0.25
_ATTEMPT_MIN_NS = 50_000_000
"""No further attempt begins with less time: cut off, it would make an unknown outcome of what was refused so far."""

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Picks a queue out of the writable ones, which are sorted."""
QueueChoice = MessageQueue | QueueSelector | str | int | None
"""A queue, a selector, a key that is hashed to a queue, or None for all queues in turn."""

# Codes after which the message is certainly not stored and another attempt may succeed. 16 and 17 are among them
# because another member of a failing-over cluster may know better; 204 and 205 as in the reference's client.
_NOT_STORED_RETRY = BUSY_CODES | {
    ResponseCode.NO_PERMISSION,
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.NO_BUYER_ID,
    ResponseCode.NOT_IN_CURRENT_UNIT,
    ResponseCode.ONCE_UNDECIDABLE,
}
_ILLEGAL = frozenset((ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER))
_STORED = {int(status): status for status in SendStatus}


class Producer:
    """Sends messages to the brokers that the name servers know.

    ``async with Producer("127.0.0.1:9876", group="p") as producer: await producer.send(Message("topic", b"body"))``

    ``send_timeout_s`` bounds a send with all its attempts, ``attempt_timeout_s`` one of them: a broker that is
    alive but silent must not use up the whole time. ``compress_above`` is a body size in bytes from which on bodies
    are sent zlib-compressed, None for never. ``exactly_once`` has Trivet brokers recognize an attempt that repeats a
    stored one; without it, and at other brokers, a message may be stored twice when an acknowledgement is lost.
    ``avoid_slow`` has the producer, where it chooses the queue, prefer broker groups that answer fast (latency.py).
    ``retry_unknown`` False ends a send at the first attempt of unknown outcome. ``trace`` records every attempt.
    ``tls`` encrypts all connections, ``credentials`` signs all requests (docs/security.md).

    Any number of tasks may send at the same time. Cancelling a send leaves its outcome unknown and the producer usable.
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
        if runtime is None:
            from broker.client.transport.trio_runtime import TrioRuntime

            runtime = TrioRuntime(tls=tls)
        check_name("group", group)
        self.group = group
        self.core = ClientCore(
            runtime, name_servers, heartbeat=self._heartbeat, trace=trace, credentials=credentials
        )
        self._runtime = runtime
        self._trace = trace
        self._send_timeout_s = send_timeout_s
        self._attempt_timeout_s = attempt_timeout_s if attempt_timeout_s is not None else send_timeout_s / 2
        self._retry_unknown = retry_unknown
        self._exactly_once = exactly_once
        self._floors: dict[str, int] = {}
        """By broker group, a position that its log has reached: the floor of the next send (broker/sending/once.py)."""
        self._slow = SlowGroups(avoid_slow, runtime.now_ns) if avoid_slow is not None else None
        self._requests = Requests(self.core)
        self._prepare = Preparer(UniqueKeys(runtime), compress_above)
        self._turn = runtime.random.getrandbits(16)

    async def __aenter__(self) -> Producer:
        await self.core.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        with self._runtime.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            await self.core.unregister(producer_group=self.group)
        return await self.core.__aexit__(kind, error, traceback)

    def _heartbeat(self) -> HeartbeatData:
        return HeartbeatData(client_id=self.core.client_id, producer_data_set=[ProducerData(self.group)])

    # Sending -------------------------------------------------------------------------------------------------------

    async def send(
        self, message: Message, *, queue: QueueChoice = None, timeout_s: float | None = None
    ) -> SendResult:
        """Send one message and wait until it is stored.

        ``queue``: where to, see `QueueChoice`; messages with the same key or to the same queue keep the order in which
        they were acknowledged. Raises MessageRejected, NotDelivered, SendOutcomeUnknown, NoRoute,
        NameServerUnavailable, BrokerError (refused for good).
        """
        results = await self._send(self._prepare.message(message), message, queue, timeout_s)
        return results[0]

    def prepare(self, message: Message) -> Outgoing:
        """A message made ready for `send_prepared`, with its unique key. Raises MessageRejected."""
        return self._prepare.message(message)

    async def send_prepared(
        self,
        outgoing: Outgoing,
        message: Message,
        *,
        queue: QueueChoice = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send what `prepare` gave for ``message``. Raises as `send`."""
        return (await self._send(outgoing, message, queue, timeout_s))[0]

    async def request(
        self, message: Message, *, queue: QueueChoice = None, timeout_s: float = REPLY_TIMEOUT_S
    ) -> MessageView:
        """Send one message and wait for the reply of whoever consumes it (broker/client/producing/requests.py).

        A reply counts, whatever is known of the sending. Raises ReplyTimeout, and as `send`.
        """
        deadline_ns = self._runtime.now_ns() + int(timeout_s * 1e9)
        correlation_id, addressed = self._requests.addressed(message, timeout_s)
        self._requests.expect(correlation_id)
        unknown: SendOutcomeUnknown | None = None
        try:
            try:
                await self.send(addressed, queue=queue, timeout_s=min(timeout_s, self._send_timeout_s))
            except SendOutcomeUnknown as error:
                unknown = error  # whoever replies has got it
            remaining_s = (deadline_ns - self._runtime.now_ns()) / 1e9
            return await self._requests.wait(correlation_id, remaining_s)
        except ReplyTimeout:
            if unknown is not None:
                raise unknown from None
            raise
        finally:
            self._requests.forget(correlation_id)

    async def reply(
        self,
        request: MessageView,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_s: float = REPLY_TIMEOUT_S,
    ) -> None:
        """Reply to a request that a consumer has received. Raises as `requests.send_reply`."""
        self.core.check_open()
        await send_reply(self.core, self.group, request, body, properties, timeout_s)

    async def resume(self, error: SendOutcomeUnknown, *, timeout_s: float | None = None) -> list[SendResult]:
        """Goes on with a send of unknown outcome, as if its time limit had been longer.

        With ``exactly_once`` and a Trivet broker the message is stored once even if it was stored all along: one result
        for each message of the send. Raises as `send`; UsageError for an error that is not of this producer's.
        """
        unfinished = error.unfinished
        if not isinstance(unfinished, _Unfinished) or unfinished.producer is not self:
            raise UsageError("only a producer that began a send can go on with it")
        choice = unfinished.target
        return await self._send(unfinished.outgoing, unfinished.message, choice, timeout_s, unfinished.floor)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: QueueChoice = None, timeout_s: float | None = None
    ) -> list[SendResult]:
        """Send messages of one topic as one append; they are stored side by side.

        Raises as `send`. A refusal says that none of them is stored. After `SendOutcomeUnknown` all may be, none, or
        the first of them: an append is one entry of the log for each message, and a group that loses its leader keeps
        those that the next leader has. `resume` finds that out: its results say that all are stored; it raises
        `SendOutcomeUnknown` again, with the number in ``last_error`` (code 3001), if only the first are, since adding
        the others would tear the batch apart.
        """
        outgoing = self._prepare.batch(messages)
        return await self._send(outgoing, messages[0], queue, timeout_s)

    async def send_one_way(self, message: Message, *, queue: QueueChoice = None) -> None:
        """Send one message and wait for nothing: it may be lost without anybody noticing.

        Raises MessageRejected, NoRoute, NameServerUnavailable and, when no broker can be reached, ConnectionFailed.
        """
        self.core.check_open()
        outgoing = self._prepare.message(message)
        route = await self._route(message.topic)
        target = self._choose(route, message, queue)
        address = route.address(target.broker_name)
        lacking = route.lacks(target)
        if lacking is not None:
            raise NoRoute(message.topic, lacking)
        assert address is not None, "a registered broker has an address"
        connection = self.core.pool.find(address) or await self.core.pool.get(address)
        if self._trace is not None:
            # Nothing completes it: of unknown outcome for ever.
            self._trace.invoke_append(
                self._runtime.now_ns(), self.core.client_id, trace_key(target), outgoing.unique_keys
            )
        fields = self._fields(outgoing, target, None)
        await connection.send_one_way_with_room(outgoing.code, fields, outgoing.body)

    def outbox(
        self, *, in_flight: int = 64, waiting_max: int | None = None
    ) -> AbstractAsyncContextManager[Outbox]:
        """A block that sends in the background (outbox.py): at most ``in_flight`` messages at the same time.

        ``waiting_max`` more may wait (by default as many again). Leaving the block waits for all of them, and raises
        SendsFailed for those that failed without anyone asking; leaving it by an exception gives up what is under way.
        """
        self.core.check_open()
        return open_outbox(self, self._runtime, in_flight, waiting_max)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be sent to, sorted. Raises NoRoute, NameServerUnavailable."""
        self.core.check_open()
        return list((await self._route(topic)).writable)

    # One send ------------------------------------------------------------------------------------------------------

    async def _send(
        self,
        outgoing: Outgoing,
        message: Message,
        choice: QueueChoice,
        timeout_s: float | None,
        resumed_floor: int | None = None,
    ) -> list[SendResult]:
        core = self.core
        core.check_open()
        runtime = self._runtime
        limit_s = self._send_timeout_s if timeout_s is None else timeout_s
        deadline_ns = runtime.now_ns() + int(limit_s * 1e9)
        topic = outgoing.topic
        route = core.routes.find(topic)
        target: MessageQueue | None = None
        failed: list[str] = []
        failed_groups: list[str] = []
        unknown = resumed_floor is not None
        floor = resumed_floor or 0
        attempts = 0
        pause_s = _PAUSE_FIRST_S
        last_error: ClientError | None = None
        while True:
            if route is None or not route.writable:
                try:
                    route = await self._route_before(deadline_ns, topic)
                except (NoRoute, NameServerUnavailable, BrokerError) as error:
                    if attempts == 0 and not error.retry_may_help:
                        raise
                    last_error = error
                    route = None
            address = None
            if route is not None:
                if target is None:
                    target = self._choose(route, message, choice, failed_groups)
                lacking = route.lacks(target)
                if lacking is None:
                    address = route.address(target.broker_name, avoid=failed)
                elif failed:
                    address = failed[-1]  # gone from the route while it was tried: it may serve all the same
                else:
                    last_error = NoRoute(topic, lacking)
            if address is not None:
                assert target is not None, "an address is that of a queue's group"
                attempts += 1
                if not unknown:
                    # From the first attempt on that may be stored, the floor must stay below it.
                    floor = self._floors.get(target.broker_name, 0)
                began_ns = runtime.now_ns()
                try:
                    connection = core.pool.find(address)
                    if connection is None:
                        connection = await core.pool.get(address, self._attempt_s(deadline_ns))
                    fields = self._fields(outgoing, target, floor, again=unknown)
                    answer = await self._attempt(
                        connection, outgoing, target, fields, self._attempt_s(deadline_ns)
                    )
                    status = _STORED.get(answer.code)
                    if self._slow is not None:
                        if answer.code in BUSY_CODES:
                            self._slow.failed(target.broker_name)
                        else:
                            self._slow.answered(target.broker_name, began_ns)
                    if status is not None:
                        results = _results(outgoing, target, answer, status, address, attempts)
                        if status is SendStatus.OK:
                            self._reached(target.broker_name, results[-1].offset_message_id[-16:], 16)
                        return results
                    last_error = refusal = broker_error(answer, address)
                    may_change = answer.code in _NOT_STORED_RETRY or answer.code == ResponseCode.SYSTEM_ERROR
                    if answer.code == ResponseCode.ONCE_UNDECIDABLE:
                        self._reached(target.broker_name, answer.fields.get("once", "0"), 10)
                        may_change = not unknown
                        if may_change and attempts == 1:
                            continue  # with the newer floor
                    if not may_change:
                        if unknown:
                            break
                        if answer.code in _ILLEGAL:
                            raise MessageRejected(str(refusal), answer.code) from refusal
                        raise refusal
                    unknown = unknown or answer.code not in _NOT_STORED_RETRY
                except ConnectionFailed as error:
                    last_error = error
                    unknown = unknown or error.request_left
                    if self._slow is not None:
                        self._slow.failed(target.broker_name)
                failed.append(address)
                if not unknown and not isinstance(choice, MessageQueue | str | int):
                    failed_groups.append(target.broker_name)
                    target = None  # the next attempt may go to another group
                if unknown and not self._retry_unknown:
                    break
            remaining_s = (deadline_ns - runtime.now_ns()) / 1e9
            # The first repetition needs no pause when another member is at hand: a lost connection says little of it.
            if attempts != 1 or route is None or not _another(route, failed):
                pause = pause_s * (0.5 + runtime.random.random())
                pause_s = min(pause_s * 2, _PAUSE_MAX_S)
                if pause >= remaining_s:
                    break
                await runtime.sleep(pause)
                failed = failed[-1:]
            route = await self._new_route(topic, deadline_ns, route)
            if deadline_ns - runtime.now_ns() <= (0 if unknown else _ATTEMPT_MIN_NS):
                break
        if unknown:
            lost = SendOutcomeUnknown(topic, outgoing.unique_keys, attempts, last_error)
            if target is not None:
                lost.unfinished = _Unfinished(self, outgoing, message, target, floor)
            raise lost from last_error
        if attempts == 0 and last_error is not None:
            raise last_error
        raise NotDelivered(topic, attempts, last_error) from last_error

    async def _attempt(
        self,
        connection: Connection,
        outgoing: Outgoing,
        target: MessageQueue,
        fields: Mapping[str, str],
        timeout_s: float,
    ) -> RemotingCommand:
        trace = self._trace
        if trace is None:
            return await connection.call(outgoing.code, fields, outgoing.body, timeout_s)
        now_ns = self._runtime.now_ns
        operation = trace.invoke_append(
            now_ns(), self.core.client_id, trace_key(target), outgoing.unique_keys
        )
        try:
            answer = await connection.call(outgoing.code, fields, outgoing.body, timeout_s)
        except ConnectionFailed as error:
            if error.request_left:
                trace.info(now_ns(), operation, str(error))
            else:
                trace.fail(now_ns(), operation, str(error))
            raise
        if answer.code == ResponseCode.SUCCESS:
            try:
                stored = answer.decode_fields(SendMessageResponseHeader)
            except RemotingError as error:
                trace.info(now_ns(), operation, str(error))
            else:
                if stored.once is None and outgoing.waits:
                    trace.info(now_ns(), operation, "stored, and delivered later")
                elif stored.once is None:
                    trace.ok_append(now_ns(), operation, stored.queue_offset)
                else:  # what stored the message was another attempt
                    trace.fail(now_ns(), operation, "stored by an earlier attempt")
        elif answer.code in _NOT_STORED_RETRY or answer.code in _ILLEGAL:
            trace.fail(now_ns(), operation, f"code {answer.code}")
        else:
            trace.info(now_ns(), operation, f"code {answer.code}: {answer.remark}")
        return answer

    def _attempt_s(self, deadline_ns: int) -> float:
        """Time limit of the next attempt."""
        remaining_s = (deadline_ns - self._runtime.now_ns()) / 1e9
        return max(min(self._attempt_timeout_s, remaining_s), 0.001)

    # Routes and queues ---------------------------------------------------------------------------------------------

    async def _route(self, topic: str) -> TopicRoute:
        route = self.core.routes.find(topic)
        if route is None:
            route = await self.core.routes.get(topic, create_like_default=True)
        elif not route.writable:
            # It may be written again by now, and the next renewal is half a minute away.
            route = await self.core.routes.refresh(topic)
        if not route.writable:
            raise NoRoute(topic, "none of its queues can be written")
        return route

    async def _route_before(self, deadline_ns: int, topic: str) -> TopicRoute:
        with self._runtime.move_on_after((deadline_ns - self._runtime.now_ns()) / 1e9):
            return await self._route(topic)
        raise NameServerUnavailable(["no route within the send's time limit"])

    async def _new_route(self, topic: str, deadline_ns: int, old: TopicRoute | None) -> TopicRoute | None:
        """A fresh route, the old one where there is none to be had."""
        with self._runtime.move_on_after((deadline_ns - self._runtime.now_ns()) / 1e9):
            try:
                fresh = await self.core.routes.refresh(topic)
            except (NoRoute, NameServerUnavailable, BrokerError):
                return old
            return fresh if fresh.writable else old
        return old

    def _choose(
        self, route: TopicRoute, message: Message, choice: QueueChoice, avoid_groups: Sequence[str] = ()
    ) -> MessageQueue:
        queues: Sequence[MessageQueue] = route.writable
        if choice is None:
            if avoid_groups:
                queues = [queue for queue in queues if queue.broker_name not in avoid_groups] or queues
            self._turn += 1
            if self._slow is not None:
                return self._slow.choose(queues, self._turn)
            return queues[self._turn % len(queues)]
        if isinstance(choice, MessageQueue):
            if choice.topic != message.topic:
                raise UsageError(f"a message for topic {message.topic!r} cannot go to {choice}")
            return choice
        if isinstance(choice, str):
            return queues[abs(java_hash(choice)) % len(queues)]
        if isinstance(choice, int):
            return queues[choice % len(queues)]
        chosen = choice(queues, message)
        if chosen not in route.writable:
            raise UsageError(f"the selector chose {chosen}, which is not among the writable queues")
        return chosen

    # Preparing -----------------------------------------------------------------------------------------------------

    def _reached(self, broker_name: str, position: str, base: int) -> None:
        """Notes what an answer says of a group's log. A smaller position than before is true as well, and of a log that
        began anew the only one that is.
        """
        try:
            self._floors[broker_name] = int(position, base)
        except ValueError:
            pass  # another broker's way to name places

    def _fields(
        self, outgoing: Outgoing, target: MessageQueue, floor: int | None, *, again: bool = False
    ) -> Mapping[str, str]:
        # The short names of SEND_MESSAGE_V2 (remoting.md 7.1); a dict of strings is the fastest to encode.
        fields = {
            "a": self.group,
            "b": outgoing.topic,
            "c": DEFAULT_TOPIC,
            "d": _DEFAULT_QUEUES,
            "e": str(target.queue_id),
            "f": str(outgoing.sys_flag),
            "g": str(self._runtime.wall_ms()),
            "h": str(outgoing.flag),
            "i": outgoing.properties,
            "j": "0",
            "k": "false",
            "m": "true" if outgoing.code == BATCH_CODE else "false",
            "n": target.broker_name,
        }
        if floor is not None and self._exactly_once:
            fields["once"] = str(floor)
            if again:
                fields["again"] = "true"
        return fields


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """What `Producer.resume` goes on with."""

    producer: Producer
    outgoing: Outgoing
    message: Message
    target: MessageQueue
    floor: int


_DEFAULT_QUEUES = str(DEFAULT_TOPIC_QUEUES)


def _another(route: TopicRoute, failed: Sequence[str]) -> bool:
    return any(address not in failed for _, _, address in route.addresses())


def _results(
    outgoing: Outgoing,
    target: MessageQueue,
    answer: RemotingCommand,
    status: SendStatus,
    address: str,
    attempts: int,
) -> list[SendResult]:
    try:
        stored = answer.decode_fields(SendMessageResponseHeader)
    except RemotingError as error:
        # Stored, but nobody can say where.
        unreadable = BrokerError(answer.code, f"unreadable answer to a send: {error}", address)
        raise SendOutcomeUnknown(outgoing.topic, outgoing.unique_keys, attempts, unreadable) from error
    if stored.queue_id != target.queue_id:
        target = target._replace(queue_id=stored.queue_id)
    unique_keys = outgoing.unique_keys
    if len(unique_keys) == 1:
        return [
            SendResult(
                unique_keys[0], stored.message_id, target, stored.queue_offset, status, stored.transaction_id
            )
        ]
    ids = stored.message_id.split(",")
    if len(ids) != len(unique_keys):
        ids = [stored.message_id] * len(unique_keys)
    return [
        SendResult(unique_key, ids[index], target, stored.queue_offset + index, status)
        for index, unique_key in enumerate(unique_keys)
    ]
