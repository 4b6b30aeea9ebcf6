"""INVOKE_BROKER_TO_RESET_OFFSET 222: an administrator sends a consumer group elsewhere (broker/offsets/resets.py).

The order is in the log before it is answered, so the group need not be there. Members that are there hear of it at
once: from their pulls, which are answered with 21, and by request 220, with which they drop what they have fetched and
not consumed. Java's client of 5.x does that for 21 already, and would stop for ten seconds for a 220. A group that is
broadcast to keeps its offsets in its members, who get nothing but the 220.
"""

from collections.abc import Iterable

from broker.node.client_registry import ClientRegistry
from broker.node.consumer_group import ConsumerGroup, RegisteredClient
from broker.node.ports import State
from broker.offsets.commits import OffsetCommits, StoredOffset
from broker.offsets.resets import OffsetResets
from broker.remoting.admin_bodies import QueueOffsets
from broker.remoting.admin_headers import ResetOffsetHeader
from broker.remoting.bodies import MessageModel, MessageQueue, TopicConfig
from broker.remoting.codes import LanguageCode, RequestCode, ResponseCode, Version
from broker.remoting.command import RemotingCommand, encode, request
from broker.requests.connection import Connection
from broker.requests.errors import RequestError
from broker.requests.processing import Place, Route
from broker.requests.responses import reply, reply_unknown


class ResetsProcessor:
    """Request 222; sends 220."""

    def __init__(
        self,
        replica: State,
        registry: ClientRegistry[Connection],
        offsets: OffsetCommits,
        resets: OffsetResets,
        broker_name: str,
    ) -> None:
        self._replica = replica
        self._registry = registry
        self._offsets = offsets
        self._resets = resets
        self._broker_name = broker_name

    def routes(self) -> Iterable[Route]:
        """The leader's: it knows where queues end, and all clients."""
        return (Route(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, self.reset_offset, Place.LEADER_READ),)

    def reset_offset(self, connection: Connection, command: RemotingCommand) -> None:
        """Has a group go to a time (negative: the end) in a topic; the response, once that is in the log, says where.

        Without force only backwards, from a stored offset. A `queue_id` (5.x) leaves the other queues alone, an
        `offset` is then where to go. Raises `RequestError` for a topic, group, queue or offset that is not there.
        """
        header = command.decode_fields(ResetOffsetHeader)
        metadata = self._replica.metadata
        config = metadata.topics.get(header.topic)
        if config is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        group = self._registry.consumer_group(header.group)
        if group is None and header.group not in metadata.groups:
            raise RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic}",
            )

        # Where each queue is to go; the response and the 220 to members say the same.
        targets = self._targets(header, config)
        body = QueueOffsets(
            {
                MessageQueue(self._broker_name, queue_id, header.topic): offset
                for queue_id, offset in targets.items()
            }
        )
        ordered: list[StoredOffset] = [
            (header.group, header.topic, queue_id, offset) for queue_id, offset in targets.items()
        ]
        # Members of a group that is broadcast to keep their offsets themselves: there is nothing to put into the log.
        is_broadcast = group is not None and group.message_model is MessageModel.BROADCASTING

        def done(_: object = None) -> None:
            if not is_broadcast:
                self._resets.ordered([(group, topic, queue_id) for group, topic, queue_id, _ in ordered])
            self._tell(header, body)
            reply(connection, command, ResponseCode.SUCCESS, body=body.encode())

        if is_broadcast or not ordered:
            done()
            return
        self._offsets.commit_all(
            ordered,
            done,
            lambda: reply_unknown(connection, command),
            until_followed=True,
        )

    def _targets(self, header: ResetOffsetHeader, config: TopicConfig) -> dict[int, int]:
        stored = self._replica.metadata.offsets.get((header.group, header.topic), {})
        targets: dict[int, int] = {}
        for queue_id in _queues_to_reset(header, config):
            target = self._target(header, queue_id)
            if not header.is_force and not _names_offset(header):
                if queue_id not in stored:
                    continue  # which way it would be is not known
                # What was reported before comes before the order in the log: seen from there, not forward either.
                here = self._offsets.lowest((header.group, header.topic, queue_id), stored[queue_id])
                target = min(target, here)
            targets[queue_id] = target
        return targets

    def _target(self, header: ResetOffsetHeader, queue_id: int) -> int:
        queue = self._replica.store.queues.get(header.topic, queue_id)
        if header.offset is not None and _names_offset(header):
            begin, end = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
            if not begin <= header.offset <= end:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR,
                    f"offset {header.offset} is not in queue {queue_id} of topic[{header.topic}], which has "
                    f"{begin} to {end}",
                )
            return header.offset
        if queue is None:
            return 0
        if header.timestamp < 0:
            return queue.max_offset
        return queue.offset_at_time(header.timestamp, self._replica.store.store_time_of)

    def _tell(self, header: ResetOffsetHeader, body: QueueOffsets) -> None:
        """Sends 220 to the members that are there now."""
        group = self._registry.consumer_group(header.group)
        if group is None:
            return
        for client in group.members():
            if _follows_pulls(group, client):
                continue
            is_cpp = client.language == LanguageCode.CPP
            order = request(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                ResetOffsetHeader(header.topic, header.group, header.timestamp, header.is_force),
                body.encode_for_cpp() if is_cpp else body.encode(),
                one_way=True,
            )
            client.connection.send(encode(order))


def _follows_pulls(group: ConsumerGroup[Connection], client: RegisteredClient[Connection]) -> bool:
    """Tells whether a member does for a response 21 all that it would do for a 220."""
    return (
        group.message_model is not MessageModel.BROADCASTING
        and client.language == LanguageCode.JAVA
        and client.version >= Version.V5_0_0
    )


def _queues_to_reset(header: ResetOffsetHeader, config: TopicConfig) -> Iterable[int]:
    """Returns all queues of the topic, or the one that a request names. Raises `RequestError` if it does not exist."""
    count = max(config.read_queue_nums, config.write_queue_nums)
    if header.queue_id is None or header.queue_id < 0:
        return range(count)
    if header.queue_id >= count:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"queueId[{header.queue_id}] is illegal, topic[{header.topic}] has queues 0 to {count - 1}",
        )
    return (header.queue_id,)


def _names_offset(header: ResetOffsetHeader) -> bool:
    """Tells whether a request names the offset to go to: of one queue only, as queues differ; -1 means none."""
    return (
        header.queue_id is not None
        and header.queue_id >= 0
        and header.offset is not None
        and header.offset != -1
    )
