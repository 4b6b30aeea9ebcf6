"""The activity of a cluster: nodes with their rates, topics and consumer groups by how fast they grow and are read.

Two samples are taken, and the rates are what lies between them. A sample costs two requests for each node and one for
each broker group, however many topics there are: ends and consumer offsets come together, of the topics that somebody
consumes.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from broker.client.admin import AdminClient, BrokerStatus
from broker.client.errors import BrokerError, ConnectionFailed
from broker.operations.asking import Groups, Missing, body_at, each
from broker.operations.own_groups import is_made_by_tools
from broker.operations.progress import broker_consume_stats
from broker.remoting.codes import RequestCode
from broker.remoting.node_status import NodeStatus, decode_node_status
from broker.state.topic_rules import is_system_group


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFigures:
    """A node as it tells of itself; rates are those of its last ten seconds. With a ``failure`` it told nothing."""

    broker: str
    address: str
    node: str | None
    role: str | None
    term: int | None
    put_per_s: float
    got_per_s: float
    disk_used_percent: float | None
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Counts at one moment.

    ``stored`` are the messages ever stored, by (topic, broker group); ``passed`` those that a consumer group is past,
    by (consumer group, broker group); ``lag`` those that it is yet to consume, by consumer group. The broker groups in
    ``missing`` did not answer.
    """

    at_ns: int
    nodes: tuple[NodeFigures, ...]
    stored: Mapping[tuple[str, str], int]
    passed: Mapping[tuple[str, str], int]
    lag: Mapping[str, int]
    missing: tuple[Missing, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRate:
    """Messages stored in a topic in a second."""

    topic: str
    stored_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRate:
    """Messages that a consumer group passes in a second, and how many it has yet to."""

    group: str
    consumed_per_s: float
    lag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The cluster between two samples, topics by their rates and consumer groups by their lag, the largest first.

    What broker groups do that were ``missing`` in one of them is not in the rates.
    """

    nodes: tuple[NodeFigures, ...]
    topics: tuple[TopicRate, ...]
    groups: tuple[GroupRate, ...]
    missing: tuple[Missing, ...]


async def sample(groups: Groups) -> Sample:
    """Count once. A node that does not answer is in the sample; raises ClientError where no group does."""
    admin = groups.admin
    nodes = await each(admin, await admin.status(), lambda status: _node(admin, status))
    ends: dict[tuple[str, str, int], int] = {}
    passed, lag = Counter[tuple[str, str]](), Counter[str]()
    consumed = await groups.ask(lambda name: broker_consume_stats(groups, name))
    for broker, found in consumed.items():
        for group, progress in found.groups.items():
            if is_system_group(group) or is_made_by_tools(group):
                continue
            for stats in progress:
                for queue, at in stats.offsets.items():
                    # Each consumer group tells the end of its queues, and several have the same: it counts once.
                    ends[queue.topic, queue.broker_name, queue.queue_id] = at.broker_offset
                    passed[group, broker] += at.consumer_offset
                    # Clients may commit offsets beyond a queue's end.
                    lag[group] += max(0, at.broker_offset - at.consumer_offset)
    stored = Counter[tuple[str, str]]()
    for (topic, broker, _), end in ends.items():
        stored[topic, broker] += end
    return Sample(
        at_ns=admin.core.runtime.now_ns(),
        nodes=tuple(nodes),
        stored=stored,
        passed=passed,
        lag=lag,
        missing=groups.missing,
    )


def between(before: Sample, after: Sample) -> Figures:
    """Return what happened between two samples. What is new in the second has no rate yet."""
    seconds = max((after.at_ns - before.at_ns) / 1e9, 1e-3)

    def rates(earlier: Mapping[tuple[str, str], int], now: Mapping[tuple[str, str], int]) -> dict[str, float]:
        found = defaultdict[str, float](float)
        for (name, broker), count in now.items():
            # Offsets may go back by a reset, and counts with a topic that was made again: neither is a rate below 0.
            grown = max(0, count - earlier.get((name, broker), count))
            found[name] += grown / seconds
        return found

    topics = [
        TopicRate(topic=topic, stored_per_s=rate)
        for topic, rate in rates(before.stored, after.stored).items()
    ]
    groups = [
        GroupRate(group=group, consumed_per_s=rate, lag=after.lag[group])
        for group, rate in rates(before.passed, after.passed).items()
    ]
    return Figures(
        nodes=after.nodes,
        topics=tuple(sorted(topics, key=lambda topic: (-topic.stored_per_s, topic.topic))),
        groups=tuple(sorted(groups, key=lambda group: (-group.lag, group.group))),
        missing=after.missing,
    )


async def _node(admin: AdminClient, registered: BrokerStatus) -> NodeFigures:
    status: NodeStatus | None = None
    failure = registered.failure
    if failure is None:
        try:
            code = RequestCode.TRIVET_NODE_STATUS
            status = await body_at(admin, registered.address, code, decode_node_status)
        except ConnectionFailed as error:
            failure = str(error)
        except BrokerError:
            pass  # another broker than Trivet's, or one that tells this account nothing
    table = registered.table or {}
    total = None if status is None else status.disk_total_bytes
    free = None if status is None else status.disk_free_bytes
    return NodeFigures(
        broker=registered.broker_name,
        address=registered.address,
        node=None if status is None else status.node,
        role=registered.role if status is None else status.role,
        term=None if status is None else status.term,
        put_per_s=_first(table.get("putTps", "")),
        got_per_s=_first(table.get("getTransferredTps", "")),
        disk_used_percent=None if not total or free is None else round(100 * (total - free) / total, 1),
        failure=failure,
    )


def _first(rates: str) -> float:
    """The first of the rates in a figure of the runtime table: that of the last ten seconds."""
    try:
        return float(rates.split()[0])
    except (IndexError, ValueError):
        return 0.0
