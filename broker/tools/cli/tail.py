"""``trivet tail``: a topic's messages as they come."""

import math
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from broker.tools.cli.errors import FAILED, USAGE, CommandError
from broker.tools.cli.moments import moment_ms
from broker.tools.cli.options import (
    DEFAULT_SERVERS,
    AsJsonLines,
    Servers,
    StopCount,
    StopTimeout,
    check_stops,
)
from broker.tools.cli.output import tell_missing, tell_warnings

if TYPE_CHECKING:
    from broker.operations.asking import Missing


async def tail(
    topic: Annotated[str, Parameter(help="Topic to follow.")],
    /,
    *,
    tags: Annotated[str, Parameter(name=["--tags", "--tag"], help='Tags wanted, such as "a || b".')] = "*",
    sql: Annotated[
        str | None,
        Parameter(help="An SQL92 condition over properties, such as \"price > 10 AND TAGS = 'a'\"."),
    ] = None,
    since: Annotated[
        str | None,
        Parameter(help="Begin then: 2030-01-31T12:00:00, or 15m for a quarter of an hour ago; else now."),
    ] = None,
    count: StopCount = None,
    timeout_s: StopTimeout = math.inf,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJsonLines = False,
) -> int:
    """Follow a topic until Ctrl-C, --count or --timeout: each message with its place, id, tag and keys.

    All queues are read, no offset is stored, and no consumer group is disturbed. Leaders that die are waited for, and
    so are groups that had none at the beginning: each is named, and followed when it has one. With --json a line is
    what `trivet message find` prints. The exit code is 1 if fewer than --count came in time, or a group is missing yet.
    """
    import trio

    from broker.client.consuming.subscription import SqlFilter
    from broker.operations.following import Follower
    from broker.tools.cli.message_output import print_message, print_message_json
    from broker.tools.cli.signals import stop_signals, until

    check_stops(count, timeout_s)
    if sql is not None and tags != "*":
        raise CommandError("give --tags or --sql, not both", USAGE)
    tell_warnings()
    wanted: str | SqlFilter = tags if sql is None else SqlFilter(sql)
    show = print_message_json if json else print_message
    since_ms = moment_ms(since, "--since")
    shown = 0
    missing: tuple[Missing, ...] = ()
    with stop_signals() as stopped:
        async with (
            servers.admin() as admin,
            until(stopped),
            Follower(admin, topic, wanted=wanted, since_ms=since_ms) as follower,
        ):
            last_s = trio.current_time()
            while True:
                named = {one.group for one in missing}
                tell_missing(one for one in follower.missing if one.group not in named)
                missing = follower.missing
                if shown == count or trio.current_time() - last_s >= timeout_s:
                    break
                # No longer than a second: groups that were missing are named when they have come.
                messages = await follower.take(min(1.0, timeout_s))
                for message in messages[: None if count is None else count - shown]:
                    show(message)
                    shown += 1
                    last_s = trio.current_time()
    if count is not None and shown < count:
        raise CommandError(f"only {shown} of {count} messages came")
    return FAILED if missing else 0
