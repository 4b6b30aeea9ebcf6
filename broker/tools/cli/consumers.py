"""``trivet consumer``: consumer groups, their lag and members; sending one elsewhere; deleting one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from broker.tools.cli.errors import USAGE, CommandError
from broker.tools.cli.moments import moment_ms, span_text
from broker.tools.cli.options import DEFAULT_SERVERS, AsJson, ConsumerGroup, OnlyBroker, OnlyQueue, Servers
from broker.tools.cli.orders import Yes, confirm, naming
from broker.tools.cli.output import print_json, print_table, tell_missing, visible

if TYPE_CHECKING:
    from broker.operations.consumer_groups import GroupDetail
    from broker.operations.resets import Target

app = App(
    name="consumer",
    help="Show consumer groups, their lag and members; send one elsewhere; delete one.",
    backend="trio",
)


@app.command(name="list")
async def list_groups(
    *,
    everything: Annotated[
        bool, Parameter(name="--all", negative="", help="Also those that the system made.")
    ] = False,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """List the consumer groups with their members, topics and lag: the messages that each has yet to consume.

    A queue in which a group has no offset yet counts from where its first pull would begin. Broker groups that do not
    answer, because they have no leader, are named, and the exit code is 1.
    """
    from broker.operations.consumer_groups import list_groups

    async with servers.groups() as brokers:
        groups = await list_groups(brokers, system=everything)
    if json:
        print_json({"groups": groups}, brokers.missing)
    else:
        print_table(
            ["group", "kind", "members", "lag", "per second", "topics"],
            [
                [
                    group.name,
                    group.kind,
                    group.members,
                    group.lag,
                    round(group.consumed_per_s, 1),
                    ", ".join(group.topics),
                ]
                for group in groups
            ],
        )
    return tell_missing(brokers.missing)


@app.command
async def describe(
    group: ConsumerGroup,
    /,
    *,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Show members, what they subscribe to, and the group's offset in every queue.

    Members that disagree about a subscription are named, and the exit code is 1: some of them get messages that others
    were to have. A member that does not tell of itself within 3 s is shown without its subscriptions.
    """
    from broker.operations.consumer_groups import describe_group

    async with servers.groups() as brokers:
        found = await describe_group(brokers, group)
    if json:
        print_json(found, brokers.missing)
        return tell_missing(brokers.missing) or (1 if found.conflicts else 0)
    print(f"{found.name}: {found.kind or 'no members'}, lag {found.lag:,}, {span_text(found.lag_s)} behind")
    if not found.may_consume:
        print("its settings forbid it to consume (consume_enable)")
    if found.members:
        print_table(
            ["member", "address", "language", "version", "subscriptions"],
            [
                [
                    member.client_id,
                    member.address,
                    member.language,
                    str(member.version),
                    "does not tell"
                    if member.subscriptions is None
                    else ", ".join(f"{wanted.topic}: {wanted.expression}" for wanted in member.subscriptions),
                ]
                for member in found.members
            ],
        )
    _print_queues(found)
    for conflict in found.conflicts:
        print(visible(f"conflict: members subscribe to different things of topic {conflict.topic}"))
        for expression, clients in conflict.wanted:
            print("    " + visible(f"{expression or 'nothing of it'}: {', '.join(clients)}"))
    return tell_missing(brokers.missing) or (1 if found.conflicts else 0)


@app.command
async def lag(
    group: ConsumerGroup,
    /,
    *,
    over: Annotated[
        int | None, Parameter(name="--max", help="Exit code 1 if the consumer group lags by more messages.")
    ] = None,
    over_s: Annotated[
        float | None, Parameter(name="--max-seconds", help="Exit code 1 if the oldest has waited longer.")
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Show how far a consumer group lags, by queue and in all: messages, and how long the oldest of them has waited.

    Broker groups that do not answer, because they have no leader, are named, and the exit code is 1.
    """
    from broker.operations.consumer_groups import describe_group

    async with servers.groups() as brokers:
        found = await describe_group(brokers, group)
    if json:
        lag = {"group": found.name, "lag": found.lag, "lag_s": found.lag_s, "queues": found.queues}
        print_json(lag, brokers.missing)
    else:
        _print_queues(found)
        print(f"{found.lag:,} messages, {span_text(found.lag_s)}")
    is_over = (over is not None and found.lag > over) or (over_s is not None and found.lag_s > over_s)
    return tell_missing(brokers.missing) or (1 if is_over else 0)


@app.command
async def reset(
    group: ConsumerGroup,
    topic: Annotated[str, Parameter(help="The topic in which it goes elsewhere.")],
    /,
    *,
    to: Annotated[
        Literal["earliest", "latest"] | None, Parameter(help="The first message that is kept, or the end.")
    ] = None,
    at: Annotated[
        str | None,
        Parameter(
            help="The first message stored since: 2030-01-31T12:00:00, or 15m for a quarter of an hour ago."
        ),
    ] = None,
    offset: Annotated[int | None, Parameter(help="This offset.")] = None,
    by: Annotated[
        int | None, Parameter(help="This many messages on from where it is; back if negative.")
    ] = None,
    queue: OnlyQueue = None,
    broker: OnlyBroker = None,
    dry_run: Annotated[bool, Parameter(negative="", help="Only show what it would skip or repeat.")] = False,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Send a consumer group elsewhere in a topic, after showing what that skips or repeats.

    Give one of --to, --at, --offset and --by. Members that run follow at their next pull; without members it goes on
    there when one comes. Offsets outside of what a queue keeps mean its first or its end. The reset is done in all
    other broker groups if some do not answer, because they have no leader. These are named, and the exit code is 1: run
    the same command again for them. With --by nothing is done then, as a repetition would shift the others again.
    """
    from broker.operations.resets import preview_reset
    from broker.operations.resets import reset as order

    target = _target(to, at, offset, by, broker, queue)
    async with servers.groups() as brokers:
        resets = await preview_reset(brokers, group, topic, target)
        skipped = sum(one.skipped for one in resets)
        repeated = sum(one.repeated for one in resets)
        if not json:
            columns = ["broker", "queue", "from", "to", "skipped", "repeated"]
            rows = [
                [one.broker, one.queue, one.from_offset, one.to_offset, one.skipped, one.repeated]
                for one in resets
            ]
            print_table(columns, rows, title=f"{group} in {topic}")
        if not dry_run:
            confirm(
                f"{group} will skip {skipped:,} messages of {topic} and repeat {repeated:,}. Reset it?",
                yes=yes,
            )
            # To the very offsets that were shown and confirmed, whatever came in meanwhile.
            resets = await order(brokers, group, resets)
    if json:
        told = {"group": group, "topic": topic, "done": not dry_run, "queues": resets}
        print_json(told, brokers.missing)
    elif not dry_run:
        print(f"{group} goes on there in {len(resets)} queue{'s' if len(resets) != 1 else ''}")
    return tell_missing(brokers.missing)


@app.command
async def delete(
    group: ConsumerGroup,
    /,
    *,
    dead_letters: Annotated[bool, Parameter(negative="", help="Delete its dead letters, too.")] = False,
    force: Annotated[bool, Parameter(negative="", help="Also while it has members.")] = False,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Delete a consumer group: its settings, its offsets, its retry topic.

    One with members is refused, as each of them would make it anew at its next heartbeat. Broker groups that do not
    answer, because they have no leader, keep it. They are named, and the exit code is 1: run the same command again for
    them.
    """
    from broker.operations.consumer_groups import delete_group

    confirm(f"Delete consumer group {group} with its offsets?", yes=yes)
    async with servers.groups() as brokers:
        with naming("--force"):
            deleted = await delete_group(brokers, group, while_in_use=force, dead_letters=dead_letters)
    if json:
        print_json({"group": group, "groups": deleted}, brokers.missing)
    else:
        print(f"consumer group {group} is deleted" + (f" in {', '.join(deleted)}" if brokers.missing else ""))
    return tell_missing(brokers.missing)


def _target(
    to: Literal["earliest", "latest"] | None,
    at: str | None,
    offset: int | None,
    by: int | None,
    broker: str | None,
    queue: int | None,
) -> Target:
    """The target that the options name. Raises CommandError for none and for several."""
    from broker.operations.resets import Target

    if sum(choice is not None for choice in (to, at, offset, by)) != 1:
        raise CommandError("give one of --to, --at, --offset and --by", USAGE)
    if to is not None:
        return Target(kind=to, broker=broker, queue=queue)
    if offset is not None:
        return Target(kind="offset", value=offset, broker=broker, queue=queue)
    if by is not None:
        return Target(kind="by", value=by, broker=broker, queue=queue)
    return Target(kind="time", value=moment_ms(at, "--at") or 0, broker=broker, queue=queue)


def _print_queues(found: GroupDetail) -> None:
    if found.kind == "broadcasting":
        print("each of its members keeps offsets of its own")
        return
    print_table(
        ["topic", "broker", "queue", "position", "end", "lag", "behind", "owner"],
        [
            [at.topic, at.broker, at.queue, at.position, at.end, at.lag, span_text(at.lag_s), at.owner]
            for at in found.queues
        ],
    )
