"""Order locks: who may consume a queue in order (remoting.md 7.3, behaviour.md 8.5).

A lock is granted by a command in the log, and so survives its leader: after a failover no second client can take a
queue whose holder still consumes it. A renewal goes through the log as well, since the time of the last renewal is
what the next leader judges by.
"""

from collections.abc import Iterable

from broker.commands import LockQueues, UnlockQueues
from broker.connection import Connection
from broker.node import Node
from broker.processing import Place, RequestError, Route
from broker.remoting.bodies import LockBatchBody, LockBatchResponseBody
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.json_body import decode_body, encode_body


class LocksProcessor:
    """LOCK_BATCH_MQ 41 and UNLOCK_BATCH_MQ 42."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def routes(self) -> Iterable[Route]:
        """Locks are the leader's to grant."""
        return (
            Route(RequestCode.LOCK_BATCH_MQ, self.lock, Place.LEADER),
            Route(RequestCode.UNLOCK_BATCH_MQ, self.unlock, Place.LEADER),
        )

    def lock(self, connection: Connection, command: RemotingCommand) -> None:
        """Grants or renews what is free, the client's own, or expired; the answer lists what it now holds."""
        node = self._node
        body = self._body(command)
        queues = self._known_queues(body)
        if not queues:
            self._answer(connection, command, LockBatchResponseBody())
            return

        def done(result: object) -> None:
            assert isinstance(result, tuple), "the result of LockQueues"
            granted = frozenset(result)
            held = [queue for queue in body.queues if (queue.topic, queue.queue_id) in granted]
            self._answer(connection, command, LockBatchResponseBody(held))

        lock = LockQueues(body.consumer_group, body.client_id, queues, node.wall_ms)
        node.after_command(connection, command, lock, done)

    def unlock(self, connection: Connection, command: RemotingCommand) -> None:
        """Releases the client's own locks among the queues."""
        node = self._node
        body = self._body(command)
        queues = self._known_queues(body)
        if not queues:
            node.reply(connection, command, ResponseCode.SUCCESS)
            return
        node.after_command(
            connection,
            command,
            UnlockQueues(body.consumer_group, body.client_id, queues),
            lambda _: node.reply(connection, command, ResponseCode.SUCCESS),
        )

    def _body(self, command: RemotingCommand) -> LockBatchBody:
        body = decode_body(command.body, LockBatchBody)
        if not body.client_id or not body.consumer_group:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, "a request for order locks needs a clientId and a consumerGroup"
            )
        return body

    def _known_queues(self, body: LockBatchBody) -> tuple[tuple[str, int], ...]:
        """The queues that exist, each once: nobody can make this group remember locks of anything else."""
        topics = self._node.replica.metadata.topics
        known: dict[tuple[str, int], None] = {}
        for queue in body.queues:
            config = topics.get(queue.topic)
            if config is not None and 0 <= queue.queue_id < max(
                config.read_queue_nums, config.write_queue_nums
            ):
                known[queue.topic, queue.queue_id] = None
        return tuple(known)

    def _answer(self, connection: Connection, command: RemotingCommand, body: LockBatchResponseBody) -> None:
        self._node.reply(connection, command, ResponseCode.SUCCESS, body=encode_body(body))
