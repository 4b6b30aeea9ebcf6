"""Calls to the broker group of a queue, repeated until one of its members gives an accepted response.

For requests that may be repeated freely: queries, commits of consumer offsets, decisions of transactions, replies. The
leader is asked first. After a failure another member is, with a new route and after a pause, each in its turn; pauses
grow. Each attempt is recorded in the trace, if there is one, with what it saw.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.client.errors import ClientError, ConnectionFailed, NameServerUnavailable, NoRoute
from broker.client.message import MessageQueue
from broker.client.transport.connection import Fields
from broker.client.transport.core import ClientCore, broker_error
from broker.client.transport.pauses import Pauses
from broker.client.transport.routes import TopicRoute, failed_last
from broker.client.transport.runtime import Buffer
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.route import MASTER_ID

QUERY_TIMEOUT_S = 3.0
"""Time limit of a call in seconds, all attempts included."""
_PAUSE_FIRST_S = 0.02
_PAUSE_MAX_S = 0.5


class CallIsOverError(ClientError):
    """The caller's `is_over` returned True before an attempt, which was not sent."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Puts the attempts of one call into the trace.

    ``begin(now_ns)`` returns the number of the operation; ``finish(now_ns, operation, response)`` completes it.
    """

    begin: Callable[[int], int]
    finish: Callable[[int, int, RemotingCommand], None]


class PatientCalls:
    """Makes calls that are repeated for up to ``timeout_s`` seconds.

    ``attempt_timeout_s`` bounds one attempt: a member that is alive but silent must not use up the whole time.
    """

    def __init__(
        self, core: ClientCore, timeout_s: float = QUERY_TIMEOUT_S, attempt_timeout_s: float | None = None
    ) -> None:
        self.core = core
        self.timeout_s = timeout_s
        self._attempt_timeout_s = timeout_s if attempt_timeout_s is None else attempt_timeout_s

    async def ask(
        self,
        queue: MessageQueue,
        code: int,
        fields: Fields,
        accepted: Sequence[int] = (ResponseCode.SUCCESS,),
        body: Buffer = b"",
        recording: Recording | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> RemotingCommand:
        """Ask until a member of the queue's group gives a response with an ``accepted`` code.

        Raises BrokerError, ConnectionFailed, NoRoute, NameServerUnavailable; CallIsOverError once `is_over`.
        """
        runtime = self.core.runtime
        deadline_ns = runtime.now_ns() + int(self.timeout_s * 1e9)
        pauses = Pauses(runtime.random, _PAUSE_FIRST_S, _PAUSE_MAX_S)
        avoid: list[str] = []
        while True:
            try:
                route = await self._route_before(deadline_ns, queue.topic)
                address = address_of(route, queue, avoid=avoid)
                # Whatever comes of it, the next attempt goes to another member: any of them forwards to the leader.
                avoid = failed_last(avoid, address)
                remaining_s = max((deadline_ns - runtime.now_ns()) / 1e9, 0.001)
                limit_s = min(remaining_s, self._attempt_timeout_s)
                # As late as possible: waiting for a route takes time, in which the caller may have changed its mind.
                if is_over():
                    raise CallIsOverError
                response = await self._attempt(address, code, fields, body, limit_s, accepted, recording)
                if response.code in accepted:
                    return response
                error: ClientError = broker_error(response, address)
            except (ConnectionFailed, NoRoute, NameServerUnavailable) as failure:
                error = failure
            pause_s = pauses.next_s()
            if not error.retry_may_help or runtime.now_ns() + int(pause_s * 1e9) >= deadline_ns:
                raise error
            await runtime.sleep(pause_s)
            await self.core.routes.refresh_quietly(queue.topic, (deadline_ns - runtime.now_ns()) / 1e9)
            if runtime.now_ns() >= deadline_ns:
                raise error

    async def _route_before(self, deadline_ns: int, topic: str) -> TopicRoute:
        """Return the topic's route; silent name servers must not make a call longer than its limit.

        Raises NoRoute, BrokerError, NameServerUnavailable.
        """
        runtime = self.core.runtime
        with runtime.move_on_after((deadline_ns - runtime.now_ns()) / 1e9):
            return await self.core.routes.get(topic)
        raise NameServerUnavailable(["no route within the call's time limit"])

    async def _attempt(
        self,
        address: str,
        code: int,
        fields: Fields,
        body: Buffer,
        timeout_s: float,
        accepted: Sequence[int],
        recording: Recording | None,
    ) -> RemotingCommand:
        core, trace = self.core, self.core.trace
        if recording is None or trace is None:
            return await core.pool.call(address, code, fields, body, timeout_s)
        operation = recording.begin(core.runtime.now_ns())
        try:
            response = await core.pool.call(address, code, fields, body, timeout_s)
        except ConnectionFailed as error:
            trace.info(core.runtime.now_ns(), operation, str(error))
            raise
        if response.code in accepted:
            recording.finish(core.runtime.now_ns(), operation, response)
        else:
            trace.info(core.runtime.now_ns(), operation, f"code {response.code}")
        return response


def address_of(
    route: TopicRoute, queue: MessageQueue, broker_id: int = MASTER_ID, avoid: Sequence[str] = ()
) -> str:
    """Return the address of a member of the queue's group, chosen as `TopicRoute.address` does. Raises NoRoute."""
    address = route.address(queue.broker_name, broker_id, avoid)
    if address is None:
        raise NoRoute(queue.topic, f"broker {queue.broker_name!r} is not registered")
    return address
