"""Consumer groups: which there are, how far each is, who their members are and whether these agree.

The members of a group must subscribe to the same, or some of them get messages that others were to have. A broker
keeps one subscription for the whole group, the newest; so each member is asked itself (GET_CONSUMER_RUNNING_INFO), as
mqadmin's consumerStatus does. Which queues it holds it tells with that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Literal

from broker.client.admin import AdminClient
from broker.operations.asking import Groups, each, read_body
from broker.operations.errors import InUse, NotThere
from broker.operations.members import config_of, connection_of, consumed_topics, running_infos
from broker.operations.own_groups import is_made_by_tools
from broker.remoting.admin_bodies import (
    BrokerConsumeStats,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    ConsumeTimeSpan,
    TopicStats,
)
from broker.remoting.bodies import (
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from broker.remoting.codes import RequestCode
from broker.remoting.json_body import decode_body
from broker.state.topic_rules import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_group

Kind = Literal["clustering", "broadcasting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """One consumer group in a list. ``kind`` is None while it has no members: nobody else knows it.

    ``lag`` counts the messages that it has not consumed in the queues where it has positions; ``consumed_per_s`` is the
    rate that its broker groups measured last.
    """

    name: str
    kind: Kind | None
    members: int
    topics: tuple[str, ...]
    lag: int
    consumed_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a member subscribes to of a topic: ``expression`` are tags, or a condition if ``kind`` is SQL92."""

    topic: str
    expression: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A client of the group. ``subscriptions`` is None if the client does not tell, else sorted by topic."""

    client_id: str
    address: str
    language: str
    version: int
    subscriptions: tuple[Wanted, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Members disagree about a topic. ``wanted`` has, for each expression, the ids of the clients that want it;
    ``None`` stands for those that do not subscribe to the topic."""

    topic: str
    wanted: tuple[tuple[str | None, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueProgress:
    """A consumer group in one queue, whose messages end before ``end``.

    ``position`` is the next offset that the group reads, 0 where it has none yet; ``lag`` how many messages it has yet
    to read of those that the queue keeps, ``lag_s`` how long the first of them has waited; ``owner`` is the client that
    has the queue, None if nobody says so.
    """

    broker: str
    topic: str
    queue: int
    position: int
    begin: int
    end: int
    lag: int
    lag_s: float
    owner: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetail:
    """All that is known of one consumer group. ``subscriptions`` are those that the brokers go by.

    A group that is broadcast to has no ``queues`` here: each of its members keeps positions of its own.
    """

    name: str
    kind: Kind | None
    members: tuple[Member, ...]
    subscriptions: tuple[Wanted, ...]
    conflicts: tuple[Conflict, ...]
    queues: tuple[QueueProgress, ...]
    lag: int
    lag_s: float
    consumed_per_s: float
    may_consume: bool
    retries_max: int
    retry_queues: int


async def list_groups(admin: AdminClient, *, system: bool = False) -> list[GroupSummary]:
    """Return the consumer groups of the cluster, sorted; those that every broker has by itself only if ``system``.

    Raises ClientError.
    """
    groups = await Groups.registered(admin)

    async def tables(name: str) -> tuple[SubscriptionGroupTable, BrokerConsumeStats]:
        known = await groups.read(name, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {})
        progress = await groups.read(name, RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
        return (
            read_body(known, name, lambda body: decode_body(body, SubscriptionGroupTable)),
            read_body(progress, name, BrokerConsumeStats.decode),
        )

    found = dict(zip(groups.names, await each(admin, groups.names, tables), strict=True))
    names = sorted(
        {
            group
            for known, progress in found.values()
            for group in (*known.subscription_group_table, *progress.groups)
            if system or not (is_system_group(group) or is_made_by_tools(group))
        }
    )
    places = [(group, name) for group in names for name in groups.names]
    connections = dict(
        zip(places, await each(admin, places, lambda place: connection_of(groups, *place)), strict=True)
    )
    summaries = []
    for group in names:
        here = [connection for name in groups.names if (connection := connections[group, name])]
        stats = [one for name in groups.names for one in found[name][1].groups.get(group, ())]
        subscribed = {topic for connection in here for topic in connection.subscription_table}
        consumed = {queue.topic for one in stats for queue in one.offsets}
        summaries.append(
            GroupSummary(
                name=group,
                kind=_kind(here),
                members=len({client.client_id for one in here for client in one.connection_set}),
                topics=tuple(sorted(topic for topic in subscribed | consumed if not _is_its_own(topic))),
                lag=sum(
                    max(0, at.broker_offset - at.consumer_offset)
                    for one in stats
                    for at in one.offsets.values()
                ),
                consumed_per_s=sum(one.consume_tps for one in stats),
            )
        )
    return summaries


async def describe_group(admin: AdminClient, name: str) -> GroupDetail:
    """Return a consumer group with its members, what these subscribe to, and its progress in every queue.

    Raises NotThere for a group that no broker knows, ClientError.
    """
    groups = await Groups.registered(admin)
    configs = await each(admin, groups.names, lambda broker: config_of(groups, name, broker))
    connections = await each(admin, groups.names, lambda broker: connection_of(groups, name, broker))
    here = [connection for connection in connections if connection is not None]
    known = [config for config in configs if config is not None]
    if not known and not here:
        raise NotThere(f"no broker knows the consumer group {name!r}")
    told = await running_infos(groups, name, connections)
    members = _members(here, told)
    owners = {
        (queue.broker_name, queue.topic, queue.queue_id): client_id
        for client_id, info in sorted(told.items())
        for queue in info.queues
    }
    kind = _kind(here)
    subscribed = {topic for one in here for topic in one.subscription_table}
    consumed = await each(admin, groups.names, lambda broker: consumed_topics(groups, name, broker))
    # Whoever reads a topic in one broker group reads it in all: where no position is noted, nothing was read yet.
    read = subscribed.union(*consumed)
    progress = (
        []  # each member keeps its own positions
        if kind == "broadcasting"
        else await each(admin, groups.names, lambda broker: _progress(groups, broker, name, read, owners))
    )
    queues = tuple(
        sorted(
            (queue for found, _ in progress for queue in found),
            key=lambda at: (at.topic, at.broker, at.queue),
        )
    )
    merged = {topic: subscription for one in here for topic, subscription in one.subscription_table.items()}
    config = known[0] if known else SubscriptionGroupConfig(group_name=name)
    return GroupDetail(
        name=name,
        kind=kind,
        members=members,
        subscriptions=_wanted(merged.values()),
        conflicts=_conflicts(members),
        queues=queues,
        lag=sum(queue.lag for queue in queues),
        lag_s=max((queue.lag_s for queue in queues), default=0.0),
        consumed_per_s=sum(rate for _, rate in progress),
        may_consume=config.consume_enable,
        retries_max=config.retry_max_times,
        retry_queues=config.retry_queue_nums,
    )


async def delete_group(
    admin: AdminClient, name: str, *, while_in_use: bool = False, dead_letters: bool = False
) -> None:
    """Delete a consumer group with its positions and its retry topic, with ``dead_letters`` these, too.

    Raises InUse for a group with members unless ``while_in_use``, as each of them would make it anew, NotThere,
    ClientError.
    """
    groups = await Groups.registered(admin)
    connections = await each(admin, groups.names, lambda broker: connection_of(groups, name, broker))
    members = {client.client_id for one in connections if one for client in one.connection_set}
    if members and not while_in_use:
        raise InUse(f"consumer group {name!r} has {len(members)} members, among them {min(members)}")
    configs = await each(admin, groups.names, lambda broker: config_of(groups, name, broker))
    if not members and not any(configs):
        raise NotThere(f"no broker knows the consumer group {name!r}")
    fields = {"groupName": name, "cleanOffset": "true", "removeOffset": "true"}
    for broker in groups.names:
        await groups.order(broker, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
    own = [RETRY_PREFIX + name, *([DEAD_LETTER_PREFIX + name] if dead_letters else [])]
    there = set(await admin.topics())
    for topic in own:
        if topic in there:
            await admin.delete_topic(topic)


async def _progress(
    groups: Groups,
    broker: str,
    group: str,
    read: Set[str],
    owners: Mapping[tuple[str, str, int], str],
) -> tuple[list[QueueProgress], float]:
    """Return the consumer group's progress in the queues of a broker group, and the rate at which it consumes.

    The topics are those that its members subscribe to, those in which it has positions at any broker group (`read`),
    and that of its retries.
    """
    wanted = ";".join(sorted({*read, RETRY_PREFIX + group}))
    fields = {"consumerGroup": group, "topicList": wanted}
    response = await groups.read(broker, RequestCode.GET_CONSUME_STATS, fields)
    stats = read_body(response, broker, ConsumeStats.decode)
    topics = sorted({queue.topic for queue in stats.offsets})

    async def times(topic: str) -> tuple[dict[int, int], dict[int, int]]:
        fields = {"topic": topic, "group": group}
        spans = await groups.read(broker, RequestCode.QUERY_CONSUME_TIME_SPAN, fields)
        ends = await groups.read(broker, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        found = read_body(spans, broker, lambda body: decode_body(body, ConsumeTimeSpan))
        ranges = read_body(ends, broker, TopicStats.decode).offsets
        return (
            {span.message_queue.queue_id: span.delay_time for span in found.consume_time_span_set},
            {queue.queue_id: at.min_offset for queue, at in ranges.items()},
        )

    by_topic = dict(zip(topics, await each(groups.admin, topics, times), strict=True))
    queues = []
    for queue, at in stats.offsets.items():
        waits_ms, begins = by_topic[queue.topic]
        begin = begins.get(queue.queue_id, 0)
        lag = max(0, at.broker_offset - max(at.consumer_offset, begin))
        queues.append(
            QueueProgress(
                broker=broker,
                topic=queue.topic,
                queue=queue.queue_id,
                position=at.consumer_offset,
                begin=begin,
                end=at.broker_offset,
                lag=lag,
                lag_s=waits_ms.get(queue.queue_id, 0) / 1000 if lag else 0.0,
                owner=owners.get((broker, queue.topic, queue.queue_id)),
            )
        )
    return queues, stats.consume_tps


# What follows from it ----------------------------------------------------------------------------------------------


def _kind(connections: Iterable[ConsumerConnection]) -> Kind | None:
    for connection in connections:
        return "broadcasting" if connection.message_model == "BROADCASTING" else "clustering"
    return None


def _is_its_own(topic: str) -> bool:
    return topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


def _members(
    connections: Iterable[ConsumerConnection], told: Mapping[str, ConsumerRunningInfo]
) -> tuple[Member, ...]:
    found: dict[str, Member] = {}
    for connection in connections:
        for client in connection.connection_set:
            info = told.get(client.client_id)
            found[client.client_id] = Member(
                client_id=client.client_id,
                address=client.client_address,
                language=client.language,
                version=client.version,
                subscriptions=None if info is None else _wanted(info.subscriptions),
            )
    return tuple(found[client_id] for client_id in sorted(found))


def _wanted(subscriptions: Iterable[SubscriptionData]) -> tuple[Wanted, ...]:
    found = [
        Wanted(
            topic=subscription.topic,
            expression=subscription.sub_string or "*",
            kind=subscription.expression_type or "TAG",
        )
        for subscription in subscriptions
        if not _is_its_own(subscription.topic)
    ]
    return tuple(sorted(found, key=lambda wanted: wanted.topic))


def _conflicts(members: Iterable[Member]) -> tuple[Conflict, ...]:
    """Return the topics about which members that told of themselves disagree."""
    telling = [member for member in members if member.subscriptions is not None]
    topics = sorted({wanted.topic for member in telling for wanted in member.subscriptions or ()})
    conflicts = []
    for topic in topics:
        by_expression: dict[str | None, list[str]] = {}
        for member in telling:
            own = [_in_words(wanted) for wanted in member.subscriptions or () if wanted.topic == topic]
            by_expression.setdefault(own[0] if own else None, []).append(member.client_id)
        if len(by_expression) > 1:
            wanted = sorted(by_expression.items(), key=lambda item: (item[0] is None, item[0] or ""))
            conflicts.append(
                Conflict(
                    topic=topic,
                    wanted=tuple((expression, tuple(clients)) for expression, clients in wanted),
                )
            )
    return tuple(conflicts)


def _in_words(wanted: Wanted) -> str:
    """An expression by which subscriptions can be compared: the order of tags means nothing."""
    if wanted.kind != "TAG":
        return f"{wanted.kind}: {wanted.expression}"
    return " || ".join(sorted(tag.strip() for tag in wanted.expression.split("||")))
