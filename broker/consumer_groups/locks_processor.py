"""Order locks: who may consume a queue in order (RocketMQ's `RebalanceLockManager`).

`LockTable.judge` (broker/state/order_locks.py) decides who gets a lock; this module asks it, with a time and a limit.

A lock is granted by a command in the log, and so survives its leader: after a failover no second client can take a
queue whose holder still consumes it. A renewal goes through the log as well, since the time of the last renewal is
what the next leader judges by.

Holders count on a lock for a while after its last renewal, so no clock may run ahead of theirs. Wall clocks of brokers
differ and jump. What locks are judged by is therefore a time of its own: a new leader goes on from the last renewal
that it knows, by its monotonic clock. What passed since under other leaders is not counted: locks live longer then.

Anybody may ask for locks, for any consumer group and as whom he likes, and they are memory on every node: there is a
limit (`limits.max_order_locks`). Locks that nobody renews do not count against it, since new ones take their place.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from broker.node.listeners import Listeners
from broker.node.ports import Proposals, Requests
from broker.remoting.bodies import LockBatchBody, LockBatchResponseBody
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.json_body import decode_request
from broker.requests.connection import Connection
from broker.requests.deadline import Time
from broker.requests.errors import ReplicaError, RequestError
from broker.requests.processing import HandledOn, Route
from broker.requests.responses import reply, reply_json, reply_unknown
from broker.settings.live import LiveSettings
from broker.state.commands import LockQueues, UnlockQueues
from broker.state.topic_rules import CLIENT_ID_LENGTH_MAX, check_group_name, queues_of
from broker.topics.creation import Creations
from log.errors import DiskFullError

QUEUES_PER_REQUEST_MAX: Final = 8_000
"""All of one request are granted in one turn: in some 10 ms. A client asks for those that it consumes of one broker."""

_Queue = tuple[str, int]
"""Topic, queue id."""


class LocksProcessor:
    """LOCK_BATCH_MQ 41 and UNLOCK_BATCH_MQ 42."""

    def __init__(
        self,
        leadership: Proposals,
        requests: Requests,
        creations: Creations,
        settings: LiveSettings,
        time: Time,
        listeners: Listeners,
    ) -> None:
        self._leadership = leadership
        self._requests = requests
        self._creations = creations
        self._settings = settings
        self._time = time
        self._ttl_ms = settings.current.broker.order_lock_ttl_ms
        self._term = -1
        """The term in which this node served last. The time of locks was `_began_ms` when it began to, which was at
        `_began_ns` (monotonic)."""
        self._began_ms = 0
        self._began_ns = 0
        self._under_way = 0
        """The number of new locks that are in the log and not applied yet."""
        listeners.role_changes.append(self._role_changed)

    def routes(self) -> Iterable[Route]:
        """Locks are the leader's to grant."""
        return (
            Route(RequestCode.LOCK_BATCH_MQ, self.lock, HandledOn.LEADER),
            Route(RequestCode.UNLOCK_BATCH_MQ, self.unlock, HandledOn.LEADER),
        )

    def lock(self, connection: Connection, command: RemotingCommand) -> None:
        """Proposes that the client gets locks, or renews them; when that is applied `LockTable.judge` grants those that
        are free, its own, or expired. The response lists what it then holds.

        Raises `RequestError` for a consumer group that is not there and may not be made, or too many locks.
        """
        body = self._body(command)
        queues = self._known_queues(body)
        if not queues:
            reply_json(connection, command, LockBatchResponseBody())
            return

        # Consumers say so in a heartbeat before; an unknown consumer group is made by its use, as by its first pull.
        metadata, group = self._leadership.metadata, body.consumer_group
        if group not in metadata.groups:
            place = self._requests.place_of(command)
            if not self._creations.create_group(
                group,
                self._time.group_ms,
                lambda: self._requests.handle_admitted(connection, command),
                lambda: self._requests.forward_late(connection, command, place),
            ):
                raise RequestError(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{group}] does not exist"
                )
            return

        locks = metadata.locks
        new = sum((body.consumer_group, *queue) not in locks for queue in queues)
        self._check_room(new)
        time_ms = self._time_ms()

        def answer(results: list[object]) -> None:
            granted: dict[_Queue, None] = {}
            for result in results:
                assert isinstance(result, tuple), "the result of LockQueues"
                granted |= dict.fromkeys(result)
            # As the client named them, its broker's name included: it looks for them by that.
            held = [queue for queue in body.queues if (queue.topic, queue.queue_id) in granted]
            reply_json(connection, command, LockBatchResponseBody(held))

        parts = [
            LockQueues(body.consumer_group, body.client_id, some, time_ms, self._ttl_ms)
            for some in self._in_parts(queues)
        ]
        self._carry_out(connection, command, parts, answer, new=new)

    def unlock(self, connection: Connection, command: RemotingCommand) -> None:
        """Proposes that the client's own locks among the queues are released. Raises `RequestError` for a bad body."""
        body = self._body(command)
        queues = self._known_queues(body)
        if not queues:
            reply(connection, command, ResponseCode.SUCCESS)
            return
        parts = [UnlockQueues(body.consumer_group, body.client_id, some) for some in self._in_parts(queues)]
        self._carry_out(
            connection, command, parts, lambda _: reply(connection, command, ResponseCode.SUCCESS)
        )

    def _carry_out(
        self,
        connection: Connection,
        request: RemotingCommand,
        parts: Sequence[LockQueues | UnlockQueues],
        answer: Callable[[list[object]], None],
        *,
        new: int = 0,
    ) -> None:
        """Proposes the parts; with the last one, behind which all others are applied, the request is answered."""
        results: list[object] = []

        def all_done(result: object) -> None:
            self._under_way -= new
            assert self._under_way >= 0, f"{new} locks were counted once more than they came"
            results.append(result)
            assert len(results) == len(parts), "the log keeps the order of the parts"
            answer(results)

        def lost() -> None:
            self._under_way -= new
            reply_unknown(connection, request)

        # Before the proposals: requests that come until these are applied find the room taken (`_check_room`).
        self._under_way += new
        try:
            for part in parts[:-1]:
                self._leadership.propose_command(part, results.append)
            self._leadership.propose_command(parts[-1], all_done, lost)
        except (ReplicaError, DiskFullError):
            # Parts before the one that failed may stay in the log: the client renews or releases these locks itself.
            self._under_way -= new
            raise

    def _check_room(self, new: int) -> None:
        """Raises `RequestError` where there would be too many locks; those that have expired make room for others."""
        locks = self._leadership.metadata.locks
        most = self._settings.current.limits.max_order_locks
        too_many = len(locks) + self._under_way + new - most
        if too_many <= 0:
            return
        expired_ms = self._time_ms() - self._ttl_ms
        # Each new lock lets go of up to two that have expired (`LockTable.judge`): there is room if as many as are too
        # many have.
        oldest = islice(locks.values(), too_many)  # refreshed last stands last
        if sum(lock.refreshed_ms < expired_ms for lock in oldest) < too_many:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"there are {len(locks)} order locks, at most {most} may be (limits.max_order_locks)",
            )

    def _role_changed(self) -> None:
        leadership = self._leadership
        if leadership.serving and leadership.term != self._term:
            self._term = leadership.term
            renewals = (lock.refreshed_ms for lock in leadership.metadata.locks.values())
            self._began_ms, self._began_ns = max(renewals, default=0), self._time.now_ns

    def _time_ms(self) -> int:
        """The time that locks are judged by. Only for a leader that serves."""
        assert self._term == self._leadership.term, (
            f"the time of term {self._term} in term {self._leadership.term}"
        )
        return self._began_ms + (self._time.now_ns - self._began_ns) // 1_000_000

    def _body(self, command: RemotingCommand) -> LockBatchBody:
        body = decode_request(command.body, LockBatchBody)
        if not body.client_id or not body.consumer_group:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, "a request for order locks needs a clientId and a consumerGroup"
            )
        if len(body.client_id) > CLIENT_ID_LENGTH_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the clientId has {len(body.client_id)} characters, at most {CLIENT_ID_LENGTH_MAX} are allowed",
            )
        if len(body.queues) > QUEUES_PER_REQUEST_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"these are {len(body.queues)} queues, at most {QUEUES_PER_REQUEST_MAX} are locked by one request",
            )
        check_group_name(body.consumer_group)
        return body

    def _known_queues(self, body: LockBatchBody) -> tuple[_Queue, ...]:
        """Returns the queues that exist, each once: nobody can make this group remember locks of anything else."""
        topics = self._leadership.metadata.topics
        known: dict[_Queue, None] = {}
        for queue in body.queues:
            config = topics.get(queue.topic)
            if config is not None and 0 <= queue.queue_id < queues_of(config):
                known[queue.topic, queue.queue_id] = None
        return tuple(known)

    def _in_parts(self, queues: Sequence[_Queue]) -> list[tuple[_Queue, ...]]:
        per_command = self._leadership.limits.queues_per_command
        return [tuple(queues[begin : begin + per_command]) for begin in range(0, len(queues), per_command)]
