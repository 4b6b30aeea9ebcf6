"""A judge of pulls that rest on their consumer group's subscription: an answer passes over nothing that this wants.

Which subscription that is, the broker knows that answers, at that moment. The pull may have waited under another one,
and what it passed over by that one may be wanted by now. Its client would go on behind it, with the subscription of
now, and never read it.
"""

from __future__ import annotations

from typing import Final

from broker.node.node import Node
from broker.reading.pull_checks import PullChecks
from broker.reading.pull_responses import PullResponses
from broker.reading.queue_reads import PullResult
from broker.reading.subscriptions import TAG
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import PullMessageHeader
from broker.requests.connection import Connection
from log.formats.properties import TAGS, get_property
from log.formats.record import peek
from simulation.journal import Violation
from simulation.judges.group_model import CommittedQueue, GroupModel

NOT_PASSED_OVER: Final = "nothing is passed over that its consumer group wants now"
_EVERYTHING: Final = ("", "*")


def watch_subscribed_pulls(name: str, node: Node, model: GroupModel) -> None:
    """Looks at each answer to a pull that a node's new process gives, which may raise Violation from then on."""
    checks, responses = node.part(PullChecks), node.part(PullResponses)
    respond = responses.respond

    def answers(
        connection: Connection, command: RemotingCommand, header: PullMessageHeader, result: PullResult
    ) -> None:
        # The header's offset moves on while a pull waits, that in the request is the client's.
        begin = command.decode_fields(PullMessageHeader).queue_offset
        if result.code == ResponseCode.PULL_OFFSET_MOVED or result.is_damaged:
            pass  # it is sent elsewhere, or refused
        elif begin < result.next_offset:
            _check(name, checks, header, begin, result, model)
        respond(connection, command, header, result)

    responses.respond = answers  # type: ignore[method-assign]


def _check(
    name: str,
    checks: PullChecks,
    header: PullMessageHeader,
    begin: int,
    result: PullResult,
    model: GroupModel,
) -> None:
    subscribed = checks.subscribed(header)
    if subscribed is None or subscribed[0] != TAG or subscribed[1] in _EVERYTHING:
        return  # what SQL92 readers get, others judge; who wants everything is told of a gap by the next offset
    tags = {tag.strip().encode() for tag in subscribed[1].split("||")}
    queue = model.queues.get((header.topic, header.queue_id), CommittedQueue())
    end = min(result.next_offset, len(queue.positions))
    wanted = [
        offset
        for offset in range(queue.first_kept(begin, end, model.kept_from), end)
        if _tag(model, queue, offset) in tags
    ]
    if len(wanted) > len(result.records):
        raise Violation(
            NOT_PASSED_OVER,
            name,
            f"{header.consumer_group} in {header.topic}/{header.queue_id} from {begin} on gets {len(result.records)} "
            f"messages up to {result.next_offset}, and wants {subscribed[1]}, which are at {wanted}",
        )


def _tag(model: GroupModel, queue: CommittedQueue, offset: int) -> bytes | None:
    begin = queue.positions[offset]
    record = memoryview(model.image)[begin : begin + queue.sizes[offset]]
    head = peek(record)
    return get_property(bytes(record[head.properties_begin : head.properties_end]), TAGS)
