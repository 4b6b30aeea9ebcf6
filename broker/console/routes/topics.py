"""Topics: which there are, how much they keep, their queues; changed and deleted."""

from collections.abc import Container
from typing import Annotated, Final

import msgspec

from broker.client.errors import BrokerError, ClientError, NoRoute
from broker.console.asking import InPart, Order, Question, in_part
from broker.console.parameters import BrokerName, Nothing, Parameters, TopicName
from broker.console.seats import Seat
from broker.operations.asking import Groups, each
from broker.operations.errors import InUse
from broker.operations.topics import (
    TopicStats,
    alter_topic,
    create_topic,
    delete_topic,
    plan_topic,
    topic_queues,
    topic_stats,
    what_it_changes,
)
from broker.remoting.codes import ResponseCode
from broker.state.topic_rules import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_topic

COUNTED_MAX: Final = 300
"""Topics whose queues are asked for in one list. The others are named."""

Queues = Annotated[int, msgspec.Meta(ge=1, le=1024)]


class TopicLine(msgspec.Struct, frozen=True, kw_only=True):
    """A topic in the list. Figures are None where they were not asked for."""

    name: str
    kind: str
    """``topic``, ``retry``, ``dead letters`` or ``system``."""
    queues: int | None = None
    kept: int | None = None
    end: int | None = None
    """The sum of its queues' ends: what it grows by is what was stored."""
    newest_ms: int | None = None


class OneTopic(Parameters, frozen=True):
    """A topic by its name."""

    topic: TopicName


class NewTopic(OneTopic, frozen=True):
    """A topic to be created, in all broker groups or in one cluster's."""

    queues: Queues = 8
    ordered: bool = False


class AlteredTopic(OneTopic, frozen=True):
    """The changes of a topic; what is None stays."""

    queues: Queues | None = None
    may_read: bool | None = None
    may_write: bool | None = None
    broker: BrokerName | None = None


class DeletedTopic(OneTopic, frozen=True):
    """A topic to be deleted, even with consumers if so wished."""

    while_in_use: bool = False


async def list_topics(seat: Seat, parameters: Nothing) -> InPart[list[TopicLine]]:
    """Return all topics that the account may see, the users' own first. Raises ClientError."""
    info = await seat.admin.cluster_info()
    groups = Groups(seat.admin, info)
    own = info.broker_table.keys() | info.cluster_table.keys()
    kinds = {name: _kind(name, own) for name in await seat.admin.topics()}
    names = sorted(kinds, key=lambda name: (kinds[name] != "topic", kinds[name], name))

    refusals: list[BrokerError] = []

    async def line(name: str) -> TopicLine | None:
        try:
            queues = (await topic_queues(groups, name)).queues
        except NoRoute:  # it has gone meanwhile, or belongs to no broker
            return TopicLine(name=name, kind=kinds[name])
        except BrokerError as error:
            if error.code != ResponseCode.NO_PERMISSION:
                if error.retry_may_help and groups.names:
                    return TopicLine(name=name, kind=kinds[name])
                raise
            refusals.append(error)  # a name server without accounts names it to everybody
            return None
        except ClientError:
            if not groups.names:
                raise
            return TopicLine(name=name, kind=kinds[name])  # only broker groups that are missing have it
        return TopicLine(
            name=name,
            kind=kinds[name],
            queues=len(queues),
            kept=sum(queue.max_offset - queue.min_offset for queue in queues),
            end=sum(queue.max_offset for queue in queues),
            newest_ms=max((queue.last_update_ms for queue in queues), default=0) or None,
        )

    found = await each(seat.admin, names[:COUNTED_MAX], line)
    counted = [one for one in found if one is not None]
    if refusals and not counted:
        raise refusals[0]
    uncounted = [TopicLine(name=name, kind=kinds[name]) for name in names[COUNTED_MAX:]]
    return InPart(counted + uncounted, groups.missing)


async def describe_topic(seat: Seat, parameters: OneTopic) -> InPart[TopicStats]:
    """One topic with its queues and consumers."""
    return await in_part(seat, lambda groups: topic_stats(groups, parameters.topic))


async def create(seat: Seat, parameters: NewTopic) -> InPart[TopicStats]:
    """Create a topic; one that is there with other settings stays as it is. Raises InUse then, or ClientError."""

    async def in_all(groups: Groups) -> TopicStats:
        wanted = plan_topic(groups, parameters.topic, queues=parameters.queues, ordered=parameters.ordered)
        if others := await what_it_changes(groups, wanted):
            raise InUse(
                f"topic {wanted.topic} exists with other settings in {', '.join(others)}: change it on its page"
            )
        await create_topic(groups, wanted)
        return await topic_stats(groups, parameters.topic)

    return await in_part(seat, in_all)


async def alter(seat: Seat, parameters: AlteredTopic) -> InPart[list[str]]:
    """Change a topic; returns the broker groups that did."""
    return await in_part(
        seat,
        lambda groups: alter_topic(
            groups,
            parameters.topic,
            queues=parameters.queues,
            may_read=parameters.may_read,
            may_write=parameters.may_write,
            brokers=None if parameters.broker is None else [parameters.broker],
        ),
    )


async def delete(seat: Seat, parameters: DeletedTopic) -> InPart[list[str]]:
    """Delete a topic with its messages; returns the broker groups that have."""
    return await in_part(
        seat,
        lambda groups: delete_topic(groups, parameters.topic, while_in_use=parameters.while_in_use),
    )


def _kind(name: str, own: Container[str]) -> str:
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DEAD_LETTER_PREFIX):
        return "dead letters"
    return "system" if is_system_topic(name, own) else "topic"


ROUTES = (
    Question("/api/topics", Nothing, list_topics),
    Question("/api/topics/{topic}", OneTopic, describe_topic),
    Order("/api/topics/{topic}/create", NewTopic, create, "create topic"),
    Order("/api/topics/{topic}/alter", AlteredTopic, alter, "alter topic"),
    Order("/api/topics/{topic}/delete", DeletedTopic, delete, "delete topic"),
)
