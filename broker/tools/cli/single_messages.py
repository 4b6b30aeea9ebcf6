"""``trivet message``: messages found by time, offset, key and id; one of them shown, and its way; what waits."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from broker.tools.cli.errors import USAGE, CommandError
from broker.tools.cli.moments import moment_ms, moment_text
from broker.tools.cli.options import (
    DEFAULT_SERVERS,
    AsJson,
    AsJsonLines,
    OnlyBroker,
    OnlyQueue,
    Servers,
    Topic,
)
from broker.tools.cli.output import print_facts, print_json, print_table, tell_missing, visible

if TYPE_CHECKING:
    from broker.operations.messages import Step
    from broker.operations.waiting_messages import WaitingMessage

app = App(name="message", help="Find and show messages, and the way that one has taken.", backend="trio")

MessageId = Annotated[str, Parameter(help="The id that its sender gave, or that of its broker.")]


@app.command
async def find(
    topic: Topic,
    /,
    *,
    key: Annotated[str | None, Parameter(help="Those with this key.")] = None,
    message_id: Annotated[str | None, Parameter(name="--id", help="Those with this id.")] = None,
    since: Annotated[
        str | None, Parameter(help="Stored since: 2030-01-31T12:00:00, or 15m for a quarter of an hour ago.")
    ] = None,
    until: Annotated[str | None, Parameter(help="Stored before, likewise.")] = None,
    queue: OnlyQueue = None,
    broker: OnlyBroker = None,
    offset: Annotated[int | None, Parameter(help="From this offset on.")] = None,
    limit: Annotated[int, Parameter(help="The most messages to show.")] = 32,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJsonLines = False,
) -> int:
    """Find messages, the oldest first; without --since and --offset the newest ones.

    With --json each message is one line: its place, ids, tags, keys, times in ms, hosts, properties, and the body as
    "body", or as "body_base64" if it is not UTF-8, or "damaged" with the reason if it cannot be read. The exit code is
    1 if none is found, and if broker groups do not answer, which are named.
    """
    from broker.operations.messages import find_messages
    from broker.tools.cli.message_output import print_message, print_message_json

    if limit < 1:
        raise CommandError(f"--limit {limit}: at least 1", USAGE)
    since_ms, until_ms = moment_ms(since, "--since"), moment_ms(until, "--until")
    async with servers.groups() as groups:
        found = await find_messages(
            groups,
            topic,
            key=key,
            message_id=message_id,
            since_ms=since_ms,
            until_ms=until_ms,
            queue=queue,
            broker=broker,
            offset=offset,
            limit=limit,
        )
    for message in found:
        (print_message_json if json else print_message)(message)
    exit_code = tell_missing(groups.missing)
    if not found:
        raise CommandError(f"no such message is kept in topic {topic}")
    return exit_code


@app.command
async def show(
    topic: Topic,
    message_id: MessageId,
    /,
    *,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJsonLines = False,
) -> int:
    """Show all of a message: its place, ids, times, hosts, properties and whole body.

    Broker groups that do not answer are named if nothing is found.
    """
    from broker.operations.messages import find_messages
    from broker.tools.cli.message_output import body_text, message_fields, print_message_json

    async with servers.groups() as groups:
        found = await find_messages(groups, topic, message_id=message_id)
    if not found:
        tell_missing(groups.missing)
        raise CommandError(f"no message with the id {message_id} is kept in topic {topic}")
    for message in found:
        if json:
            print_message_json(message)
            continue
        fields = message_fields(message)
        told = {
            name: value
            for name, value in fields.items()
            if name not in ("properties", "body", "body_base64", "damaged") and value not in (None, [])
        }
        told |= {"born_ms": moment_text(message.born_ms), "stored_ms": moment_text(message.stored_ms)}
        print_facts(
            [
                *(
                    (name.removesuffix("_ms"), ", ".join(value) if isinstance(value, list) else str(value))
                    for name, value in told.items()
                ),
                *((f"[{name}]", value) for name, value in message.properties.items()),
            ]
        )
        print()
        print(visible(body_text(message), lines=True))
    return 0


@app.command
async def trace(
    topic: Topic,
    message_id: MessageId,
    /,
    *,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Show the way of a message: delayed until when, stored where, retried, a dead letter; and who has consumed it.

    TOPIC is the one that it was sent to. Who has consumed it follows from the consumer offsets. What
    clients have traced themselves is shown, too, where they do (Java's `enableMsgTrace`). Broker groups that do not
    answer are named, and the exit code is 1: a part of the way may lie there.
    """
    from broker.operations.messages import way_of
    from broker.tools.cli.message_output import message_fields

    async with servers.groups() as groups:
        way = await way_of(groups, topic, message_id)
    if json:
        message = None if way.message is None else message_fields(way.message)
        print_json(dataclasses.asdict(way) | {"message": message}, groups.missing)
        return tell_missing(groups.missing)
    print_table(
        ["when", "what", "where"],
        [
            [moment_text(step.at_ms), _words(step), f"{step.topic} {step.broker}/{step.queue}@{step.offset}"]
            for step in way.steps
        ],
        title=way.message_id,
    )
    if way.groups:
        print_table(
            ["consumer group", "state", "position", "members"],
            [[one.group, one.state, one.position, one.members] for one in way.groups],
        )
    if way.traces:
        print_table(
            ["traced by", "what", "when", "took", "result"],
            [
                [
                    f"{one.group} {one.client}",
                    f"{one.what}, time {one.times + 1}" if one.times else one.what,
                    moment_text(one.at_ms),
                    "-" if one.took_ms is None else f"{one.took_ms} ms",
                    one.result,
                ]
                for one in way.traces
            ],
        )
    return tell_missing(groups.missing)


@app.command
async def waiting(
    *,
    limit: Annotated[
        int, Parameter(help="Show at most this many of each, delayed and half messages, the first to be due.")
    ] = 20,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Show what waits at the brokers: delayed messages, and half messages whose producers have not decided.

    Half messages may be shown for some seconds after their producers have decided. Broker groups that do not answer are
    named, and the exit code is 1.
    """
    from broker.operations.waiting_messages import waiting_messages
    from broker.tools.cli.message_output import message_fields

    if limit < 1:
        raise CommandError(f"--limit {limit}: at least 1", USAGE)
    async with servers.groups() as groups:
        found = await waiting_messages(groups, limit=limit)
    both = (*found.delayed_messages, *found.half_messages)
    if json:
        told = [dataclasses.asdict(one) | {"message": message_fields(one.message)} for one in both]
        delayed = sum(found.by_level.values()) + found.timed
        print_json({"delayed": delayed, "half": found.half, "messages": told}, groups.missing)
        return tell_missing(groups.missing)
    print_table(
        ["topic", "waits for", "since", "id"],
        [_waiting_row(one) for one in both],
    )
    levels = ", ".join(f"{count:,} at level {level}" for level, count in found.by_level.items())
    print(
        f"{found.timed:,} for a time of their own{f', {levels}' if levels else ''}; {found.half:,} half messages"
    )
    return tell_missing(groups.missing)


def _waiting_row(one: WaitingMessage) -> list[str]:
    message = one.message
    if message.is_unreadable:  # nothing of it is known but where it lies
        return [
            "-",
            "-",
            "-",
            f"damaged, in {message.topic} {message.broker}/{message.queue}: {message.damage}",
        ]
    until = f"its producer, {one.producer_group}" if one.kind == "half" else moment_text(one.due_ms)
    return [one.home, until, moment_text(message.stored_ms), message.message_id]


def _words(step: Step) -> str:
    until = f" until {moment_text(step.until_ms)}" if step.until_ms is not None else ""
    of = f" for {step.group}" if step.group else ""
    times = f", time {step.times}" if step.what == "retried" and step.times else ""
    return f"{step.what}{of}{times}{until}"
