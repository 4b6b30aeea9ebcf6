"""``trivet dlq``: dead letters, the messages that a consumer group has sent back too often."""

from typing import Annotated

from cyclopts import App, Parameter

from broker.tools.cli.errors import USAGE, CommandError
from broker.tools.cli.moments import moment_text
from broker.tools.cli.options import DEFAULT_SERVERS, AsJson, AsJsonLines, ConsumerGroup, Servers
from broker.tools.cli.orders import Yes, confirm
from broker.tools.cli.output import print_json, print_table, tell_missing

app = App(name="dlq", help="List, show, send again and delete dead letters.", backend="trio")


@app.command(name="list")
async def list_groups(*, servers: Servers = DEFAULT_SERVERS, json: AsJson = False) -> int:
    """List the consumer groups that have dead letters: how many are kept, how many were not sent again."""
    from broker.operations.dead_letters import list_dead_letters

    async with servers.groups() as brokers:
        found = await list_dead_letters(brokers)
    if json:
        print_json({"groups": found}, brokers.missing)
    else:
        print_table(
            ["group", "kept", "waiting", "newest"],
            [[one.group, one.kept, one.waiting, moment_text(one.newest_ms)] for one in found],
        )
    return tell_missing(brokers.missing)


@app.command
async def show(
    group: ConsumerGroup,
    /,
    *,
    limit: Annotated[int, Parameter(help="The most messages to show, the newest.")] = 32,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJsonLines = False,
) -> int:
    """Show a consumer group's dead letters, the oldest first.

    With --json a line is what `trivet message find` prints.
    """
    from broker.client.errors import NoGroup, NoRoute
    from broker.operations.messages import find_messages
    from broker.state.topic_rules import DEAD_LETTER_PREFIX
    from broker.tools.cli.message_output import print_message, print_message_json

    async with servers.groups() as brokers:
        try:
            found = await find_messages(brokers, DEAD_LETTER_PREFIX + group, limit=limit)
        except NoRoute as error:
            if isinstance(error, NoGroup):
                raise
            raise CommandError(f"consumer group {group!r} has no dead letters") from None
    for message in found:
        (print_message_json if json else print_message)(message)
    return tell_missing(brokers.missing)


@app.command
async def redrive(
    group: ConsumerGroup,
    /,
    *,
    rate: Annotated[float, Parameter(help="Messages per second.")] = 100.0,
    limit: Annotated[int | None, Parameter(help="The most messages to send.")] = None,
    again: Annotated[bool, Parameter(negative="", help="Also those that were sent again before.")] = False,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Send a consumer group's dead letters to it again, as if never retried; no other consumer group gets them.

    They stay where they are until `trivet dlq purge`, or until they are too old. What was sent is noted at the brokers,
    so that the next call goes on behind it. Those of broker groups that do not answer are left, and the exit code is 1.
    """
    from broker.operations.dead_letters import redrive as send_again
    from broker.operations.dead_letters import require_dead_letters
    from broker.tools.cli.progress import Progress

    if not 0 < rate < 1e6:
        raise CommandError(f"--rate {rate:g}: messages per second, more than 0", USAGE)
    if limit is not None and limit < 1:
        raise CommandError(f"--limit {limit}: at least 1", USAGE)
    progress, sent = Progress(10.0), 0

    def done(count: int) -> None:
        nonlocal sent
        sent = count

    async with servers.groups() as brokers:
        before = await require_dead_letters(brokers, group)
        wanted = before.kept if again else before.waiting
        wanted = wanted if limit is None else min(wanted, limit)
        # Nothing is to be sent, and so nothing to be asked, when all were sent again before.
        confirm(f"Send {wanted:,} dead letters to consumer group {group} again?", yes=yes or not wanted)
        async with progress.showing(lambda: f"{sent:,} of {wanted:,} sent"):
            found = await send_again(brokers, group, rate_per_s=rate, limit=limit, again=again, done=done)
    if json:
        print_json(found, brokers.missing)
    else:
        print(f"{found.sent:,} sent again, {found.left:,} left")
        if found.passed_over:
            print(f"{found.passed_over:,} could not be sent: their bodies are damaged or empty")
    return tell_missing(brokers.missing) or (1 if found.passed_over else 0)


@app.command
async def purge(
    group: ConsumerGroup,
    /,
    *,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Delete all dead letters of a consumer group.

    Broker groups that do not answer keep theirs, and the exit code is 1.
    """
    from broker.operations.dead_letters import purge as delete
    from broker.operations.dead_letters import require_dead_letters

    async with servers.groups() as brokers:
        before = await require_dead_letters(brokers, group)
        again = f", {before.waiting:,} of which were never sent again" if before.waiting else ""
        confirm(f"Delete {before.kept:,} dead letters of consumer group {group}{again}?", yes=yes)
        deleted = await delete(brokers, group)
    if json:
        print_json({"group": group, "deleted": deleted}, brokers.missing)
    else:
        print(f"{deleted:,} dead letters of {group} are deleted")
    return tell_missing(brokers.missing)
