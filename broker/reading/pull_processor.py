"""Pulling: reads of committed messages, with filters and long polling, after RocketMQ's `PullMessageProcessor`.

A pull is decoded, checked, and its queue read; then it is answered, or held until a message comes (`held_pulls.py`).
What is found goes from the log's mapping to the socket as slices.

The leader answers everything; what it says of a queue's end (nothing there yet, an offset out of range) it says
behind a read barrier, since a leader that was stopped for a while may be one no longer. Another node answers only
what it can answer truly from its own committed part: messages that it holds, for a pull that commits no offset. All
else (the end of the queue, an offset out of range, a wait) is for the leader to judge, and is forwarded: a follower
that lags must not tell a consumer to go back.

A condition in SQL92 may take milliseconds to parse, and as long on the messages that one pull looks at, while the
request for that is a few bytes: a client could ask for seconds of work in one read. So such pulls have a turn each, one
after the other: however many come, the node does all else between them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from broker.node.ports import Proposals, Requests
from broker.offsets.commits import OffsetCommits
from broker.offsets.resets import OffsetResets
from broker.reading.held_pulls import HeldPulls
from broker.reading.pull_checks import COMMITS_OFFSET, MAY_BE_HELD
from broker.reading.pull_responses import LINK_IS_FULL, PullSteps
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import PullMessageHeader
from broker.requests.budget import Budget
from broker.requests.connection import Connection, RelayedConnection
from broker.requests.deadline import Time
from broker.requests.errors import OverloadedError, RequestError
from broker.requests.late_requests import done_late
from broker.requests.processing import HandledOn, Route
from broker.settings.live import LiveSettings
from broker.topics.creation import Creations

_FILTERED_PULLS_MAX: Final = 1000
"""Pulls with a condition that wait for a turn of their own: some seconds' work at worst."""
_FILTERED_PULLS_EACH: Final = 100
"""The part of these that one connection may have: a client with more queues comes again, and keeps nobody else out."""


class PullProcessor:
    """PULL_MESSAGE 11 and LITE_PULL_MESSAGE 361."""

    def __init__(
        self,
        leadership: Proposals,
        requests: Requests,
        offsets: OffsetCommits,
        resets: OffsetResets,
        creations: Creations,
        steps: PullSteps,
        held: HeldPulls,
        settings: LiveSettings,
        time: Time,
    ) -> None:
        self._leadership = leadership
        self._requests = requests
        self._offsets = offsets
        self._resets = resets
        self._creations = creations
        self._settings = settings
        self._time = time
        self._filtered = Budget("other pulls with conditions", _FILTERED_PULLS_MAX)
        self._filtered_by: Counter[Connection] = Counter()
        """The connections that these pulls are from."""
        self._checks, self._reads, self._responses = steps
        self._held = held

    def routes(self) -> Iterable[Route]:
        """Every node tries; see the head of this module."""
        return (
            Route(RequestCode.PULL_MESSAGE, self.pull, HandledOn.ANY),
            Route(RequestCode.LITE_PULL_MESSAGE, self.pull, HandledOn.ANY),
        )

    def pull(self, connection: Connection, command: RemotingCommand) -> Iterator[None] | None:
        """Answers with messages, holds the request, or says why there are none.

        Raises `RequestError` for a pull that the checks refuse, `OverloadedError`.
        """
        if command.code == RequestCode.LITE_PULL_MESSAGE and not self._settings.current.broker.lite_pulls:
            raise RequestError(
                ResponseCode.NO_PERMISSION, "lite pulls are switched off here (litePullMessageEnable)"
            )
        header = command.decode_fields(PullMessageHeader)
        if self._checks.is_filtered_by_sql(header):
            return self._pull_in_own_turn(connection, command, header)
        self._pull(connection, command, header)
        return None

    def _pull_in_own_turn(
        self, connection: Connection, command: RemotingCommand, header: PullMessageHeader
    ) -> Iterator[None]:
        """Pulls with a condition, in a turn of its own. Raises as `pull`."""
        if self._filtered_by[connection] >= _FILTERED_PULLS_EACH:
            raise OverloadedError(f"{_FILTERED_PULLS_EACH} pulls with conditions of this connection wait")
        self._filtered.take(connection, command)
        self._filtered_by[connection] += 1
        try:
            yield
            for _ in self._checks.parse_in_steps(header):
                yield
                if not self._requests.is_connected(connection):
                    return
        finally:
            self._filtered.free(connection, command)
            self._filtered_by[connection] -= 1
            if not self._filtered_by[connection]:
                del self._filtered_by[connection]
        if self._requests.is_connected(connection):
            self._pull(connection, command, header)

    def _pull(self, connection: Connection, command: RemotingCommand, header: PullMessageHeader) -> None:
        """Checks the pull, reads its queue, and answers, holds or forwards it. Raises `RequestError`."""
        if not self._leadership.serving:
            self._follower_answers_or_forwards(connection, command, header)
            return

        # Check. A broker that may not be read creates no consumer group, and a link without room is not filled by the
        # read.
        self._checks.check_broker()
        metadata, group, topic = self._leadership.metadata, header.consumer_group, header.topic
        if group not in metadata.groups and self._creates_group(connection, command, header):
            return
        if connection.is_link_full():
            raise RequestError(ResponseCode.SYSTEM_BUSY, LINK_IS_FULL)
        self._checks.check(header)
        wanted = self._checks.filter_for(header)

        # Remember what it says of its consumer: the offset that it brings, and that it has followed a reset.
        flags = header.sys_flag
        if flags & COMMITS_OFFSET and header.commit_offset >= 0 and not self._checks.is_broadcast(group):
            self._offsets.stage(group, topic, header.queue_id, header.commit_offset)
        # Before the read: a pull that begins where it was sent ends the order, and is to be given messages at once.
        if metadata.parked.offsets:
            self._resets.pulled(group, topic, header.queue_id, header.queue_offset)

        # Read, then answer or hold. Only what says where the queue ends needs the certainty that this node leads.
        result = self._reads.read(header, wanted)
        if result.records or result.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            self._responses.respond(connection, command, header, result)
        elif (
            result.code == ResponseCode.PULL_NOT_FOUND
            and flags & MAY_BE_HELD
            and header.suspend_timeout_ms > 0
            and self._held.has_room(connection, wanted)
        ):
            self._held.hold(connection, command, header, wanted)
        else:
            assert result.code in {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED}
            self._held.respond_behind_barrier(connection, command, header, wanted)

    def _creates_group(
        self, connection: Connection, command: RemotingCommand, header: PullMessageHeader
    ) -> bool:
        """Has the consumer group created that pulls; the pull is handled anew when it exists, or by the next leader.

        Returns False where it may not be created. Raises as `Creations.create_group`.
        """
        began_ns, place = self._time.now_ns, self._requests.place_of(command)

        # Its consumer may have reported newer offsets since.
        def late() -> RemotingCommand:
            return done_late(command, header, self._time.now_ns - began_ns)

        return self._creations.create_group(
            header.consumer_group,
            self._time.group_ms,
            lambda: self._requests.handle_admitted(connection, late()),
            lambda: self._requests.forward_late(connection, late(), place),
        )

    def _follower_answers_or_forwards(
        self, connection: Connection, command: RemotingCommand, header: PullMessageHeader
    ) -> None:
        """Answers with messages that are committed here, else asks the leader."""
        metadata, settings = self._leadership.metadata, self._settings.current.broker
        if (
            settings.follower_reads
            and not header.sys_flag & COMMITS_OFFSET
            and header.topic in metadata.topics
            and header.consumer_group in metadata.groups
            # It was sent to the leader of a term: `forward` holds it until this node serves in that, or gives it back.
            and not isinstance(connection, RelayedConnection)
        ):
            try:
                self._checks.check_broker()
                self._checks.check(header)
                result = self._reads.read(header, self._checks.filter_for(header))
            except RequestError:
                pass  # the leader may know the subscription, or another topic's settings, that are not here yet
            else:
                if result.records:
                    self._responses.respond(connection, command, header, result)
                    return
        self._requests.forward(connection, command)
