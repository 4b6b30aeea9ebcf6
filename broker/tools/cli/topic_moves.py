"""``trivet topic move``: a topic goes to another broker group (docs/groups.md)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from broker.tools.cli.errors import FAILED, USAGE, CommandError
from broker.tools.cli.options import DEFAULT_SERVERS, AsJson, Servers, Topic
from broker.tools.cli.orders import Yes, confirm, naming
from broker.tools.cli.output import print_json, visible

if TYPE_CHECKING:
    from broker.operations.moving import TopicMove

_LOOK_AGAIN_S = 1.0


async def move(
    topic: Topic,
    /,
    *,
    source: Annotated[str, Parameter(name="--from", help="The group that has it.")],
    target: Annotated[str, Parameter(name="--to", help="The group that is to have it.")],
    without: Annotated[
        str, Parameter(help="Consumer groups that are not waited for, with commas between them.")
    ] = "",
    ignore_hidden: Annotated[
        bool, Parameter(negative="", help="Do not wait for delayed and half messages of whatever topic.")
    ] = False,
    drop_unread: Annotated[
        bool, Parameter(negative="", help="Delete messages, too, that no consumer group has read.")
    ] = False,
    settle: Annotated[
        float,
        Parameter(
            help="Seconds without a message after which all producers are taken to have the new route."
        ),
    ] = 35.0,
    limit_s: Annotated[
        float | None, Parameter(name="--timeout", help="Give up waiting after this many seconds.")
    ] = None,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Move a topic to another group: it is written there at once, and deleted where it was when all of it is read.

    What is waited for is printed when it changes. Ctrl-C, and the end of --timeout (exit code 1), leave the move where
    it is: the same command goes on with it. It may be run again when it is done.
    """
    import trio

    from broker.operations.moving import TopicMove

    if not 0 <= settle < math.inf:
        raise CommandError(f"--settle {settle:g}: seconds, 0 or more", USAGE)
    if limit_s is not None and not limit_s >= 0:
        raise CommandError(f"--timeout {limit_s:g}: seconds, 0 or more", USAGE)
    confirm(f"Move topic {topic} from {source} to {target}?", yes=yes)
    waits: list[str] = []
    async with servers.groups() as groups:
        for name in (source, target):
            groups.addresses(name)  # an unknown group is refused
        moving = TopicMove(
            groups.admin,
            topic,
            source,
            target,
            without=[name for name in without.split(",") if name],
            ignore_hidden=ignore_hidden,
            drop_unread=drop_unread,
            settle_s=settle,
        )
        with trio.move_on_after(math.inf if limit_s is None else limit_s) as limit:
            told: list[str] = []
            while waits := await _step(moving):
                kinds = [wait.partition(":")[0] for wait in waits]
                if kinds != told and not json:
                    print(*(visible(f"waits for {wait}") for wait in waits), sep="\n", flush=True)
                told = kinds
                await trio.sleep(_LOOK_AGAIN_S)
    done = not waits and not limit.cancelled_caught
    if json:
        print_json({"topic": topic, "from": source, "to": target, "moved": done, "waits": waits})
    elif done:
        print(f"topic {topic} is in {target}, and not in {source}")
    else:
        print(*(visible(f"still waits for {wait}") for wait in waits), sep="\n")
    return 0 if done else FAILED


async def _step(moving: TopicMove) -> list[str]:
    """Take a step; a failure after which another one may help is something that is waited for, too."""
    from broker.client.errors import ClientError

    try:
        with naming("--drop-unread"):
            return await moving.step()
    except ClientError as error:
        if not error.retry_may_help:
            raise
        return [f"an answer: {error}"]
