"""Topics: their settings and figures by broker group, created, changed one by one, deleted with what depends on them.

All of it is done as far as broker groups answer; those that do not are `Groups.missing` afterwards. What is changed in
some groups only is changed in the others by the same call when these answer again: each call says how a topic is to be.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import msgspec

from broker.client.admin import QueueStatus
from broker.client.errors import BrokerError, NoRoute, UsageError
from broker.client.message import MessageQueue
from broker.operations.asking import Groups, as_json
from broker.operations.errors import InUse, NotThere
from broker.remoting.admin_bodies import GroupList
from broker.remoting.admin_bodies import TopicStats as Ranges
from broker.remoting.bodies import TopicConfig, TopicConfigTable
from broker.remoting.codes import Permission, RequestCode, ResponseCode
from broker.remoting.route import MASTER_ID
from broker.state.topic_rules import CONSUMER_GROUP_PREFIXES, DEFAULT_TOPIC


class _Figure(msgspec.Struct):
    """One span of the response to VIEW_BROKER_STATS_DATA 315."""

    sum: int = 0
    tps: float = 0.0


class _Figures(msgspec.Struct):
    minute: _Figure = msgspec.field(name="statsMinute", default_factory=_Figure)


class _Subscription(msgspec.Struct, rename="camel"):
    """The response to QUERY_SUBSCRIPTION_BY_CONSUMER 345."""

    subscription_data: dict[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRange:
    """The messages that a queue keeps, from ``begin`` up to but not including ``end``; ``newest_ms`` is when the last
    one was stored, None without any."""

    queue: int
    begin: int
    end: int
    newest_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAtBroker:
    """A topic at one broker group: its settings, its queues, and what was stored in the last minute."""

    broker: str
    read_queues: int
    write_queues: int
    may_read: bool
    may_write: bool
    ordered: bool
    attributes: dict[str, str]
    queues: tuple[QueueRange, ...]
    messages_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStats:
    """A topic at all broker groups that have it. ``messages`` counts those that are kept; ``groups`` consume it."""

    topic: str
    brokers: tuple[TopicAtBroker, ...]
    groups: tuple[str, ...]
    messages: int
    messages_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicQueues:
    """The queues of a topic, sorted, at the broker groups that answer; ``leaders`` are the addresses by its route."""

    leaders: dict[str, str | None]
    queues: tuple[QueueStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic as it is to be, in each of these broker groups."""

    topic: str
    queues: int
    perm: int
    ordered: bool
    groups: tuple[str, ...]


def plan_topic(
    groups: Groups,
    topic: str,
    *,
    queues: int,
    perm: int = int(Permission.READ | Permission.WRITE),
    ordered: bool = False,
    cluster: str | None = None,
    brokers: Collection[str] | None = None,
) -> NewTopic:
    """Say where a topic would be created: in these broker groups, or in all of the cluster, or of all clusters.

    Raises NoRoute for unknown ones and where there is none.
    """
    wanted = groups.in_cluster(cluster) if brokers is None else _known(groups, brokers)
    names = [name for name in groups.names if name in wanted]
    if not names:
        raise NoRoute(topic, f"no broker is registered{f' for cluster {cluster!r}' if cluster else ''}")
    return NewTopic(topic=topic, queues=queues, perm=perm, ordered=ordered, groups=tuple(names))


async def what_it_changes(groups: Groups, wanted: NewTopic) -> list[str]:
    """Return the broker groups that have the topic already, with other settings than wanted. Raises ClientError."""
    found = await groups.ask(lambda name: _config(groups, name, wanted.topic), wanted.groups)
    as_wanted = (wanted.queues, wanted.queues, wanted.perm, wanted.ordered)
    return [
        name
        for name, config in found.items()
        if config is not None
        and (config.read_queue_nums, config.write_queue_nums, config.perm, config.order) != as_wanted
    ]


async def create_topic(groups: Groups, wanted: NewTopic) -> list[str]:
    """Create a topic, or change it; returns its broker groups that have done so, when name servers route it there.

    Raises ClientError if none has.
    """

    async def create(name: str) -> None:
        await groups.admin.create_topic(
            wanted.topic, queues=wanted.queues, perm=wanted.perm, groups=[name], ordered=wanted.ordered
        )

    return list(await groups.ask(create, wanted.groups))


async def topic_queues(groups: Groups, topic: str) -> TopicQueues:
    """Return the queues of a topic and what they keep. Raises NoRoute for an unknown topic, ClientError."""
    route = await groups.admin.route(topic)

    async def ask(name: str) -> list[QueueStatus]:
        kept = await groups.body(name, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}, Ranges.decode)
        return [
            QueueStatus(
                MessageQueue(queue.topic, queue.broker_name, queue.queue_id),
                at.min_offset,
                at.max_offset,
                at.last_update_timestamp,
            )
            for queue, at in kept.offsets.items()
        ]

    found = await groups.ask(ask, sorted(route.brokers))
    return TopicQueues(
        leaders={name: route.brokers[name].get(MASTER_ID) for name in sorted(route.brokers)},
        queues=tuple(
            sorted(
                (status for queues in found.values() for status in queues),
                key=lambda status: status.queue,
            )
        ),
    )


async def topic_stats(groups: Groups, topic: str) -> TopicStats:
    """Return settings, queues, rates and consumers of a topic. Raises NotThere, ClientError."""
    found = await groups.ask(lambda name: _at_broker(groups, name, topic))
    brokers = tuple(at for at in found.values() if at is not None)
    if not brokers:
        raise NotThere(f"there is no topic {topic!r}{groups.in_doubt()}")
    consumers = await consumers_of(groups, topic)
    return TopicStats(
        topic=topic,
        brokers=brokers,
        groups=tuple(consumers),
        messages=sum(queue.end - queue.begin for at in brokers for queue in at.queues),
        messages_per_s=sum(at.messages_per_s for at in brokers),
        bytes_per_s=sum(at.bytes_per_s for at in brokers),
    )


async def alter_topic(
    groups: Groups,
    topic: str,
    *,
    queues: int | None = None,
    may_read: bool | None = None,
    may_write: bool | None = None,
    ordered: bool | None = None,
    brokers: Collection[str] | None = None,
) -> list[str]:
    """Change what is given of a topic, at these broker groups or at all that have it; the rest stays as it is there.

    Returns the broker groups that were changed. With fewer queues than before the last ones are not read any more,
    whatever they keep. Raises UsageError where nothing is given, NotThere, ClientError.
    """
    if queues is not None and queues < 1:
        raise UsageError(f"{queues} queues: at least 1")
    if queues is None and may_read is None and may_write is None and ordered is None:
        raise UsageError("nothing to change: give queues, permissions or the order")
    names = groups.names if brokers is None else _known(groups, brokers)
    configs = await groups.ask(lambda name: _config(groups, name, topic), names)
    known = {name: config for name, config in configs.items() if config is not None}
    if not known:
        where = f" at {', '.join(brokers)}" if brokers else ""
        raise NotThere(f"there is no topic {topic!r}{where}{groups.in_doubt()}")

    async def alter(name: str) -> None:
        config = known[name]
        perm = _with(_with(config.perm, Permission.READ, may_read), Permission.WRITE, may_write)
        # The request replaces all settings of a topic (`TopicConfigManager.updateTopicConfig`): what is to stay is
        # sent as it is there.
        fields = {
            "topic": topic,
            "defaultTopic": DEFAULT_TOPIC,
            "readQueueNums": str(config.read_queue_nums if queues is None else queues),
            "writeQueueNums": str(config.write_queue_nums if queues is None else queues),
            "perm": str(perm),
            "topicFilterType": config.topic_filter_type,
            "topicSysFlag": str(config.topic_sys_flag),
            "order": str(config.order if ordered is None else ordered).lower(),
        }
        await groups.order(name, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    return list(await groups.ask(alter, known))


async def delete_topic(groups: Groups, topic: str, *, while_in_use: bool = False) -> list[str]:
    """Delete a topic everywhere, with its messages and the consumer offsets in it; returns the broker groups that have.

    Name servers forget it when no group is missing. Raises InUse if consumers subscribe to it now, unless
    ``while_in_use``: a broker that creates topics by itself would make it anew for them. Raises NotThere, ClientError.
    """
    admin = groups.admin
    if topic not in await admin.topics():
        raise NotThere(f"there is no topic {topic!r}")
    if not while_in_use and not topic.startswith(CONSUMER_GROUP_PREFIXES):

        async def check(name: str) -> list[str]:
            return [group for group in consumers if await _has_members(groups, name, group, topic)]

        consumers = await consumers_of(groups, topic)
        for group in (group for found in (await groups.ask(check)).values() for group in found):
            raise InUse(f"consumer group {group!r} subscribes to topic {topic!r} now")
    done = await groups.ask(lambda name: admin.delete_topic_in_group(topic, name))
    if not groups.missing:
        await admin.forget_topic(topic)
    return list(done)


async def consumers_of(groups: Groups, topic: str) -> list[str]:
    """Return the consumer groups that subscribe to a topic now or have an offset in it. Raises ClientError."""
    code, absent = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, ResponseCode.TOPIC_NOT_EXIST

    async def ask(name: str) -> list[str]:
        found = await groups.body_if_there(name, code, {"topic": topic}, as_json(GroupList), absent)
        return [] if found is None else found.group_list

    return sorted({group for found in (await groups.ask(ask)).values() for group in found})


def _known(groups: Groups, names: Iterable[str]) -> list[str]:
    """Return names of broker groups, sorted. Raises NoRoute for an unknown one."""
    for name in names:
        groups.addresses(name)
    return sorted(names)


async def _has_members(groups: Groups, name: str, group: str, topic: str) -> bool:
    code, fields = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": group, "topic": topic}
    return (await groups.body(name, code, fields, as_json(_Subscription))).subscription_data is not None


async def _config(groups: Groups, name: str, topic: str) -> TopicConfig | None:
    code, absent = RequestCode.GET_TOPIC_CONFIG, ResponseCode.TOPIC_NOT_EXIST
    try:
        return await groups.body_if_there(name, code, {"topic": topic}, as_json(TopicConfig), absent)
    except BrokerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
    # RocketMQ 4.9 tells of all topics together.
    table = await groups.body(name, RequestCode.GET_ALL_TOPIC_CONFIG, {}, as_json(TopicConfigTable))
    return table.topic_config_table.get(topic)


async def _at_broker(groups: Groups, name: str, topic: str) -> TopicAtBroker | None:
    config = await _config(groups, name, topic)
    if config is None:
        return None
    kept = await groups.body(name, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}, Ranges.decode)
    messages = await _rate(groups, name, "TOPIC_PUT_NUMS", topic)
    size = await _rate(groups, name, "TOPIC_PUT_SIZE", topic)
    return TopicAtBroker(
        broker=name,
        read_queues=config.read_queue_nums,
        write_queues=config.write_queue_nums,
        may_read=bool(config.perm & Permission.READ),
        may_write=bool(config.perm & Permission.WRITE),
        ordered=config.order,
        attributes=config.attributes,
        queues=tuple(
            QueueRange(
                queue=queue.queue_id,
                begin=at.min_offset,
                end=at.max_offset,
                newest_ms=at.last_update_timestamp or None,
            )
            for queue, at in sorted(kept.offsets.items(), key=lambda item: item[0].queue_id)
        ),
        messages_per_s=messages,
        bytes_per_s=size,
    )


async def _rate(groups: Groups, name: str, figure: str, topic: str) -> float:
    """Return one of a broker's figures for the last minute, by the second; 0 where it knows nothing of it yet."""
    code, absent = RequestCode.VIEW_BROKER_STATS_DATA, ResponseCode.SYSTEM_ERROR
    fields = {"statsName": figure, "statsKey": topic}
    found = await groups.body_if_there(name, code, fields, as_json(_Figures), absent)
    return 0.0 if found is None else found.minute.tps


def _with(perm: int, bit: Permission, wanted: bool | None) -> int:
    if wanted is None:
        return perm
    return perm | bit if wanted else perm & ~bit
