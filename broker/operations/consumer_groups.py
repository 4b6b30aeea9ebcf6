"""Consumer groups: which there are, how far each is, who their members are and whether these agree.

The members of a consumer group must subscribe to the same, or some get messages that others were to have. A broker
keeps one subscription for the whole consumer group, the newest; so each member is asked itself
(GET_CONSUMER_RUNNING_INFO), as mqadmin's consumerStatus does. Which queues it holds it tells with that.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from broker.operations.asking import Groups, as_json, each
from broker.operations.errors import InUse, NotThere
from broker.operations.members import config_of, connection_of, consumed_topics, running_infos
from broker.operations.own_groups import is_made_by_tools
from broker.operations.progress import ConsumedQueue, Range, broker_consume_stats, lags, ranges_of
from broker.operations.topics import delete_topic
from broker.remoting.admin_bodies import (
    BrokerConsumeStats,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    ConsumeTimeSpan,
)
from broker.remoting.bodies import (
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from broker.remoting.codes import RequestCode
from broker.state.topic_rules import (
    CONSUMER_GROUP_PREFIXES,
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    is_system_group,
)

Kind = Literal["clustering", "broadcasting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """One consumer group in a list. ``kind`` is None while it has no members: nobody else knows it.

    ``lag`` counts the messages that it has yet to consume in all queues that it reads, as `describe_group` does;
    ``consumed_per_s`` is the rate that its broker groups measured last.
    """

    name: str
    kind: Kind | None
    members: int
    topics: tuple[str, ...]
    lag: int
    consumed_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The subscription of a member to a topic: ``expression`` are tags, or a condition if ``kind`` is SQL92."""

    topic: str
    expression: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A client of the consumer group. ``subscriptions`` is None if the client does not tell, else sorted by topic."""

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

    ``position`` is the next offset that the consumer group reads, 0 where it has none yet; ``lag`` how many messages it
    has yet to read of those that the queue keeps, without a consumer offset from where its first pull would begin
    (`broker.operations.progress`), ``lag_s`` how long the first of them has waited; ``owner`` is the client that has
    the queue, None if nobody says so.
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

    A consumer group that is broadcast to has no ``queues`` here: each of its members keeps offsets of its own.
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


async def list_groups(groups: Groups, *, system: bool = False) -> list[GroupSummary]:
    """Return the consumer groups of the cluster, sorted; those that every broker has by itself only if ``system``.

    Figures are without the broker groups that are missing afterwards. Raises ClientError.
    """

    async def tables(name: str) -> tuple[SubscriptionGroupTable, BrokerConsumeStats]:
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        known = await groups.body(name, code, {}, as_json(SubscriptionGroupTable))
        return known, await broker_consume_stats(groups, name)

    found = await groups.ask(tables)
    names = sorted(
        {
            group
            for known, progress in found.values()
            for group in (*known.subscription_group_table, *progress.groups)
            if system or not (is_system_group(group) or is_made_by_tools(group))
        }
    )

    async def members(name: str) -> list[ConsumerConnection | None]:
        return await each(groups.admin, names, lambda group: connection_of(groups, group, name))

    connections = {
        (group, name): connection
        for name, of_groups in (await groups.ask(members)).items()
        for group, connection in zip(names, of_groups, strict=True)
    }
    rates = {
        group: [one for name in groups.names for one in found[name][1].groups.get(group, ())]
        for group in names
    }
    here = {
        group: [connection for name in groups.names if (connection := connections[group, name])]
        for group in names
    }
    # Whoever reads a topic in one broker group reads it in all: where no offset is noted, nothing was read yet.
    read = {
        group: {
            *(topic for connection in here[group] for topic in connection.subscription_table),
            *(queue.topic for one in rates[group] for queue in one.offsets),
            RETRY_PREFIX + group,
        }
        for group in names
    }
    lag = await _lags_in_all(groups, {name: found[name][1] for name in groups.names}, read, here)
    return [
        GroupSummary(
            name=group,
            kind=_kind(here[group]),
            members=len({client.client_id for one in here[group] for client in one.connection_set}),
            topics=tuple(sorted(topic for topic in read[group] if not _is_its_own(topic))),
            lag=lag[group],
            consumed_per_s=sum(one.consume_tps for one in rates[group]),
        )
        for group in names
    ]


async def _lags_in_all(
    groups: Groups,
    progress: Mapping[str, BrokerConsumeStats],
    read: Mapping[str, Set[str]],
    connections: Mapping[str, Sequence[ConsumerConnection]],
) -> dict[str, int]:
    """Return the lag of each consumer group in the topics that it has `read`, by its `progress` at broker groups.

    A consumer group that is broadcast to has none here: each of its members keeps offsets of its own.
    """
    counted = [group for group, found in connections.items() if _kind(found) != "broadcasting"]
    topics = sorted({topic for group in counted for topic in read[group]})
    first = {group: next(iter(found), None) for group, found in connections.items()}

    async def count(broker: str) -> dict[ConsumedQueue, int]:
        kept = await each(groups.admin, topics, lambda topic: ranges_of(groups, broker, topic))
        ranges = {
            (topic, queue): at
            for topic, queues in zip(topics, kept, strict=True)
            for queue, at in queues.items()
        }
        consumer_offsets = {
            ConsumedQueue(group, topic, queue): 0
            for group in counted
            for topic, queue in ranges
            if topic in read[group]
        }
        for group in counted:
            for one in progress[broker].groups.get(group, ()):
                for queue, at in one.offsets.items():
                    place = ConsumedQueue(group, queue.topic, queue.queue_id)
                    if place in consumer_offsets:  # topics with more queues than are read tell of these, too
                        consumer_offsets[place] = at.consumer_offset
        return await lags(groups, broker, consumer_offsets, ranges, first)

    total = dict.fromkeys(connections, 0)
    for behind in (await groups.ask(count)).values():
        for place, lag in behind.items():
            total[place.group] += lag
    return total


async def describe_group(groups: Groups, name: str) -> GroupDetail:
    """Return a consumer group with its members, what these subscribe to, and its progress in every queue.

    Queues of broker groups that are missing afterwards are not told of. Raises NotThere for a consumer group that no
    broker knows, ClientError.
    """
    configs = await groups.ask(lambda broker: config_of(groups, name, broker))
    connections = await groups.ask(lambda broker: connection_of(groups, name, broker))
    here = [connection for connection in connections.values() if connection is not None]
    known = [config for config in configs.values() if config is not None]
    if not known and not here:
        raise NotThere(f"no broker knows the consumer group {name!r}{groups.in_doubt()}")
    told = await running_infos(groups, name, connections)
    members = _members(here, told)
    owners = {
        (queue.broker_name, queue.topic, queue.queue_id): client_id
        for client_id, info in sorted(told.items())
        for queue in info.queues
    }
    kind = _kind(here)
    subscribed = {topic for one in here for topic in one.subscription_table}
    consumed = await groups.ask(lambda broker: consumed_topics(groups, name, broker))
    # Whoever reads a topic in one broker group reads it in all: where no offset is noted, nothing was read yet.
    read = subscribed.union(*consumed.values())
    progress = (
        {}  # each member keeps its own offsets
        if kind == "broadcasting"
        else await groups.ask(lambda broker: _progress(groups, broker, name, read, owners, here))
    )
    queues = tuple(
        sorted(
            (queue for found, _ in progress.values() for queue in found),
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
        consumed_per_s=sum(rate for _, rate in progress.values()),
        may_consume=config.consume_enable,
        retries_max=config.retry_max_times,
        retry_queues=config.retry_queue_nums,
    )


async def delete_group(
    groups: Groups, name: str, *, while_in_use: bool = False, dead_letters: bool = False
) -> list[str]:
    """Delete a consumer group with its offsets and its retry topic, with ``dead_letters`` these, too.

    Returns the broker groups that have; those that are missing keep all of it until the same is ordered again. Raises
    InUse for a consumer group with members unless ``while_in_use``, as each of them would make it anew, NotThere,
    ClientError.
    """
    connections = await groups.ask(lambda broker: connection_of(groups, name, broker))
    members = {client.client_id for one in connections.values() if one for client in one.connection_set}
    if members and not while_in_use:
        raise InUse(f"consumer group {name!r} has {len(members)} members, among them {min(members)}")
    configs = await groups.ask(lambda broker: config_of(groups, name, broker))
    if not members and not any(configs.values()):
        raise NotThere(f"no broker knows the consumer group {name!r}{groups.in_doubt()}")
    fields = {"groupName": name, "cleanOffset": "true", "removeOffset": "true"}
    await groups.ask(lambda broker: groups.order(broker, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields))
    # Behind the settings: a member that is left would have the retry topic made again by its next heartbeat.
    own = [RETRY_PREFIX + name, *([DEAD_LETTER_PREFIX + name] if dead_letters else [])]
    there = set(await groups.admin.topics())
    for topic in own:
        if topic in there:
            await delete_topic(groups, topic)
    return list(groups.names)


async def _progress(
    groups: Groups,
    broker: str,
    group: str,
    read: Set[str],
    owners: Mapping[tuple[str, str, int], str],
    connections: Sequence[ConsumerConnection],
) -> tuple[list[QueueProgress], float]:
    """Return the consumer group's progress in the queues of a broker group, and the rate at which it consumes.

    The topics are those that its members subscribe to, those in which it has offsets at any broker group (`read`),
    and that of its retries.
    """
    # Without names a broker tells of those topics only in which the consumer group has offsets there.
    wanted = ";".join(sorted({*read, RETRY_PREFIX + group}))
    fields = {"consumerGroup": group, "topicList": wanted}
    stats = await groups.body(broker, RequestCode.GET_CONSUME_STATS, fields, ConsumeStats.decode)
    topics = sorted({queue.topic for queue in stats.offsets})

    # The statistics say neither since when a queue's next message waits, nor where the queue begins.
    async def times(topic: str) -> tuple[dict[int, int], dict[int, Range]]:
        fields = {"topic": topic, "group": group}
        code = RequestCode.QUERY_CONSUME_TIME_SPAN
        found = await groups.body(broker, code, fields, as_json(ConsumeTimeSpan))
        return (
            {span.message_queue.queue_id: span.delay_time for span in found.consume_time_span_set},
            await ranges_of(groups, broker, topic),
        )

    by_topic = dict(zip(topics, await each(groups.admin, topics, times), strict=True))
    # The end that was told together with the offset: a later one would count as lag what came in between.
    ranges = {
        (queue.topic, queue.queue_id): Range(
            by_topic[queue.topic][1].get(queue.queue_id, Range(0, 0)).begin, at.broker_offset
        )
        for queue, at in stats.offsets.items()
    }
    consumer_offsets = {
        ConsumedQueue(group, queue.topic, queue.queue_id): at.consumer_offset
        for queue, at in stats.offsets.items()
    }
    behind = await lags(groups, broker, consumer_offsets, ranges, {group: next(iter(connections), None)})
    queues = []
    for place, lag in behind.items():
        begin, end = ranges[place.topic, place.queue]
        waits_ms = by_topic[place.topic][0].get(place.queue, 0)
        queues.append(
            QueueProgress(
                broker=broker,
                topic=place.topic,
                queue=place.queue,
                position=consumer_offsets[place],
                begin=begin,
                end=end,
                lag=lag,
                lag_s=waits_ms / 1000 if lag else 0.0,
                owner=owners.get((broker, place.topic, place.queue)),
            )
        )
    return queues, stats.consume_tps


# What follows from it ----------------------------------------------------------------------------------------------


def _kind(connections: Iterable[ConsumerConnection]) -> Kind | None:
    for connection in connections:
        return "broadcasting" if connection.message_model == "BROADCASTING" else "clustering"
    return None


def _is_its_own(topic: str) -> bool:
    return topic.startswith(CONSUMER_GROUP_PREFIXES)


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
