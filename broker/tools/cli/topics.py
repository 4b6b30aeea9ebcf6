"""``trivet topic``: create, list, describe, alter, move and delete topics."""

from typing import Annotated, Literal

from cyclopts import App, Parameter

from broker.tools.cli.errors import USAGE, CommandError
from broker.tools.cli.options import DEFAULT_SERVERS, AsJson, OnlyGroups, Servers, Topic
from broker.tools.cli.orders import Yes, confirm, naming
from broker.tools.cli.output import print_json, print_table, tell_missing, visible
from broker.tools.cli.topic_moves import move

app = App(name="topic", help="Create, list, describe, alter, move and delete topics.", backend="trio")
app.command(move)


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
    groups: OnlyGroups = None,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Create a topic, or change it, and wait until the name server routes it.

    Each group gets this number of queues: with several groups a topic has several times as many. A topic that exists
    with other settings is changed only if you say so. Groups that have no leader now cannot create it; all others do.
    They are named, and the exit code is 1: run the same command again for them.
    """
    from broker.operations.topics import create_topic, plan_topic, what_it_changes
    from broker.state.topic_rules import InvalidNameError, check_topic_name

    try:
        check_topic_name(topic)
    except InvalidNameError as error:
        raise CommandError(str(error), USAGE) from None
    if not 1 <= queues <= 1024:
        raise CommandError(f"--queues {queues}: from 1 to 1024", USAGE)
    named = _names_in(groups)
    if named is not None and cluster is not None:
        raise CommandError("--groups and --cluster: one of them", USAGE)
    bits = {"read": 4, "write": 2, "read-write": 6}[permission]
    async with servers.groups() as there:
        wanted = plan_topic(
            there, topic, queues=queues, perm=bits, ordered=ordered, cluster=cluster, brokers=named
        )
        # A topic that is there may have more queues, with messages in them that would not be read any more.
        if not yes and (changed := await what_it_changes(there, wanted)):
            confirm(f"Topic {topic} exists with other settings in {', '.join(changed)}. Change it?", yes=yes)
        created = await create_topic(there, wanted)
    if json:
        made = {"topic": topic, "queues": queues, "permission": permission, "ordered": ordered}
        print_json({**made, "groups": created}, there.missing)
    else:
        where = "" if named is None and not there.missing else f" in {', '.join(created)}"
        print(f"topic {topic} with {queues} queues{where}")
    return tell_missing(there.missing)


@app.command(name="list")
async def list_topics(
    *,
    everything: Annotated[
        bool, Parameter(name="--all", negative="", help="Also the topics that the system made.")
    ] = False,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """List the topics that the name server knows.

    Groups that have no leader are named, and the exit code is 1: topics that only they have may not be in the list.
    """
    from broker.operations.asking import leaderless
    from broker.state.topic_rules import CONSUMER_GROUP_PREFIXES, is_system_topic

    async with servers.admin() as admin:
        info = await admin.cluster_info()
        topics = await admin.topics()
    missing = leaderless(info)
    names = info.broker_table.keys() | info.cluster_table.keys()
    shown = [
        name
        for name in topics
        if everything or not (name.startswith(CONSUMER_GROUP_PREFIXES) or is_system_topic(name, names))
    ]
    if json:
        print_json({"topics": shown}, missing)
    else:
        for name in shown:
            print(visible(name))
    return tell_missing(missing)


@app.command
async def describe(
    topic: Topic,
    /,
    *,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Show the queues of a topic, with the offsets of the messages that they hold.

    Groups that do not answer, because they have no leader, are named, and the exit code is 1.
    """
    from broker.operations.topics import topic_queues

    async with servers.groups() as groups:
        found = await topic_queues(groups, topic)
    rows = [
        {
            "broker": status.queue.broker_name,
            "queue": status.queue.queue_id,
            "min_offset": status.min_offset,
            "max_offset": status.max_offset,
            "messages": status.max_offset - status.min_offset,
            "last_update_ms": status.last_update_ms or None,
        }
        for status in found.queues
    ]
    if json:
        print_json({"topic": topic, "leaders": found.leaders, "queues": rows}, groups.missing)
    else:
        columns = ["broker", "queue", "min_offset", "max_offset", "messages"]
        print_table(columns, [[row[column] for column in columns] for row in rows], title=topic)
    return tell_missing(groups.missing)


@app.command
async def stats(
    topic: Topic,
    /,
    *,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Show settings, messages and rates of a topic by broker group, and the consumer groups that read it.

    Rates are those of the last minute. Groups that do not answer, because they have no leader, are named, and the exit
    code is 1.
    """
    from broker.operations.topics import topic_stats

    async with servers.groups() as groups:
        found = await topic_stats(groups, topic)
    if json:
        print_json(found, groups.missing)
        return tell_missing(groups.missing)
    print_table(
        ["group", "queues", "permission", "ordered", "messages", "per second", "bytes per second"],
        [
            [
                at.broker,
                f"{at.read_queues}"
                if at.read_queues == at.write_queues
                else f"{at.read_queues} to read, {at.write_queues} to write",
                "-".join(name for name, may in (("read", at.may_read), ("write", at.may_write)) if may)
                or "none",
                at.ordered,
                sum(queue.end - queue.begin for queue in at.queues),
                round(at.messages_per_s, 1),
                round(at.bytes_per_s, 1),
            ]
            for at in found.brokers
        ],
        title=topic,
    )
    print(visible(f"consumer groups: {', '.join(found.groups) or 'none'}"))
    return tell_missing(groups.missing)


@app.command
async def alter(
    topic: Topic,
    /,
    *,
    queues: Annotated[int | None, Parameter(help="Queues for reading and writing, in each group.")] = None,
    permission: Annotated[
        Literal["none", "read", "write", "read-write"] | None,
        Parameter(help="What clients may do with the topic."),
    ] = None,
    ordered: Annotated[bool | None, Parameter(help="Whether it is marked as ordered.")] = None,
    groups: OnlyGroups = None,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Change what is given of a topic; the rest stays as it is.

    With fewer queues than before, what the last ones keep is not read any more. Groups that have no leader now cannot
    change it; all others do. They are named, and the exit code is 1: run the same command again for them.
    """
    from broker.operations.topics import alter_topic

    if queues is not None and not 1 <= queues <= 1024:
        raise CommandError(f"--queues {queues}: from 1 to 1024", USAGE)
    if queues is None and permission is None and ordered is None:
        raise CommandError("give at least one of --queues, --permission and --ordered", USAGE)
    named = _names_in(groups)
    wanted = {"queues": queues, "permission": permission, "ordered": ordered}
    change = ", ".join(f"{name} {value}" for name, value in wanted.items() if value is not None)
    confirm(f"Change topic {topic} to {change}?", yes=yes)
    async with servers.groups() as there:
        changed = await alter_topic(
            there,
            topic,
            queues=queues,
            may_read=None if permission is None else "read" in permission,
            may_write=None if permission is None else "write" in permission,
            ordered=ordered,
            brokers=named,
        )
    if json:
        print_json({"topic": topic, "groups": changed}, there.missing)
    else:
        print(f"topic {topic} is changed in {', '.join(changed)}")
    return tell_missing(there.missing)


@app.command
async def delete(
    topic: Topic,
    /,
    *,
    force: Annotated[bool, Parameter(negative="", help="Also while consumers subscribe to it.")] = False,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Delete a topic everywhere, with its messages and the consumer offsets in it.

    A topic that consumers subscribe to now is refused: a broker that creates topics by itself would make it anew.
    Groups that have no leader now keep it. They are named, and the exit code is 1: run the same command again for them.
    """
    from broker.operations.topics import delete_topic

    confirm(f"Delete topic {topic} with all its messages?", yes=yes)
    async with servers.groups() as groups:
        with naming("--force"):
            deleted = await delete_topic(groups, topic, while_in_use=force)
    if json:
        print_json({"topic": topic, "groups": deleted}, groups.missing)
    else:
        print(f"topic {topic} is deleted" + (f" in {', '.join(deleted)}" if groups.missing else ""))
    return tell_missing(groups.missing)


def _names_in(groups: str | None) -> list[str] | None:
    """The names that --groups gives, None without it. Raises CommandError."""
    if groups is None:
        return None
    names = [name for name in groups.split(",") if name]
    if not names:
        raise CommandError("--groups: names of groups, with commas between them", USAGE)
    return names
