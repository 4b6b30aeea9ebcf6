"""A broker of RocketMQ that runs, asked by its own protocol for what a migration needs: nothing of it is changed.

Who asks is the consumer group of RocketMQ's own tools, which every broker has; it commits nothing, and no consumer of
the cluster hears of it. What waits is asked for like any topic: delayed, timed and half messages lie in queues of their
own.

Tables are asked for before the ends of queues. So what a table calls done is never of a message behind those ends: a
message may come twice that way, and none is passed over.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from broker.client.admin import AdminClient
from broker.client.errors import ClientError, NoRoute
from broker.client.transport.core import broker_error
from broker.migration.errors import MigrationError
from broker.migration.survey import QueueKey
from broker.migration.tables import DelayTable, OffsetTable, Tables, TimerCheckpoint, timer_checkpoint
from broker.operations.asking import each, read_body
from broker.operations.own_groups import READER_GROUP
from broker.remoting.admin_bodies import TopicStats
from broker.remoting.bodies import SubscriptionGroupTable, TopicConfig, TopicConfigTable
from broker.remoting.codes import Permission, PullSysFlag, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.json_body import decode_body
from broker.remoting.route import MASTER_ID
from broker.settings.properties_file import PropertiesSyntaxError, parse
from broker.state.topic_rules import HALF_OPERATIONS_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from log.errors import RecordError
from log.formats.record import RecordHead, check_record

_CALL_TIMEOUT_S: Final = 15.0
_GET_TIMER_CHECK_POINT: Final = 60
"""A request of 5.x; no client of Trivet's asks it of anybody else."""
_ATTEMPTS: Final = 20
"""How often a pull is tried: it may find nothing because the broker is just deleting the file that it reads."""
_WAITING: Final = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, HALF_OPERATIONS_TOPIC)
"""Topics of the broker's own whose messages are still to come."""
_SIZE: Final = struct.Struct(">i")

Body = TypeVar("Body")


class PulledRecord(NamedTuple):
    """A message as the broker stores it, and what stands in its fixed part."""

    data: memoryview
    head: RecordHead


@dataclass(frozen=True, slots=True)
class Look:
    """The state of a broker at one moment."""

    cluster: str
    address: str
    """The master's."""
    takes_messages: bool
    """True unless each registered node of the group has said that nobody may write to it."""
    tables: Tables
    queues: dict[QueueKey, tuple[int, int]]
    """The offset of the first message that is kept, and the next one's."""
    delay_levels: str
    """`messageDelayLevel`; empty if it does not say."""
    unknown: frozenset[str]
    """Topics that it does not show to anybody, whether it has them or not: 4.x does not show decisions about half
    messages."""


class RunningBroker:
    """The nodes that are registered under one broker name; its master is looked for at each look."""

    def __init__(self, admin: AdminClient, group: str) -> None:
        self._admin = admin
        self.group = group
        self._address = ""

    async def look(self, is_taken: Callable[[str, str, TopicConfig], bool]) -> Look:
        """Asks for all tables, and for the queues of what waits and of the topics of which `is_taken` says so, called
        with the cluster's name, the topic's and its configuration. Raises ClientError.
        """
        info = await self._admin.cluster_info()
        data = info.broker_table.get(self.group)
        if data is None:
            raise NoRoute(
                self.group,
                f"no such broker name is registered; there are {', '.join(sorted(info.broker_table))}",
            )
        address = data.broker_addresses.get(MASTER_ID)
        if address is None:
            raise NoRoute(self.group, "no master is registered now")
        self._address = address
        # Of all nodes: another one may become the master, and take messages, while this one is read.
        settings = await each(self._admin, sorted(data.broker_addresses.values()), self._settings)
        # All tables before the ends of queues: the module's docstring says why.
        offsets = await self._table(RequestCode.GET_ALL_CONSUMER_OFFSET, OffsetTable)
        delays = await self._table(RequestCode.GET_ALL_DELAY_OFFSET, DelayTable)
        timers = await self._timers()
        groups = await self._table(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroupTable)
        topics = await self._table(RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigTable)
        tables = Tables(
            topics.topic_config_table,
            groups.subscription_group_table,
            offsets.by_group(),
            delays.offset_table,
            timers,
        )
        asked = [
            *_WAITING,
            *(
                name
                for name, config in tables.topics.items()
                if name not in _WAITING and is_taken(data.cluster, name, config)
            ),
        ]
        stats = await each(self._admin, asked, self._stats)
        queues = {
            (topic, queue.queue_id): (at.min_offset, at.max_offset)
            for topic, found in zip(asked, stats, strict=True)
            for queue, at in (found.offsets.items() if found else ())
            if at.max_offset > 0
        }
        return Look(
            data.cluster,
            address,
            any(_may_write(values) for values in settings),
            tables,
            queues,
            next((values.get("messageDelayLevel", "") for values in settings if values), ""),
            frozenset(topic for topic, found in zip(asked, stats, strict=True) if found is None),
        )

    async def read(self, key: QueueKey, offset: int, count: int) -> list[PulledRecord]:
        """Returns at least one message of a queue from `offset` on, checked; none if there is none.

        Raises ClientError, and MigrationError for messages that are damaged or not those that were asked for.
        """
        topic, queue_id = key
        fields = {
            "consumerGroup": READER_GROUP,
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(count),
            "sysFlag": str(int(PullSysFlag.SUBSCRIPTION)),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        for _ in range(_ATTEMPTS):
            response = await self._admin.core.pool.call(
                self._address, RequestCode.PULL_MESSAGE, fields, b"", _CALL_TIMEOUT_S
            )
            if response.code == ResponseCode.SUCCESS:
                return self._records(response.body, key, offset)
            if response.code == ResponseCode.PULL_NOT_FOUND:
                return []
            if response.code == ResponseCode.PULL_OFFSET_MOVED:
                raise _gone(key, offset)
            # To a pull of all tags this says that a message's file is being deleted (MESSAGE_WAS_REMOVING): soon the
            # broker says where the queue begins.
            if response.code != ResponseCode.PULL_RETRY_IMMEDIATELY:
                raise broker_error(response, self._address)
        raise _gone(key, offset)

    async def read_all(self, wanted: Sequence[tuple[QueueKey, int, int]]) -> list[list[PulledRecord]]:
        """Does `read` for each (queue, offset, count), several at a time."""
        return await each(self._admin, wanted, lambda one: self.read(*one))

    def _records(self, body: bytes | memoryview, key: QueueKey, offset: int) -> list[PulledRecord]:
        view = memoryview(body)
        found: list[PulledRecord] = []
        at = 0
        while at < len(view):
            size = _SIZE.unpack_from(view, at)[0] if len(view) - at >= _SIZE.size else 0
            record = view[at : at + size]
            try:
                head = check_record(record)
            except RecordError as error:
                raise MigrationError(
                    f"{self._address}, message {offset} of queue {key[1]} of {key[0]}: {error}"
                ) from error
            # RocketMQ passes over messages that it cannot find, and answers with later ones.
            place = (bytes(record[head.topic_begin : head.topic_end]), head.queue_id, head.queue_offset)
            if place != (key[0].encode(), key[1], offset) or head.total_size != size:
                raise MigrationError(
                    f"{self._address} was asked for message {offset} of queue {key[1]} of {key[0]}, and sent message "
                    f"{place[2]} of queue {place[1]} of {place[0].decode(errors='replace')}: a queue here has no "
                    f"holes; leave the topic out with --leave-out {key[0]}"
                )
            found.append(PulledRecord(record, head))
            at += size
            offset += 1
        return found

    async def _settings(self, address: str) -> dict[str, str]:
        """Returns what a node was told by its settings; nothing where it does not answer."""
        try:
            response = await self._call(RequestCode.GET_BROKER_CONFIG, {}, address=address)
            return {
                entry.key: entry.value for entry in parse(bytes(response.body).decode("utf-8", "replace"))
            }
        except (ClientError, PropertiesSyntaxError):
            if address == self._address:
                raise
            return {}

    async def _timers(self) -> TimerCheckpoint | None:
        accepted = (
            ResponseCode.SUCCESS,
            ResponseCode.SYSTEM_ERROR,
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        )
        response = await self._call(_GET_TIMER_CHECK_POINT, {}, accepted)
        if response.code != ResponseCode.SUCCESS or not response.body:
            return None  # 4.x, or a broker without a timer wheel
        return read_body(response, self._address, timer_checkpoint)

    async def _stats(self, topic: str) -> TopicStats | None:
        accepted = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
        response = await self._call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}, accepted)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return read_body(response, self._address, TopicStats.decode)

    async def _table(self, code: int, kind: type[Body]) -> Body:
        response = await self._call(code, {})
        return read_body(response, self._address, lambda body: decode_body(body, kind))

    async def _call(
        self,
        code: int,
        fields: dict[str, str],
        accepted: tuple[int, ...] = (ResponseCode.SUCCESS,),
        *,
        address: str = "",
    ) -> RemotingCommand:
        address = address or self._address
        response = await self._admin.core.pool.call(address, code, fields, b"", _CALL_TIMEOUT_S)
        if response.code not in accepted:
            raise broker_error(response, address)
        return response


def _may_write(settings: dict[str, str]) -> bool:
    """Tells whether a node takes messages, as far as its settings say it."""
    permission = settings.get("brokerPermission", "")
    return not permission.isdigit() or bool(int(permission) & Permission.WRITE)


def _gone(key: QueueKey, offset: int) -> MigrationError:
    return MigrationError(
        f"message {offset} of queue {key[1]} of {key[0]} is gone: it was deleted before it was read, or its topic was. "
        "Begin again in another directory"
    )
