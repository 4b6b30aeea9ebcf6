"""Calls about a queue: its ends, offsets by time, the consumer group's offset, and pulls.

Every call but a pull is repeated until its time limit (transport/patient_calls.py). A pull is one attempt: its reader
decides what to do about a failure. The trace, if there is one, records each attempt with its result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from broker.client.consuming.subscription import Subscription
from broker.client.errors import BrokerError, ClientError, ConnectionFailed, DamagedMessage
from broker.client.message import MessageQueue, MessageView, trace_key, views
from broker.client.transport.calls import PendingCall
from broker.client.transport.connection import Connection
from broker.client.transport.core import broker_error
from broker.client.transport.patient_calls import CallIsOverError, PatientCalls, Recording, address_of
from broker.remoting.codes import PullSysFlag, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import RemotingError
from broker.remoting.headers import (
    EarliestStoreTimeResponseHeader,
    OffsetResponseHeader,
    PullMessageResponseHeader,
)
from broker.remoting.route import MASTER_ID
from broker.state.topic_rules import CONSUMER_GROUP_PREFIXES
from broker.trace import TraceWriter
from log.errors import RecordError

SearchBoundary = Literal["lower", "upper"]
"""The message that a search by time finds: ``lower`` the first at or after that time, ``upper`` the last at or
before."""
PULL_MARGIN_S = 5.0
"""The response to a pull may take so many seconds longer than the broker may hold the pull."""
_PULL_RESPONSES = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
)


@dataclass(frozen=True, slots=True)
class PullResponse:
    """The result of a pull. ``messages`` are those that the subscription takes; ``size`` counts the bytes of all.

    ``code`` is 0 (messages came), 19 (none is there yet), 20 (none matched) or 21 (the offset was outside the queue).
    The next pull asks from ``next_offset`` on, at best at the member ``suggested_broker_id``.
    """

    code: int
    messages: list[MessageView]
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    size: int
    is_reset: bool = False
    """True, with code 21, if an administrator has sent the consumer group to ``next_offset``."""


class QueueCalls:
    """Makes calls about queues for one consumer group; ``patient`` makes those that are repeated.

    All calls raise BrokerError, ConnectionFailed, NoRoute, NameServerUnavailable.
    """

    def __init__(self, patient: PatientCalls, group: str) -> None:
        self.patient = patient
        self._core = patient.core
        self._group = group
        self._tables: dict[tuple[str, str], None] = {}
        """(topic, broker name) of all offsets that were committed; see `commit_all`."""

    # Queries -------------------------------------------------------------------------------------------------------

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset after the queue's last message."""
        return await self._ask_end(queue, RequestCode.GET_MAX_OFFSET)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that the queue still has."""
        return await self._ask_end(queue, RequestCode.GET_MIN_OFFSET)

    async def search_offset(
        self, queue: MessageQueue, timestamp_ms: int, boundary: SearchBoundary = "lower"
    ) -> int:
        """Return the offset of the first message stored at or after a time, the queue's end if there is none.

        With ``upper`` it is the last message stored at or before that time, or else the first one that is kept. The
        time is in milliseconds since 1970.
        """
        fields = {**_queue_fields(queue), "timestamp": str(timestamp_ms), "boundaryType": boundary.upper()}
        response = await self.patient.ask(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
        return _offset(response)

    async def earliest_store_time(self, queue: MessageQueue) -> int | None:
        """Return the time at which the first kept message was stored, in ms since 1970; None if there is none.

        Raises ClientError, also for a response that cannot be read.
        """
        response = await self.patient.ask(queue, RequestCode.GET_EARLIEST_MSG_STORETIME, _queue_fields(queue))
        try:
            timestamp = response.decode_fields(EarliestStoreTimeResponseHeader).timestamp
        except RemotingError as error:
            raise BrokerError(response.code, f"unreadable response: {error}", "broker") from error
        return None if timestamp < 0 else timestamp

    async def committed_offset(self, queue: MessageQueue, *, zero_if_young: bool = True) -> int | None:
        """Return the consumer group's stored offset, None if it has none.

        With ``zero_if_young`` brokers say 0 instead in a queue that is young, so that a new consumer group misses
        nothing of it (`ConsumerManageProcessor.queryConsumerOffset`); those of RocketMQ 4.x without it, too.
        """
        fields = {**_queue_fields(queue), "consumerGroup": self._group}
        if not zero_if_young:
            fields["setZeroIfNotFound"] = "false"
        accepted = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)

        def stored(response: RemotingCommand) -> int | None:
            return None if response.code == ResponseCode.QUERY_NOT_FOUND else _offset(response)

        recording = None
        if (trace := self._core.trace) is not None:
            process, key, group = self._core.client_id, trace_key(queue), self._group
            recording = Recording(
                lambda now_ns: trace.invoke_fetch_offset(now_ns, process, key, group),
                lambda now_ns, operation, response: trace.ok_fetch_offset(
                    now_ns, operation, stored(response)
                ),
            )
        code = RequestCode.QUERY_CONSUMER_OFFSET
        return stored(await self.patient.ask(queue, code, fields, accepted, recording=recording))

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Store the consumer group's offset. Raises what all calls raise; the offset may be stored or not then."""
        failures = await self.commit_all([(queue, offset)])
        if failures:
            raise failures[0][1]

    async def commit_all(
        self,
        offsets: Sequence[tuple[MessageQueue, int]],
        is_outdated: Callable[[MessageQueue], bool] = lambda queue: False,
    ) -> list[tuple[MessageQueue, ClientError]]:
        """Store several offsets, most of them at the same time; returns the queues that failed, each with its error.

        Nothing is stored, or tried again, of queues that `is_outdated`: an administrator has sent the consumer group
        elsewhere.

        The first offset of a topic goes alone. For it RocketMQ's broker makes the table of the topic
        (`ConsumerOffsetManager`), and when it makes two at once it loses one, with the offset in it.
        """
        first: list[tuple[MessageQueue, int]] = []
        others: list[tuple[MessageQueue, int]] = []
        for queue, offset in offsets:
            known = (queue.topic, queue.broker_name) in self._tables
            self._tables[queue.topic, queue.broker_name] = None
            (others if known else first).append((queue, offset))
        failures = await self._commit_together(first, is_outdated)
        return failures + await self._commit_together(others, is_outdated)

    async def _commit_together(
        self, offsets: Sequence[tuple[MessageQueue, int]], is_outdated: Callable[[MessageQueue], bool]
    ) -> list[tuple[MessageQueue, ClientError]]:
        runtime, trace = self._core.runtime, self._core.trace
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        started: list[tuple[MessageQueue, int, PendingCall, int]] = []
        """Queue, offset, call, operation of the trace."""
        left: list[tuple[MessageQueue, int]] = []
        """Offsets to ask for one by one: there was no open connection to their leader, or it did not confirm them."""
        for queue, offset in offsets:
            if is_outdated(queue):
                continue
            connection = self._leader_connection(queue)
            if connection is None:
                left.append((queue, offset))
                continue
            recording = self._commit_recording(queue, offset)
            operation = recording.begin(runtime.now_ns()) if recording is not None else -1
            fields = self._commit_fields(queue, offset)
            # All are on their way before the first response is waited for.
            call = connection.start_call(code, fields, b"", self.patient.timeout_s)
            started.append((queue, offset, call, operation))
        for queue, offset, call, operation in started:
            error: ClientError | None = None
            try:
                response = await call.wait()
                if response.code != ResponseCode.SUCCESS:
                    error = broker_error(response, "broker")
            except ConnectionFailed as failure:
                error = failure
            if trace is not None and error is None:
                _record_commit(trace, runtime.now_ns(), operation, response)
            elif trace is not None:
                trace.info(runtime.now_ns(), operation, str(error))
            if error is not None:
                left.append((queue, offset))
        failures: list[tuple[MessageQueue, ClientError]] = []

        async def ask(queue: MessageQueue, offset: int) -> None:
            """Find a member of the group that answers."""
            fields = self._commit_fields(queue, offset)
            recording = self._commit_recording(queue, offset)
            try:
                is_over = functools.partial(is_outdated, queue)
                await self.patient.ask(queue, code, fields, recording=recording, is_over=is_over)
            except CallIsOverError:
                pass
            except ClientError as failure:
                failures.append((queue, failure))

        if left:
            # At the same time: one after the other, the queues of a group that is away would take their time limits
            # together, in which the consumer takes up no queue and stores no other offset.
            async with runtime.task_group() as tasks:
                for queue, offset in left:
                    tasks.start_soon(ask, queue, offset)
        return failures

    def _commit_recording(self, queue: MessageQueue, offset: int) -> Recording | None:
        trace = self._core.trace
        if trace is None:
            return None
        process, key, group = self._core.client_id, trace_key(queue), self._group
        return Recording(
            lambda now_ns: trace.invoke_commit_offset(now_ns, process, key, group, offset),
            lambda now_ns, operation, response: _record_commit(trace, now_ns, operation, response),
        )

    def _leader_connection(self, queue: MessageQueue) -> Connection | None:
        route = self._core.routes.find(queue.topic)
        address = route.address(queue.broker_name) if route is not None else None
        return self._core.pool.find(address) if address is not None else None

    def _commit_fields(self, queue: MessageQueue, offset: int) -> dict[str, str]:
        return {**_queue_fields(queue), "consumerGroup": self._group, "commitOffset": str(offset)}

    async def _ask_end(self, queue: MessageQueue, code: RequestCode) -> int:
        recording = None
        if (trace := self._trace_of(queue)) is not None:
            process, key = self._core.client_id, trace_key(queue)
            tail = code == RequestCode.GET_MAX_OFFSET
            invoke, complete = (
                (trace.invoke_tail, trace.ok_tail) if tail else (trace.invoke_head, trace.ok_head)
            )
            recording = Recording(
                lambda now_ns: invoke(now_ns, process, key),
                lambda now_ns, operation, response: complete(now_ns, operation, _offset(response)),
            )
        return _offset(await self.patient.ask(queue, code, _queue_fields(queue), recording=recording))

    def _trace_of(self, queue: MessageQueue) -> TraceWriter | None:
        """Return the trace for the content of a queue, None for queues that brokers fill: retry topics and dead
        letters.

        A checker compares the content with the sends that clients have recorded. Brokers record none.
        """
        return None if queue.topic.startswith(CONSUMER_GROUP_PREFIXES) else self._core.trace

    # Pulling -------------------------------------------------------------------------------------------------------

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: Subscription,
        *,
        max_messages: int,
        suspend_s: float,
        max_bytes: int | None = None,
        broker_id: int = MASTER_ID,
        avoid: Sequence[str] = (),
    ) -> PullResponse:
        """Ask once for messages from ``offset`` on; the broker may wait ``suspend_s`` seconds for one to come.

        Without ``max_bytes`` it gives as many bytes as its own limit says. The member ``broker_id`` is asked, or
        another one if it is unknown or its address is to be avoided. The errors BrokerError and ConnectionFailed have
        the address that was asked. Raises NoRoute and NameServerUnavailable, too.
        """
        route = await self._core.routes.get(queue.topic)
        address = address_of(route, queue, broker_id, avoid)
        fields = {
            **_queue_fields(queue),
            "consumerGroup": self._group,
            "queueOffset": str(offset),
            "maxMsgNums": str(max_messages),
            "sysFlag": _PULL_FLAGS,
            "commitOffset": "0",
            "suspendTimeoutMillis": str(int(suspend_s * 1000)),
            "subscription": subscription.expression,
            "subVersion": str(subscription.version),
            "expressionType": subscription.expression_type,
        }
        if max_bytes is not None:
            fields["maxMsgBytes"] = str(max_bytes)
        trace, now_ns = self._trace_of(queue), self._core.runtime.now_ns
        operation = -1
        if trace is not None:
            filtered = not subscription.takes_everything
            key = trace_key(queue)
            operation = trace.invoke_read(now_ns(), self._core.client_id, key, offset, filtered=filtered)
        try:
            command = await self._core.pool.call(
                address, RequestCode.PULL_MESSAGE, fields, b"", suspend_s + PULL_MARGIN_S
            )
            if command.code not in _PULL_RESPONSES:
                raise broker_error(command, address)
            response = _pull_response(command, queue, subscription, address)
        except (BrokerError, ConnectionFailed) as error:
            if trace is not None:
                trace.fail(now_ns(), operation, str(error))
            raise
        # A reset shows nothing of the queue: the consumer group is only sent elsewhere.
        if trace is not None and response.is_reset:
            trace.fail(now_ns(), operation, f"the consumer group is sent to {response.next_offset}")
        elif trace is not None:
            try:
                offsets = [message.queue_offset for message in response.messages]
                values = [message.message_id for message in response.messages]
            except DamagedMessage as error:
                # What was read is unknown, so it is no evidence against the brokers, nor for them.
                trace.fail(now_ns(), operation, str(error))
            else:
                trace.ok_read(now_ns(), operation, response.next_offset, offsets, values)
        return response


_PULL_FLAGS = str(int(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION))


def _record_commit(trace: TraceWriter, now_ns: int, operation: int, response: RemotingCommand) -> None:
    """Put a response to a commit into the trace.

    A broker that answers with a remark has not stored the offset: an administrator has reset it.
    """
    if response.remark:
        trace.fail(now_ns, operation, response.remark)
    else:
        trace.ok_commit_offset(now_ns, operation)


def _queue_fields(queue: MessageQueue) -> dict[str, str]:
    return {"topic": queue.topic, "queueId": str(queue.queue_id)}


def _offset(response: RemotingCommand) -> int:
    try:
        return response.decode_fields(OffsetResponseHeader).offset
    except RemotingError as error:
        raise BrokerError(response.code, f"unreadable response: {error}", "broker") from error


def _pull_response(
    response: RemotingCommand, queue: MessageQueue, subscription: Subscription, address: str
) -> PullResponse:
    try:
        header = response.decode_fields(PullMessageResponseHeader)
        body = response.body
        messages = []
        if response.code == ResponseCode.SUCCESS:
            messages = views(queue, body)
            if not subscription.takes_everything:
                messages = [message for message in messages if subscription.accepts(message)]
    except (RemotingError, RecordError) as error:
        raise BrokerError(response.code, f"unreadable response to a pull: {error}", address) from error
    return PullResponse(
        response.code,
        messages,
        header.next_begin_offset,
        header.min_offset,
        header.max_offset,
        header.suggest_which_broker_id,
        len(body),
        response.code == ResponseCode.PULL_OFFSET_MOVED and response.remark == "OFFSET_RESET",
    )
