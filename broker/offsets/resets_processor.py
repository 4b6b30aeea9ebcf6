"""INVOKE_BROKER_TO_RESET_OFFSET 222: an administrator sends a consumer group elsewhere (broker/offsets/resets.py).

The order is in the log before it is answered, so the consumer group need not be there. Members that are there hear of
it at once: from their pulls, which are answered with 21, and by request 220, with which they drop what they have
fetched and not consumed. Java's client of 5.x does that for 21 already, and would stop for ten seconds for a 220. A
consumer group that is broadcast to keeps its offsets in its members, who get nothing but the 220.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from broker.node.client_registry import ClientRegistry
from broker.node.consumer_group import ConsumerGroup, RegisteredClient
from broker.node.ports import Requests, State
from broker.offsets.commits import OffsetCommits, StoredOffset
from broker.offsets.resets import OffsetResets
from broker.remoting.admin_bodies import ListedOffsets
from broker.remoting.admin_headers import ResetOffsetHeader
from broker.remoting.bodies import MessageModel, MessageQueue, TopicConfig
from broker.remoting.codes import LanguageCode, RequestCode, ResponseCode, Version
from broker.remoting.command import RemotingCommand, encode_head, request
from broker.remoting.json_body import ObjectKeyed, encode_body
from broker.requests.connection import Connection
from broker.requests.errors import RequestError
from broker.requests.processing import HandledOn, Pace, Route
from broker.requests.responses import reply, reply_unknown
from broker.state.topic_rules import queues_of

_TOLD_AT_ONCE: Final = 4_000
"""Queues of which members and administrator are told in one step."""

_MEMBERS_TOLD_AT_ONCE: Final = 500
"""Members that are told in one step: each takes a system call."""


@dataclass(eq=False)
class ResetsProcessor:
    """INVOKE_BROKER_TO_RESET_OFFSET 222, which sends members RESET_CONSUMER_CLIENT_OFFSET 220."""

    _state: State
    _requests: Requests
    _registry: ClientRegistry[Connection]
    _offsets: OffsetCommits
    _resets: OffsetResets
    _broker_name: str

    def routes(self) -> Iterable[Route]:
        """The leader's: it knows where queues end, and all clients."""
        return (Route(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, self.reset_offset, HandledOn.LEADER_READ),)

    def reset_offset(self, connection: Connection, command: RemotingCommand) -> Iterator[None]:
        """Has a consumer group go to a time (negative: the end) in a topic.

        The response says where, once that is in the log. Without force only backwards, from a stored offset. A
        `queue_id` (5.x) leaves the other queues alone, an `offset` is then where to go. A topic of many queues is gone
        through in steps.

        Raises `RequestError` for a topic, consumer group, queue or offset that is not there.
        """
        header = command.decode_fields(ResetOffsetHeader)
        metadata = self._state.metadata
        config = metadata.topics.get(header.topic)
        if config is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        self._check_group(header)
        group = self._registry.consumer_group(header.group)
        queue_ids = _queues_to_reset(header, config)
        # Where each queue is to go; the response says the same as the request to members.
        targets: dict[int, int] = {}

        per_command = self._state.limits.queues_per_command
        parts = [queue_ids[begin : begin + per_command] for begin in range(0, len(queue_ids), per_command)]

        def offsets_of(part: Sequence[int]) -> list[StoredOffset]:
            self._check_group(header)  # it may have been deleted since the part before
            found = self._targets(header, part)
            targets.update(found)
            return [(header.group, header.topic, queue_id, offset) for queue_id, offset in found.items()]

        def done() -> None:
            told = self._tell_and_reply(connection, command, header, targets, is_ordered=not is_broadcast)
            self._requests.handle_in_steps(connection, command, told)

        # Members of a broadcasting consumer group keep their offsets themselves: there is nothing to put into the log.
        is_broadcast = group is not None and group.message_model is MessageModel.BROADCASTING
        if is_broadcast:
            for part in parts:
                offsets_of(part)
                yield
            done()
        else:
            if header.is_force:  # else queues without a stored offset are passed over
                self._offsets.check_room(header.group, {header.topic: queue_ids})
            yield from self._offsets.order_in_steps(
                parts, offsets_of, done, lambda: reply_unknown(connection, command), until_followed=True
            )

    def _check_group(self, header: ResetOffsetHeader) -> None:
        if (
            self._registry.consumer_group(header.group) is None
            and header.group not in self._state.metadata.groups
        ):
            raise RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic}",
            )

    def _targets(self, header: ResetOffsetHeader, queue_ids: Iterable[int]) -> dict[int, int]:
        stored = self._state.metadata.offsets.get((header.group, header.topic), {})
        targets: dict[int, int] = {}
        for queue_id in queue_ids:
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
        queue = self._state.store.queues.get(header.topic, queue_id)
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
        return queue.offset_at_time(header.timestamp, self._state.store.store_time_of)

    def _tell_and_reply(
        self,
        connection: Connection,
        command: RemotingCommand,
        header: ResetOffsetHeader,
        targets: dict[int, int],
        *,
        is_ordered: bool,
    ) -> Iterator[None]:
        """Tells pulls that wait, sends 220 to the members that are there now, and answers the request, in steps."""
        group = self._registry.consumer_group(header.group)
        members = [] if group is None else [one for one in group.members() if not _follows_pulls(group, one)]
        has_cpp = any(client.language == LanguageCode.CPP for client in members)
        if is_ordered:
            self._resets.forget_ended()
        # All members are told the same: it is encoded once for each of the two forms (`Broker2Client.resetOffset`).
        for_all, for_cpp, pace = ObjectKeyed(), ListedOffsets(), Pace(_TOLD_AT_ONCE)
        queue_ids = list(targets)
        per_command = self._state.limits.queues_per_command
        for begin in range(0, len(queue_ids), per_command):
            some = queue_ids[begin : begin + per_command]
            if is_ordered:
                self._resets.ordered((header.group, header.topic, queue_id) for queue_id in some)
            offsets = {
                MessageQueue(self._broker_name, queue_id, header.topic): targets[queue_id]
                for queue_id in some
            }
            for_all.add(offsets)
            if has_cpp:
                for_cpp.add(offsets)
            if pace.spent(len(some)):
                yield
        body = encode_body({"offsetTable": for_all.encoded()})
        body_for_cpp = for_cpp.encode() if has_cpp else b""
        head, head_for_cpp = _order(header, body), _order(header, body_for_cpp)
        for number, client in enumerate(members, 1):
            # It may have gone between two steps.
            if self._requests.is_connected(client.connection):
                if client.language == LanguageCode.CPP:
                    client.connection.send(head_for_cpp, body_for_cpp)
                else:
                    client.connection.send(head, body)
            if number % _MEMBERS_TOLD_AT_ONCE == 0:
                yield
        reply(connection, command, ResponseCode.SUCCESS, body=body)


def _order(header: ResetOffsetHeader, body: bytes) -> bytes:
    """Returns the encoded head of the RESET_CONSUMER_CLIENT_OFFSET request that members get; they share the body."""
    order = request(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        ResetOffsetHeader(header.topic, header.group, header.timestamp, header.is_force),
        one_way=True,
    )
    return encode_head(order, len(body))


def _follows_pulls(group: ConsumerGroup[Connection], client: RegisteredClient[Connection]) -> bool:
    """Tells whether a member goes to its new offset by the response to its next pull (PULL_OFFSET_MOVED) alone.

    It needs no RESET_CONSUMER_CLIENT_OFFSET request then.
    """
    return (
        group.message_model is not MessageModel.BROADCASTING
        and client.language == LanguageCode.JAVA
        and client.version >= Version.V5_0_0
    )


def _queues_to_reset(header: ResetOffsetHeader, config: TopicConfig) -> Sequence[int]:
    """Returns all queues of the topic, or the one that a request names. Raises `RequestError` if it does not exist."""
    count = queues_of(config)
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
