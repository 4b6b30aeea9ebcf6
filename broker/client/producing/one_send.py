"""A send: its attempts within a time limit, and the table of what follows from each.

Every attempt carries the same unique key, and tells a Trivet broker whether an earlier attempt may have been stored. If
so, the broker looks for the message, and answers with its place when it finds it (broker/sending/once.py). The result
of an attempt decides what follows:

| an attempt is | and no earlier one may be stored | and an earlier one may be stored |
|---|---|---|
| stored | the send returns | the send returns |
| not stored, and another may succeed | again, at another member or in another group | again, in the same group |
| maybe stored | again, in the same group | again, in the same group |
| refused for good | raised at once | over: `SendOutcomeUnknown` |
| undecidable for its floor | again under a newer floor, at first without a pause | over: `SendOutcomeUnknown` |

An attempt may be stored when the connection broke, or the time limit passed, after its request had left, and when the
broker reports an error that does not say. Only the group that it went to knows, so from then on the send stays with its
queue's group and with the floor of that attempt. When the time is over the send raises `SendOutcomeUnknown` if any
attempt may be stored, else `NotDelivered`.

Trivet's followers forward to their leader, so within a group any member will do: the next attempt need not wait until
the name server has heard of the new leader.
"""

from __future__ import annotations

import enum

from broker.client.errors import (
    BrokerError,
    ClientError,
    ConnectionFailed,
    MessageRejected,
    NameServerUnavailable,
    NoRoute,
    NotDelivered,
    SendOutcomeUnknown,
)
from broker.client.message import Message, MessageQueue, SendResult, SendStatus, trace_key
from broker.client.producing.outgoing import Outgoing
from broker.client.producing.sender import QueueChoice, Sender
from broker.client.transport.core import BUSY_CODES, broker_error
from broker.client.transport.pauses import Pauses
from broker.client.transport.routes import TopicRoute
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import RemotingError
from broker.remoting.headers import SendMessageResponseHeader
from broker.trace import TraceWriter

_PAUSE_FIRST_S = 0.01
_PAUSE_MAX_S = 0.25
_ATTEMPT_MIN_NS = 50_000_000
"""No further attempt begins with less time: cut off, it would make an unknown outcome of what was refused so far."""

_STORED = {int(status): status for status in SendStatus}
# After these codes the message is certainly not stored and another attempt may succeed: TOPIC_NOT_EXIST and
# NO_PERMISSION because another member of a failing-over cluster may know better, NO_BUYER_ID and NOT_IN_CURRENT_UNIT
# as in RocketMQ's DefaultMQProducer.retryResponseCodes.
_NOT_STORED_RETRY = BUSY_CODES | {
    ResponseCode.NO_PERMISSION,
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.NO_BUYER_ID,
    ResponseCode.NOT_IN_CURRENT_UNIT,
    ResponseCode.ONCE_UNDECIDABLE,
}
_ILLEGAL = frozenset((ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER))


class _Next(enum.Enum):
    """The next step after a response that does not say that the message is stored."""

    AT_ONCE = "the same again, with what the response told"
    AGAIN = "another attempt, at another address or after a pause"
    OVER = "no attempt can tell more"


class OneSend:
    """A send under way. `run` it once; `resumed` gives a new one that goes on with it."""

    __slots__ = (
        "_attempts",
        "_choice",
        "_deadline_ns",
        "_failed",
        "_failed_groups",
        "_floor",
        "_last_error",
        "_maybe_stored",
        "_message",
        "_outgoing",
        "_pauses",
        "_route",
        "_target",
        "sender",
    )

    def __init__(
        self,
        sender: Sender,
        outgoing: Outgoing,
        message: Message,
        choice: QueueChoice,
        timeout_s: float | None = None,
    ) -> None:
        """``timeout_s`` bounds the send from now on, in seconds; None means the sender's own limit."""
        limit_s = sender.timeout_s if timeout_s is None else timeout_s
        self.sender = sender
        self._outgoing = outgoing
        self._message = message
        self._choice = choice
        self._deadline_ns = sender.core.runtime.now_ns() + int(limit_s * 1e9)
        self._route: TopicRoute | None = None
        self._attempts = 0
        self._pauses = Pauses(sender.core.runtime.random, _PAUSE_FIRST_S, _PAUSE_MAX_S)
        self._last_error: ClientError | None = None
        self._failed: list[str] = []
        """Addresses that failed since the last pause, and the last one before it."""
        self._failed_groups: list[str] = []
        """Broker groups that failed, among which nothing may be stored; others are preferred from then on."""
        # Once an attempt may be stored, target and floor stay as they were for it: only its group knows of it, and
        # the broker looks for it behind that floor only.
        self._maybe_stored = False
        self._target: MessageQueue | None = None
        self._floor = 0

    def resumed(self, timeout_s: float | None) -> OneSend:
        """Return a send that goes on asking about the same message, after this one has ended in
        `SendOutcomeUnknown`."""
        assert self._maybe_stored, "a send of known outcome needs no resumption"
        again = OneSend(self.sender, self._outgoing, self._message, self._target, timeout_s)
        again._maybe_stored, again._target, again._floor = True, self._target, self._floor
        return again

    async def run(self) -> list[SendResult]:
        """Attempt until the messages are stored; returns a result for each. Raises what `Producer.send` raises."""
        core = self.sender.core
        core.check_open()
        self._route = core.routes.find(self._outgoing.topic)
        while True:
            if self._route is None or not self._route.writable:
                await self._find_route()
            address = self._next_address()
            if address is not None:
                response = await self._attempt(address)
                if response is not None:
                    status = _STORED.get(response.code)
                    if status is not None:
                        return self._results(response, status, address)
                    follows = self._judge(response, address)
                    if follows is _Next.AT_ONCE:
                        continue
                    if follows is _Next.OVER:
                        break
                self._turn_away_from(address)
                if self._maybe_stored and not self.sender.retry_unknown:
                    break
            if not await self._wait_for_another():
                break
        if self._maybe_stored:
            raise self._unknown_outcome() from self._last_error
        if self._attempts == 0 and self._last_error is not None:
            raise self._last_error
        raise NotDelivered(self._outgoing.topic, self._attempts, self._last_error) from self._last_error

    # Where to ------------------------------------------------------------------------------------------------------

    async def _find_route(self) -> None:
        """Ask for a route.

        Raises NoRoute, NameServerUnavailable and BrokerError before the first attempt, if no retry helps.
        """
        try:
            self._route = await self.sender.route_before(self._deadline_ns, self._outgoing.topic)
        except (NoRoute, NameServerUnavailable, BrokerError) as error:
            if self._attempts == 0 and not error.retry_may_help:
                raise
            self._last_error = error
            self._route = None

    def _next_address(self) -> str | None:
        """Return the address of the next attempt, None if there is none; chooses the queue, unless it is fixed."""
        route = self._route
        if route is None:
            return None
        target = self._target
        if target is None:
            target = self._target = self.sender.choose(
                route, self._message, self._choice, self._failed_groups
            )
        lacking = route.lacks(target)
        if lacking is None:
            return route.address(target.broker_name, avoid=self._failed)
        if self._failed:
            return self._failed[-1]  # gone from the route while it was tried: it may serve all the same
        self._last_error = NoRoute(self._outgoing.topic, lacking)
        return None

    def _turn_away_from(self, address: str) -> None:
        """Note a failure: the next attempt goes to another member, and to another group where that is allowed."""
        self._failed.append(address)
        if not self._maybe_stored and not isinstance(self._choice, MessageQueue | str | int):
            assert self._target is not None, "an attempt has a target"
            self._failed_groups.append(self._target.broker_name)
            self._target = None

    async def _wait_for_another(self) -> bool:
        """Pause if need be, and ask for a new route; returns True if there is time for another attempt."""
        runtime = self.sender.core.runtime
        remaining_s = (self._deadline_ns - runtime.now_ns()) / 1e9
        # The first repetition needs no pause when another member is at hand: a lost connection says little of it.
        if self._attempts != 1 or not self._has_untried_member():
            pause_s = self._pauses.next_s()
            if pause_s >= remaining_s:
                return False
            await runtime.sleep(pause_s)
            self._failed = self._failed[-1:]
        self._route = await self.sender.new_route(self._outgoing.topic, self._deadline_ns, self._route)
        return self._deadline_ns - runtime.now_ns() > (0 if self._maybe_stored else _ATTEMPT_MIN_NS)

    def _has_untried_member(self) -> bool:
        """Tell whether the topic's route has an address that has not failed since the last pause."""
        route = self._route
        return route is not None and any(address not in self._failed for _, _, address in route.addresses())

    # One attempt ---------------------------------------------------------------------------------------------------

    async def _attempt(self, address: str) -> RemotingCommand | None:
        """Make one attempt; returns the response, None without one. Notes what a failure says, and the time it took."""
        sender, outgoing, target = self.sender, self._outgoing, self._target
        assert target is not None, "an address is that of a queue's group"
        core = sender.core
        now_ns, trace = core.runtime.now_ns, core.trace
        self._attempts += 1
        if not self._maybe_stored:
            self._floor = sender.floors.get(target.broker_name, 0)
        began_ns = now_ns()
        operation = -1
        try:
            connection = core.pool.find(address)
            if connection is None:
                connection = await core.pool.get(address, self._attempt_s())
            fields = sender.fields(outgoing, target, self._floor, again=self._maybe_stored)
            limit_s = self._attempt_s()  # connecting may have taken some of the time
            if trace is not None:
                operation = trace.invoke_append(
                    now_ns(), core.client_id, trace_key(target), outgoing.unique_keys
                )
            response = await connection.call(outgoing.code, fields, outgoing.body, limit_s)
        except ConnectionFailed as error:
            if trace is not None and operation != -1:
                (trace.info if error.request_left else trace.fail)(now_ns(), operation, str(error))
            if sender.slow is not None:
                sender.slow.failed(target.broker_name)
            self._last_error = error
            # Nothing takes this back: an attempt that may be stored may be stored late, behind refusals of later ones.
            self._maybe_stored = self._maybe_stored or error.request_left
            return None
        if trace is not None:
            _record(trace, now_ns(), operation, outgoing, response)
        if sender.slow is not None:
            if response.code in BUSY_CODES:
                sender.slow.failed(target.broker_name)
            else:
                sender.slow.answered(target.broker_name, began_ns)
        return response

    def _attempt_s(self) -> float:
        """Return the time limit of an attempt that begins now, in seconds."""
        remaining_s = (self._deadline_ns - self.sender.core.runtime.now_ns()) / 1e9
        return max(min(self.sender.attempt_timeout_s, remaining_s), 0.001)

    def _judge(self, response: RemotingCommand, address: str) -> _Next:
        """Return what follows a response that does not say stored, by the table above.

        Raises BrokerError if refused for good.
        """
        refusal = self._last_error = broker_error(response, address)
        if response.code == ResponseCode.ONCE_UNDECIDABLE:
            assert self._target is not None, "an attempt has a target"
            self.sender.reached(self._target.broker_name, response.fields.get("once", "0"), 10)
            if self._maybe_stored:
                return _Next.OVER
            return _Next.AT_ONCE if self._attempts == 1 else _Next.AGAIN
        if response.code in _NOT_STORED_RETRY:
            return _Next.AGAIN
        if response.code == ResponseCode.SYSTEM_ERROR:
            self._maybe_stored = True
            return _Next.AGAIN
        if self._maybe_stored:
            return _Next.OVER
        if response.code in _ILLEGAL:
            raise MessageRejected(str(refusal), response.code) from refusal
        raise refusal

    # The end -------------------------------------------------------------------------------------------------------

    def _results(self, response: RemotingCommand, status: SendStatus, address: str) -> list[SendResult]:
        """Return where the messages are stored. Raises SendOutcomeUnknown for a response that cannot be read."""
        target, unique_keys = self._target, self._outgoing.unique_keys
        assert target is not None, "an attempt has a target"
        try:
            stored = response.decode_fields(SendMessageResponseHeader)
        except RemotingError as error:
            self._maybe_stored = True
            self._last_error = BrokerError(response.code, f"unreadable response to a send: {error}", address)
            raise self._unknown_outcome() from error
        if stored.queue_id != target.queue_id:
            target = target._replace(queue_id=stored.queue_id)
        offset = stored.queue_offset
        if status is SendStatus.OK:
            self.sender.reached(target.broker_name, stored.message_id[-16:], 16)
        if len(unique_keys) == 1:
            return [
                SendResult(unique_keys[0], stored.message_id, target, offset, status, stored.transaction_id)
            ]
        ids = stored.message_id.split(",")
        if len(ids) != len(unique_keys):
            ids = [stored.message_id] * len(unique_keys)
        return [
            SendResult(unique_key, ids[index], target, offset + index, status)
            for index, unique_key in enumerate(unique_keys)
        ]

    def _unknown_outcome(self) -> SendOutcomeUnknown:
        """Return the error of a send that may be stored, with this send for `Producer.resume`."""
        lost = SendOutcomeUnknown(
            self._outgoing.topic, self._outgoing.unique_keys, self._attempts, self._last_error
        )
        lost.unfinished = self
        return lost


def _record(
    trace: TraceWriter, now_ns: int, operation: int, outgoing: Outgoing, response: RemotingCommand
) -> None:
    """Put into the trace what a response says of its attempt: stored at an offset, not stored, or unknown."""
    if response.code == ResponseCode.SUCCESS:
        try:
            stored = response.decode_fields(SendMessageResponseHeader)
        except RemotingError as error:
            trace.info(now_ns, operation, str(error))
        else:
            if stored.once is None and outgoing.waits:
                trace.info(now_ns, operation, "stored, and delivered later")
            elif stored.once is None:
                trace.ok_append(now_ns, operation, stored.queue_offset)
            else:  # what stored the message was another attempt
                trace.fail(now_ns, operation, "stored by an earlier attempt")
    elif response.code in _NOT_STORED_RETRY or response.code in _ILLEGAL:
        trace.fail(now_ns, operation, f"code {response.code}")
    else:
        trace.info(now_ns, operation, f"code {response.code}: {response.remark}")
