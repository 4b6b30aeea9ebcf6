"""A world for the client's tests: memory connections, a name server, and brokers that keep real records in lists.

Brokers do the right thing by default. A test changes what they do with the next requests of a code by `script`: each
step replaces the normal handling of one request. Time is Trio's mock clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from broker.remoting.bodies import ConsumerListBody, HeartbeatData, LockBatchBody, LockBatchResponseBody
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, request, response
from broker.remoting.headers import PullMessageHeader, SendMessageHeaderV2
from broker.remoting.json_body import decode_body, encode_body
from log.batch import parse_batch
from log.java_hash import java_hash_utf8
from log.message_id import offset_message_id
from log.properties import get_property, with_property
from log.record import decode_record, encode_record, pack_host
from tests.broker.client.links import (
    WALL_START_MS,
    Link,
    Server,
    World,
)

NAME_SERVER = "ns:9876"
RETRIES_MAX = 3
LOCK_S = 60.0


class FakeNameServer(Server):
    """Knows what `World.routes` says."""

    def handle(self, link: Link, command: RemotingCommand) -> RemotingCommand | None:
        assert command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        route = self.world.routes.get(command.fields["topic"])
        if route is None:
            return response(command, ResponseCode.TOPIC_NOT_EXIST, "no route")
        return response(command, 0, body=route.encode(command.version, True))


@dataclass
class Group:
    """What a broker group has stored, shared by its members, as if replication took no time."""

    name: str
    queues: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    first_offset: dict[tuple[str, int], int] = field(default_factory=dict)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    members: dict[str, dict[str, None]] = field(default_factory=dict)
    locks: dict[tuple[str, str, int], tuple[str, float]] = field(default_factory=dict)
    """(group, topic, queue id) -> holder, and when it renewed its lock last."""
    log_end: int = 0

    def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes = b"",
        sys_flag: int = 0,
        flag: int = 0,
        reconsume_times: int = 0,
    ) -> tuple[int, str]:
        """Returns (queue offset, message id)."""
        records = self.queues.setdefault((topic, queue_id), [])
        offset = self.first_offset.get((topic, queue_id), 0) + len(records)
        host = pack_host("127.0.0.1", 10911)
        now = WALL_START_MS
        record = encode_record(
            topic.encode(),
            queue_id,
            flag,
            offset,
            self.log_end,
            sys_flag,
            now,
            host,
            now,
            host,
            reconsume_times,
            0,
            body,
            properties,
        )
        records.append(record)
        self.log_end += len(record)
        return offset, offset_message_id(host, self.log_end - len(record))

    def bodies(self, topic: str, queue_id: int) -> int:
        return len(self.queues.get((topic, queue_id), []))


class FakeBroker(Server):
    """A member of a group. Followers do as the leader does, as Trivet's forwarding makes them."""

    def __init__(self, world: World, address: str, group: Group) -> None:
        super().__init__(world, address)
        self.group = group
        self.batch = 32
        self._held: list[tuple[Link, RemotingCommand, PullMessageHeader, float]] = []

    def append(
        self, topic: str, queue_id: int, body: bytes, properties: bytes = b"", sys_flag: int = 0
    ) -> int:
        """Store a message and wake the pulls that wait for it."""
        offset, _ = self.group.append(topic, queue_id, body, properties, sys_flag)
        self.wake()
        return offset

    def wake(self) -> None:
        held, self._held = self._held, []
        for link, command, header, until in held:
            answer = self._pull(link, command, header, until)
            if answer is not None:
                try:
                    link.send(answer)
                except OSError:
                    pass

    def handle(self, link: Link, command: RemotingCommand) -> RemotingCommand | None:
        group = self.group
        if command.is_response:
            return None
        match command.code:
            case RequestCode.HEART_BEAT:
                return self._heartbeat(link, command)
            case RequestCode.UNREGISTER_CLIENT:
                name = command.fields.get("consumerGroup")
                if (
                    name is not None
                    and group.members.get(name, {}).pop(command.fields["clientID"], "") is None
                ):
                    self.notify_members(name)
                return response(command, 0)
            case RequestCode.SEND_MESSAGE_V2 | RequestCode.SEND_BATCH_MESSAGE:
                return self.store(command)
            case RequestCode.PULL_MESSAGE:
                header = command.decode_fields(PullMessageHeader)
                until = trio.current_time() + header.suspend_timeout_ms / 1000
                self.world.nursery.start_soon(self._expire, header.suspend_timeout_ms / 1000)
                return self._pull(link, command, header, until)
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                members = list(group.members.get(command.fields["consumerGroup"], {}))
                if not members:
                    return response(command, ResponseCode.SYSTEM_ERROR, "no consumer")
                return response(command, 0, body=encode_body(ConsumerListBody(members)))
            case RequestCode.CONSUMER_SEND_MSG_BACK:
                return self._send_back(command)
            case RequestCode.LOCK_BATCH_MQ | RequestCode.UNLOCK_BATCH_MQ:
                return self.lock(command)
        return self._offset_request(command)

    def _offset_request(self, command: RemotingCommand) -> RemotingCommand:
        group, fields = self.group, command.fields
        topic, queue_id = fields["topic"], int(fields["queueId"])
        first = group.first_offset.get((topic, queue_id), 0)
        last = first + group.bodies(topic, queue_id)
        match command.code:
            case RequestCode.GET_MAX_OFFSET:
                return response(command, 0, fields={"offset": str(last)})
            case RequestCode.GET_MIN_OFFSET:
                return response(command, 0, fields={"offset": str(first)})
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                offset = first if int(fields["timestamp"]) <= WALL_START_MS else last
                return response(command, 0, fields={"offset": str(offset)})
            case RequestCode.QUERY_CONSUMER_OFFSET:
                offset = group.offsets.get((fields["consumerGroup"], topic, queue_id), -1)
                if offset < 0:
                    return response(command, ResponseCode.QUERY_NOT_FOUND, "not found")
                return response(command, 0, fields={"offset": str(offset)})
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                key = (fields["consumerGroup"], topic, queue_id)
                group.offsets[key] = int(fields["commitOffset"])
                return response(command, 0)
        raise AssertionError(f"unexpected request {command}")

    def store(self, command: RemotingCommand) -> RemotingCommand:
        """The normal handling of a send."""
        header = command.decode_fields(SendMessageHeaderV2)
        properties = (header.properties or "").encode()
        if command.code == RequestCode.SEND_BATCH_MESSAGE:
            items = [(item.body, item.properties, item.flag) for item in parse_batch(command.body)]
        else:
            items = [(bytes(command.body), properties, header.flag)]
        stored = [
            self.group.append(header.topic, header.queue_id, body, props, header.sys_flag, flag)
            for body, props, flag in items
        ]
        self.wake()
        fields = {
            "msgId": ",".join(message_id for _, message_id in stored),
            "queueId": str(header.queue_id),
            "queueOffset": str(stored[0][0]),
        }
        return response(command, 0, fields=fields)

    def notify_members(self, name: str) -> None:
        """Code 40 to all members of a consumer group that are connected here."""
        for link in self.links:
            if link.client_id in self.group.members.get(name, {}):
                fields = {"consumerGroup": name}
                link.send(request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields, one_way=True))

    def _heartbeat(self, link: Link, command: RemotingCommand) -> RemotingCommand:
        data = decode_body(command.body, HeartbeatData)
        link.client_id = data.client_id
        for consumer in data.consumer_data_set:
            members = self.group.members.setdefault(consumer.group_name, {})
            if data.client_id not in members:
                members[data.client_id] = None
                self.notify_members(consumer.group_name)
        return response(command, 0)

    def _pull(
        self, link: Link, command: RemotingCommand, header: PullMessageHeader, until: float
    ) -> RemotingCommand | None:
        key = (header.topic, header.queue_id)
        first = self.group.first_offset.get(key, 0)
        records = self.group.queues.get(key, [])
        end = first + len(records)
        offset = header.queue_offset
        if offset < first or offset > end:
            return self._pull_answer(command, 21, first if offset < first else end, first, end)
        if offset == end:
            if trio.current_time() < until:
                self._held.append((link, command, header, until))
                return None
            return self._pull_answer(command, 19, offset, first, end)
        wanted = {
            java_hash_utf8(tag.strip().encode())
            for tag in (header.subscription or "*").split("||")
            if tag.strip() != "*"
        }
        taken: list[bytes] = []
        while offset < end and len(taken) < min(self.batch, header.max_message_count):
            record = records[offset - first]
            tag = get_property(decode_record(record).properties, b"TAGS")
            if not wanted or (tag is not None and java_hash_utf8(tag) in wanted):
                taken.append(record)
            offset += 1
        return self._pull_answer(command, 0 if taken else 20, offset, first, end, b"".join(taken))

    def _pull_answer(
        self, command: RemotingCommand, number: int, next_offset: int, first: int, end: int, body: bytes = b""
    ) -> RemotingCommand:
        fields = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(next_offset),
            "minOffset": str(first),
            "maxOffset": str(end),
        }
        return response(command, number, fields=fields, body=body)

    def lock(self, command: RemotingCommand) -> RemotingCommand:
        """The normal handling of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""
        body = decode_body(command.body, LockBatchBody)
        locks, now = self.group.locks, trio.current_time()
        held = []
        for queue in body.queues:
            key = (body.consumer_group, queue.topic, queue.queue_id)
            holder, renewed = locks.get(key, (body.client_id, now))
            if command.code == RequestCode.UNLOCK_BATCH_MQ:
                if holder == body.client_id:
                    locks.pop(key, None)
            elif holder == body.client_id or now - renewed > LOCK_S:
                locks[key] = (body.client_id, now)
                held.append(queue)
        return response(command, 0, body=encode_body(LockBatchResponseBody(held)))

    def _send_back(self, command: RemotingCommand) -> RemotingCommand:
        """RocketMQ's rule (`AbstractSendMessageProcessor`), with `RETRIES_MAX` and a delay of ten seconds a level."""
        at, name = int(command.fields["offset"]), command.fields["group"]
        stored = (decode_record(record) for records in self.group.queues.values() for record in records)
        record = next((record for record in stored if record.physical_offset == at), None)
        if record is None:
            return response(command, ResponseCode.SYSTEM_ERROR, f"no message at {at}")
        properties = record.properties
        if get_property(properties, b"RETRY_TOPIC") is None:
            properties = with_property(properties, b"RETRY_TOPIC", record.topic.encode())
        again = record.reconsume_times + 1
        if again > RETRIES_MAX or command.fields.get("delayLevel") == "-1":
            self.group.append("%DLQ%" + name, 0, record.body, properties, reconsume_times=again)
        else:
            self.world.nursery.start_soon(self._retry, "%RETRY%" + name, record.body, properties, again)
        return response(command, 0)

    async def _retry(self, topic: str, body: bytes, properties: bytes, again: int) -> None:
        await trio.sleep(10 * again)
        self.group.append(topic, 0, body, properties, reconsume_times=again)
        self.wake()

    async def _expire(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self.wake()


def one_group(world: World, *, topic: str = "t", queues: int = 1, members: int = 1) -> list[FakeBroker]:
    """A name server and one group of brokers ``b0:1``, ``b1:1``, ... with a topic on it; the first is the leader."""
    FakeNameServer(world, NAME_SERVER)
    group = Group("g")
    brokers = [FakeBroker(world, f"b{number}:1", group) for number in range(members)]
    world.add_topic(topic, {"g": {number: broker.address for number, broker in enumerate(brokers)}}, queues)
    return brokers
