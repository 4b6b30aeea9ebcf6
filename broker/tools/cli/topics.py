"""``trivet topic``: create, list and describe topics."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter

from broker.tools.cli.errors import USAGE, CommandError
from broker.tools.cli.options import DEFAULT_SERVERS, AsJson, Servers

app = App(name="topic", help="Create, list and describe topics.", backend="trio")

_SYSTEM_PREFIXES = (
    "%",
    "TRIVET_SYS_",
    "RMQ_SYS_",
    "rmq_sys_",
    "SCHEDULE_TOPIC_",
    "TRANS_CHECK_MAX_TIME_TOPIC",
)
_SYSTEM_TOPICS = frozenset(
    {"TBW102", "SELF_TEST_TOPIC", "BenchmarkTest", "OFFSET_MOVED_EVENT", "DefaultCluster"}
)


@app.command
async def create(
    topic: Annotated[str, Parameter(help="Name: up to 127 letters, digits, _, - and %.")],
    /,
    *,
    queues: Annotated[int, Parameter(help="Queues for reading and writing.")] = 8,
    permission: Annotated[
        Literal["read", "write", "read-write"], Parameter(help="What clients may do with the topic.")
    ] = "read-write",
    ordered: Annotated[bool, Parameter(help="Mark the topic as ordered.", negative="")] = False,
    cluster: Annotated[str | None, Parameter(help="Only on this cluster's brokers.")] = None,
    groups: Annotated[
        str | None, Parameter(help="Only in these groups, with commas between them; others stay as they are.")
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Create a topic, or change it, and wait until the name server routes it.

    Each group has so many queues of it: with several groups a topic has several times as many.
    """
    from broker.tools.cli.output import print_json

    if not 1 <= queues <= 1024:
        raise CommandError(f"--queues {queues}: from 1 to 1024", USAGE)
    named = None if groups is None else [name for name in groups.split(",") if name]
    if named == []:
        raise CommandError("--groups: names of groups, with commas between them", USAGE)
    if named is not None and cluster is not None:
        raise CommandError("--groups and --cluster: one of them", USAGE)
    bits = {"read": 4, "write": 2, "read-write": 6}[permission]
    async with servers.admin() as admin:
        await admin.create_topic(
            topic, queues=queues, perm=bits, cluster=cluster, groups=named, ordered=ordered
        )
    if json:
        made: dict[str, object] = {"topic": topic, "queues": queues, "permission": permission}
        print_json({**made, "ordered": ordered, **({} if named is None else {"groups": named})})
    else:
        where = "" if named is None else f" in {', '.join(named)}"
        print(f"topic {topic} with {queues} queues{where}")
    return 0


@app.command(name="list")
async def list_topics(
    *,
    everything: Annotated[
        bool, Parameter(name="--all", negative="", help="Also the topics that the system made.")
    ] = False,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """List the topics that the name server knows."""
    from broker.tools.cli.output import print_json

    async with servers.admin() as admin:
        info = await admin.cluster_info()
        topics = await admin.topics()
    hidden = _SYSTEM_TOPICS | info.broker_table.keys() | info.cluster_table.keys()
    shown = [name for name in topics if everything or not (name in hidden or _is_system(name))]
    if json:
        print_json({"topics": shown})
    else:
        for name in shown:
            print(name)
    return 0


@app.command
async def describe(
    topic: Annotated[str, Parameter(help="Name of the topic.")],
    /,
    *,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Show the queues of a topic, with the offsets of the messages that they hold."""
    from broker.tools.cli.output import print_json, print_table

    async with servers.admin() as admin:
        route = await admin.route(topic)
        queues = await admin.describe_topic(topic)
    rows = [
        {
            "broker": status.queue.broker_name,
            "queue": status.queue.queue_id,
            "min_offset": status.min_offset,
            "max_offset": status.max_offset,
            "messages": status.max_offset - status.min_offset,
            "last_update_ms": status.last_update_ms or None,
        }
        for status in queues
    ]
    if json:
        leaders = {name: route.address(name) for name in sorted(route.brokers)}
        print_json({"topic": topic, "leaders": leaders, "queues": rows})
    else:
        columns = ["broker", "queue", "min_offset", "max_offset", "messages"]
        print_table(columns, [[row[column] for column in columns] for row in rows], title=topic)
    return 0


def _is_system(topic: str) -> bool:
    return topic.startswith(_SYSTEM_PREFIXES) or topic.endswith("_REPLY_TOPIC")
