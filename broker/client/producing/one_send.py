"""A send: its attempts within a time limit, and the table of what follows from each.

Every attempt carries the same unique key, and tells a Trivet broker whether an earlier attempt may have been stored. If
so, the broker looks for the message, and answers with its place when it finds it (broker/sending/repeated_sends.py).
The result of an attempt decides what follows:

| an attempt is | and no earlier one may be stored | and an earlier one may be stored |
|---|---|---|
| stored | the send returns | the send returns |
| not stored, and another may succeed | again, at another member or in another group | again, in the same group |
| maybe stored | again, in the same group | again, in the same group |
| refused for good | raised at once | over: `SendOutcomeUnknown` |
| undecidable for its floor | again under a newer floor, at first without a pause | over: `SendOutcomeUnknown` |

The *floor* is the place in the log from which a broker searches for an earlier attempt; where it is too old the broker
cannot tell. A message of a portion has the floor of the portion in all attempts (`OneSend.behind`). Where a first
attempt is undecidable for that, the next one is a repeated one.

An attempt may be stored when the connection broke, or the time limit passed, after its request had left, and when the
broker reports an error that does not say. Only the group that it went to knows, so from then on the send stays with its
queue's group and with the floor of that attempt. When the time is over the send raises `SendOutcomeUnknown` if any
attempt may be stored, else `NotDelivered`.

Trivet's followers forward to their leader, so within a group any member will do: the next attempt need not wait until
the name server has heard of the new leader.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from broker.client.checks import check_seconds
from broker.client.errors import (
    BrokerError,
    ClientError,
    ConnectionFailed,
    MessageRejected,
    NoRoute,
    NotDelivered,
    SendOutcomeUnknown,
)
from broker.client.message import Message, MessageQueue, SendResult, trace_key
from broker.client.producing.lane import Lane
from broker.client.producing.outcomes import (
    ILLEGAL,
    NOT_STORED_RETRY,
    STORED,
    read_results,
    record_response,
)
from broker.client.producing.outgoing import SINGLE_CODE, Outgoing
from broker.client.producing.sender import QueueChoice, Sender
from broker.client.transport.calls import Call
from broker.client.transport.connection import Connection
from broker.client.transport.core import BUSY_CODES, broker_error
from broker.client.transport.pauses import Pauses
from broker.client.transport.routes import TopicRoute, failed_last
from broker.client.transport.runtime import Event
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import RemotingError

_PAUSE_FIRST_S = 0.01
_PAUSE_MAX_S = 0.25
_ATTEMPT_MIN_NS = 50_000_000
"""No further attempt begins with less time: cut off, it would make an unknown outcome of what was refused so far."""

_SHORTEST_ATTEMPT_NS = 1_000_000


class _Next(enum.Enum):
    """The next step after a response that does not say that the message is stored."""

    AT_ONCE = "the same again, with what the response told"
    AGAIN = "another attempt, at another address or after a pause"
    OVER = "no attempt can tell more"


@dataclass(slots=True)
class _Trouble:
    """The failures of a send so far; nearly all sends have none."""

    pauses: Pauses
    last_error: ClientError | None = None
    failed: list[str] = field(default_factory=list)
    """Addresses that failed, of whichever group, each once, the last one at the end."""
    failed_groups: list[str] = field(default_factory=list)
    """Broker groups that failed, among which nothing may be stored; others are preferred from then on."""


class OneSend(Call):
    """A send under way. `start` and `run` begin it; `resumed` gives a new one that goes on with it.

    `start` makes the first attempt without waiting, where a route and a connection are at hand. Then ``ended`` is
    called when it is over: with `results` if the messages are stored, as nearly always; else `run` goes on. Who waits
    anyhow calls `run` alone. So a send costs no task as long as nothing is amiss.
    """

    __slots__ = (
        "_address",
        "_attempt_error",
        "_attempts",
        "_choice",
        "_connection",
        "_ended",
        "_event",
        "_floor",
        "_has_own_floor",
        "_limit_ns",
        "_maybe_stored",
        "_operation",
        "_outgoing",
        "_over_ns",
        "_response",
        "_route",
        "_target",
        "_trouble",
        "message",
        "results",
        "sender",
        "ticket",
    )

    def __init__(
        self,
        sender: Sender,
        outgoing: Outgoing,
        message: Message,
        choice: QueueChoice,
        timeout_s: float | None = None,
        ended: Callable[[OneSend], None] | None = None,
        ticket: object = None,
    ) -> None:
        """``timeout_s`` bounds the send from its beginning on, in seconds; None means the sender's own limit.

        ``ended`` is for `start`; ``ticket`` is whatever its owner knows this send by. Raises UsageError.
        """
        self.sender = sender
        self.message = message
        self.ticket = ticket
        self.results: list[SendResult] | None = None
        """The places of the messages, once they are stored."""
        self._outgoing = outgoing
        self._choice = choice
        self._ended = ended
        self.opaque = 0  # that of no request
        if timeout_s is None:
            self._limit_ns = sender.timeout_ns
        else:
            check_seconds(timeout_s=timeout_s)
            self._limit_ns = int(timeout_s * 1e9)
        self._over_ns = 0
        """The time at which the send is over; 0 before it has begun."""
        self._route: TopicRoute | None = None
        self._attempts = 0
        self._trouble: _Trouble | None = None
        # The attempt under way, or the outcome of the last one until `run` has judged it.
        self._connection: Connection | None = None
        self._address: str | None = None
        self._operation = -1
        self._response: RemotingCommand | None = None
        self._attempt_error: ClientError | None = None
        self._event: Event | None = None
        # Once an attempt may be stored, target and floor stay as they were for it: only its group knows of it, and
        # the broker looks for it behind that floor only.
        self._maybe_stored = False
        self._target: MessageQueue | None = None
        self._floor = 0
        self._has_own_floor = False

    def start(self) -> bool:
        """Make the first attempt now. False if something must be waited for first, as only `run` does.

        Raises UsageError for a choice that the message cannot go to.
        """
        sender, choice = self.sender, self._choice
        core = sender.core
        route = self._route = core.routes.find(self._outgoing.topic)
        if route is None or not route.writable:
            return False
        if choice is not None and not isinstance(choice, MessageQueue | str | int):
            return False  # a function of the application's, which must not run in the connection's tasks
        target = self._target = sender.choose(route, self.message, choice)
        lane = sender.lane(target)
        connection = lane.connection(route)
        if connection is None or connection.is_full:
            return False
        self._begin(connection, lane)
        return True

    async def run(self) -> list[SendResult]:
        """Attempt until the messages are stored; returns a result for each. Raises what `Producer.send` raises."""
        self._ended = None
        if self._attempts == 0:
            self.sender.core.check_open()
        is_begun = self._attempts > 0 or self.start()
        while True:
            if is_begun or await self._begin_somewhere():
                if self._connection is not None:
                    await self._outcome()
                if self.results is not None:
                    return self.results
                follows = self._judge()
                # Nothing has failed: the same member is asked once more, with the floor that it has told.
                if follows is _Next.AT_ONCE:
                    is_begun = False
                    continue
                if follows is _Next.OVER:
                    break
                self._turn_away()
                if self._maybe_stored and not self.sender.retry_unknown:
                    break
            is_begun = False
            if not await self._wait_for_another():
                break
        # An error that says "not stored" would have the caller send another message, which would be a second one.
        last_error = self._troubles().last_error
        if self._maybe_stored:
            raise self._unknown_outcome() from last_error
        if self._attempts == 0 and last_error is not None:
            raise last_error
        raise NotDelivered(self._outgoing.topic, self._attempts, last_error) from last_error

    def behind(self, floor: int, *, again: bool) -> OneSend:
        """Fix the floor of all attempts, before the first one, and return this send; ``again`` if it may be stored
        already: others know the message by its key, too (portion.py)."""
        assert self._attempts == 0, "the floor is that of all attempts"
        assert isinstance(self._choice, MessageQueue), "a floor is of one group's log"
        self._has_own_floor, self._floor = True, floor
        self._maybe_stored = again
        return self

    def resumed(self, timeout_s: float | None) -> OneSend:
        """Return a send that goes on asking about the same message, after this one has ended in
        `SendOutcomeUnknown`."""
        assert self._maybe_stored, "a send of known outcome needs no resumption"
        # The queue of before as the choice: only its group can know of the message.
        again = OneSend(self.sender, self._outgoing, self.message, self._target, timeout_s)
        again._maybe_stored, again._target, again._floor = True, self._target, self._floor
        return again

    def give_up(self) -> ClientError:
        """Leave it where it is; returns the error that says what may have become of it."""
        self._abandon()
        if self._maybe_stored:
            return self._unknown_outcome()
        return NotDelivered(self._outgoing.topic, self._attempts, self._last_error())

    # Where to ------------------------------------------------------------------------------------------------------

    async def _find_route(self) -> None:
        """Ask for a route.

        Raises BrokerError and ClientClosed before the first attempt, unless the message may be stored already.
        """
        try:
            self._route = await self.sender.route_before(self._end_ns(), self._outgoing.topic)
        except ClientError as error:
            if self._attempts == 0 and not self._maybe_stored and not error.retry_may_help:
                raise
            self._troubles().last_error = error
            self._route = None

    def _next_address(self) -> str | None:
        """Return the address of the next attempt, None if there is none; chooses the queue, unless it is fixed."""
        route, trouble = self._route, self._troubles()
        if route is None:
            return None
        target = self._target
        if target is None:
            target = self._target = self.sender.choose(
                route, self.message, self._choice, trouble.failed_groups
            )
        lacking = route.lacks(target)
        if lacking is None:
            # Each in its turn: this client may reach only one of them, and name servers do not know which.
            return route.address(target.broker_name, avoid=trouble.failed)
        if trouble.failed:
            return trouble.failed[-1]  # gone from the route while it was tried: it may serve all the same
        trouble.last_error = NoRoute(self._outgoing.topic, lacking)
        return None

    def _turn_away(self) -> None:
        """Note a failure: the next attempt goes to another member, and to another group where that is allowed."""
        trouble = self._troubles()
        assert self._address is not None, "an attempt has an address"
        trouble.failed = failed_last(trouble.failed, self._address)
        if not self._maybe_stored and not isinstance(self._choice, MessageQueue):
            # A key or a selector chooses anew, too: the same queue, unless the topic has changed and lost it.
            assert self._target is not None, "an attempt has a target"
            trouble.failed_groups.append(self._target.broker_name)
            self._target = None

    async def _wait_for_another(self) -> bool:
        """Pause if need be, and ask for a new route; returns True if there is time for another attempt."""
        if not self.sender.core.is_open:
            return False  # left by another task: what is known of the message now is all that will be
        runtime, trouble, end_ns = self.sender.core.runtime, self._troubles(), self._end_ns()
        remaining_s = (end_ns - runtime.now_ns()) / 1e9
        # The first repetition needs no pause when another member is at hand: a lost connection says little of it.
        if self._attempts != 1 or not self._has_untried_member():
            pause_s = trouble.pauses.next_s()
            if pause_s >= remaining_s:
                return False
            await runtime.sleep(pause_s)
        self._route = await self.sender.new_route(self._outgoing.topic, end_ns, self._route)
        # An outcome that is unknown already loses nothing by an attempt that is cut off.
        return end_ns - runtime.now_ns() > (0 if self._maybe_stored else _ATTEMPT_MIN_NS)

    def _has_untried_member(self) -> bool:
        """Tell whether the topic's route has an address that has not failed."""
        route, failed = self._route, self._troubles().failed
        return route is not None and any(address not in failed for _, _, address in route.addresses())

    # One attempt ---------------------------------------------------------------------------------------------------

    async def _begin_somewhere(self) -> bool:
        """Begin an attempt, or fail to connect, which is one, too; returns False where there is no address to try."""
        if self._route is None or not self._route.writable:
            await self._find_route()
        address = self._next_address()
        if address is None:
            return False
        pool = self.sender.core.pool
        connection = pool.find(address)
        try:
            if connection is None:
                connection = await pool.get(address, self._attempt_s())
            await connection.wait_room(self._attempt_s())
        except ConnectionFailed as error:
            self._attempts += 1
            self._address = address
            self.finish(None, error)
        else:
            assert self._target is not None, "an address is that of a queue's group"
            self._begin(connection, self.sender.lane(self._target))
        return True

    def _begin(self, connection: Connection, lane: Lane) -> None:
        """Begin an attempt; `finish` ends it, or has done so already."""
        sender, outgoing, target = self.sender, self._outgoing, lane.queue
        core = sender.core
        now_ns = core.runtime.now_ns()
        self._attempts += 1
        if not self._over_ns:
            self._over_ns = now_ns + self._limit_ns
        # Once an attempt may be stored, a later floor could lie behind its record, which would not be found then.
        if not self._maybe_stored and not self._has_own_floor:
            self._floor = sender.floors.get(target.broker_name, 0)
        self._connection = connection
        self._address = connection.address
        self.started_ns = now_ns
        deadline_ns = now_ns + sender.attempt_timeout_ns
        if deadline_ns > self._over_ns:
            deadline_ns = max(self._over_ns, now_ns + _SHORTEST_ATTEMPT_NS)
        self.deadline_ns = deadline_ns
        if core.trace is not None:
            self._operation = core.trace.invoke_append(
                now_ns, core.client_id, trace_key(target), outgoing.unique_keys
            )
        try:
            # The lane has the head of a single first attempt ready but for a few numbers; a signature needs all fields.
            if self._maybe_stored or outgoing.code != SINGLE_CODE or connection.signs_requests:
                fields = lane.fields(outgoing, self._floor, again=self._maybe_stored)
                connection.begin(self, outgoing.code, fields, outgoing.body)
            else:
                opaque = connection.next_opaque()
                head = lane.encode(outgoing, self._floor, opaque)
                connection.begin_encoded(self, opaque, head, outgoing.body)
        except ConnectionFailed as error:
            self.finish(None, error)

    def finish(self, response: RemotingCommand | None, error: ConnectionFailed | None) -> None:
        """Take the outcome of an attempt, and tell whoever waits for it."""
        sender, target = self.sender, self._target
        trace, slow = sender.core.trace, sender.slow
        assert target is not None, "an attempt has a target"
        self._connection = None
        if response is not None:
            if trace is not None:
                record_response(
                    trace, sender.core.runtime.now_ns(), self._operation, self._outgoing, response
                )
            if slow is not None:
                if response.code in BUSY_CODES:
                    slow.failed(target.broker_name)
                else:
                    slow.answered(target.broker_name, self.started_ns)
            if response.code in STORED:
                self._read(response)
            else:
                self._response = response
        else:
            assert error is not None, "an attempt ends with a response or an error"
            if trace is not None and self._operation != -1:
                # An attempt that found no connection never was in the trace.
                (trace.info if error.request_left else trace.fail)(
                    sender.core.runtime.now_ns(), self._operation, str(error)
                )
            if slow is not None:
                slow.failed(target.broker_name)
            self._attempt_error = error
            # Nothing takes this back: an attempt that may be stored may be stored late, behind refusals of later ones.
            self._maybe_stored = self._maybe_stored or error.request_left
        self._operation = -1
        if self._event is not None:
            self._event.set()
        elif self._ended is not None:
            self._ended(self)

    async def _outcome(self) -> None:
        """Wait until the attempt that is under way has ended."""
        self._event = self.sender.core.runtime.event()
        try:
            await self._event.wait()
        except BaseException:
            self._abandon()
            raise
        finally:
            self._event = None

    def _abandon(self) -> None:
        """Want no outcome of the attempt that is under way, if there is one: it may be stored."""
        if self._connection is not None:
            self._connection.calls.pop(self.opaque, None)
            self._connection = None
            self._maybe_stored = True

    def _attempt_s(self) -> float:
        """Return the time limit of an attempt that begins now, in seconds."""
        remaining_ns = self._end_ns() - self.sender.core.runtime.now_ns()
        return max(min(self.sender.attempt_timeout_ns, remaining_ns), _SHORTEST_ATTEMPT_NS) / 1e9

    def _end_ns(self) -> int:
        """Return the time at which the send is over; it begins now, if it has not begun."""
        if not self._over_ns:
            self._over_ns = self.sender.core.runtime.now_ns() + self._limit_ns
        return self._over_ns

    def _judge(self) -> _Next:
        """Return what follows an attempt after which nothing is known to be stored, by the table above.

        Raises BrokerError if refused for good.
        """
        response, error = self._response, self._attempt_error
        self._response = self._attempt_error = None
        trouble = self._troubles()
        if error is not None:
            trouble.last_error = error
            return _Next.AGAIN if isinstance(error, ConnectionFailed) else _Next.OVER
        assert response is not None, "an attempt ends with a response or an error"
        assert self._target is not None, "an attempt has a target"
        assert self._address is not None, "an attempt has an address"
        refusal = trouble.last_error = broker_error(response, self._address)
        if response.code == ResponseCode.ONCE_UNDECIDABLE:
            self.sender.reached(self._target.broker_name, response.fields.get("once", "0"), 10)
            if self._maybe_stored:
                return _Next.OVER
            # Brokers search for a first attempt only a short way back, and far for a repeated one. An attempt that had
            # a floor of its own may lie before the newer floor, so the next one has to say that it is repeated.
            self._maybe_stored = self._has_own_floor
            return _Next.AT_ONCE if self._attempts == 1 else _Next.AGAIN
        if response.code in NOT_STORED_RETRY:
            return _Next.AGAIN
        # It says that something went wrong, and not whether that was before the message was stored.
        if response.code == ResponseCode.SYSTEM_ERROR:
            self._maybe_stored = True
            return _Next.AGAIN
        if self._maybe_stored:
            return _Next.OVER
        if response.code in ILLEGAL:
            raise MessageRejected(str(refusal), response.code) from refusal
        raise refusal

    def _troubles(self) -> _Trouble:
        if self._trouble is None:
            self._trouble = _Trouble(Pauses(self.sender.core.runtime.random, _PAUSE_FIRST_S, _PAUSE_MAX_S))
        return self._trouble

    def _last_error(self) -> ClientError | None:
        return None if self._trouble is None else self._trouble.last_error

    # The end -------------------------------------------------------------------------------------------------------

    def _read(self, response: RemotingCommand) -> None:
        """Set `results`; for a response that cannot be read, the error that says so."""
        target = self._target
        assert target is not None, "an attempt has a target"
        try:
            self.results = results = read_results(response, target, self._outgoing.unique_keys)
        except RemotingError as error:
            self._maybe_stored = True
            self._attempt_error = BrokerError(
                response.code, f"unreadable response to a send: {error}", self._address or ""
            )
        else:
            if response.code == ResponseCode.SUCCESS:
                # The last 16 digits of a broker's id are the message's position in the log; of a batch the last message
                # is the one up to which the group's log has come.
                self.sender.reached(target.broker_name, results[-1].offset_message_id[-16:], 16)

    def _unknown_outcome(self) -> SendOutcomeUnknown:
        """Return the error of a send that may be stored, with this send for `Producer.resume`."""
        lost = SendOutcomeUnknown(
            self._outgoing.topic, self._outgoing.unique_keys, self._attempts, self._last_error()
        )
        lost.unfinished = self
        return lost
