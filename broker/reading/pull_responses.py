"""Responses to pulls: slices of the log's mapping, sent when their bytes are in memory, and the broker to ask next."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from broker.node.ports import Followers, Requests, State
from broker.offsets.resets import OffsetResets
from broker.reading.pull_checks import PullChecks
from broker.reading.queue_reads import RESET, PullResult, QueueReads, whole_part
from broker.remoting.codes import FLAG_ONE_WAY, ResponseCode
from broker.remoting.command import RemotingCommand, encode_response_head
from broker.remoting.headers import PullMessageHeader
from broker.replica.loads import Loads
from broker.requests.connection import Connection
from broker.requests.deadline import Time
from broker.requests.late_requests import done_late
from broker.requests.responses import reply
from broker.settings.live import LiveSettings
from broker.settings.tables import follower_broker_id
from broker.statistics.stats import Stats

LINK_IS_FULL: Final = "[OVERLOAD]too much waits for the link to this client's node"

DAMAGED: Final = "[DAMAGED]the message is damaged on this node's disk, and is being repaired"

_ANY_FOLLOWER: Final = 1
"""The default of a consumer group's whichBrokerWhenConsumeSlowly."""

_SPREAD_BYTES: Final = 1 << 30
"""The followers take turns by parts of the log of so many bytes: each is named to the readers of its parts."""


@dataclass(eq=False)
class PullResponses:
    """Sends what reads of queues came to."""

    _state: State
    _loads: Loads
    _followers: Followers
    _requests: Requests
    _resets: OffsetResets
    _stats: Stats
    _settings: LiveSettings
    _time: Time

    def respond(
        self, connection: Connection, command: RemotingCommand, header: PullMessageHeader, result: PullResult
    ) -> None:
        """Answers a pull; messages far behind the log's end only once a worker has brought them into memory.

        The caller has found that the link to the client has room.
        """
        if command.flag & FLAG_ONE_WAY:
            return
        if result.is_damaged:
            reply(connection, command, ResponseCode.SYSTEM_BUSY, DAMAGED)
            return
        if not result.records:
            self._send_empty(connection, command, header, result)
            return
        loads, began_ns = self._loads, self._time.now_ns
        # So near to the log's end the bytes are taken to be in memory: nobody waits for a disk when they are touched.
        if loads.reads.is_hot(result.position):
            if self._is_whole(connection, command, header, result):
                self._send_found(connection, command, header, result, began_ns, is_near=True)
            return

        # By then the queue may be gone, or its head with what was found: such a pull is handled anew. The offset that
        # it brought is stored already, and its consumer may have reported a newer one since.
        def loaded() -> None:
            if _is_refused(connection, command):
                return
            if self._has_changed(header, result) and self._requests.is_connected(connection):
                waited_ns = self._time.now_ns - began_ns
                self._requests.handle_admitted(connection, done_late(command, header, waited_ns))
            elif self._is_whole(connection, command, header, result):
                self._send_found(connection, command, header, result, began_ns, is_near=False)

        loads.when_loaded(result.position, loaded, began_ns)

    def respond_after_wait(
        self, connection: Connection, command: RemotingCommand, header: PullMessageHeader, result: PullResult
    ) -> None:
        """Does as `respond` for a pull that was held: one arrival may answer thousands over one link."""
        if not result.records or not _is_refused(connection, command):
            self.respond(connection, command, header, result)

    def _has_changed(self, header: PullMessageHeader, result: PullResult) -> bool:
        """Tells whether a queue was deleted, or its head, since it was read."""
        queue = self._state.store.queues.get(header.topic, header.queue_id)
        return queue is None or queue is not result.queue or header.queue_offset < queue.min_offset

    def _is_whole(
        self, connection: Connection, command: RemotingCommand, header: PullMessageHeader, result: PullResult
    ) -> bool:
        """Checks what may have come from a disk; refuses a pull that begins with damage, and has that looked after."""
        if not result.cold or whole_part(self._state, header, result):
            return True
        reply(connection, command, ResponseCode.SYSTEM_BUSY, DAMAGED)
        return False

    def _send_found(
        self,
        connection: Connection,
        command: RemotingCommand,
        header: PullMessageHeader,
        result: PullResult,
        began_ns: int,
        *,
        is_near: bool,
    ) -> None:
        now_ns = self._time.now_ns
        self._stats.given(
            header.topic,
            header.consumer_group,
            len(result.records),
            result.size,
            now_ns - began_ns,
            now_ns,
        )
        suggested = self._suggested(header.consumer_group, result.position, is_near)
        connection.send(_head(command, result, suggested), *result.records)

    def _send_empty(
        self, connection: Connection, command: RemotingCommand, header: PullMessageHeader, result: PullResult
    ) -> None:
        self._stats.gets_missed += 1
        if result.status == RESET:
            self._resets.told(header.consumer_group, header.topic, header.queue_id, by_pull=True)
        connection.send(_head(command, result, 0))

    def _suggested(self, group_name: str, position: int, is_near: bool) -> int:
        """Returns the broker id to ask next: a follower's while what is read lies far behind the log's end, else 0.

        So a long backlog is read from a disk that no producer waits for. The reader stays with its follower until it
        has caught up, and is spread over the followers by its position, unless its consumer group names one
        (whichBrokerWhenConsumeSlowly; its default, 1, is taken for any) or, with 0, stays with the leader. A reader
        that is not far behind (`is_near`) reads from the leader, or in the same way from whom the consumer group's
        brokerId names.
        """
        group = self._state.metadata.groups.get(group_name)
        if group is None or not self._settings.current.broker.follower_reads:
            return 0
        named = group.broker_id if is_near else group.which_broker_when_consume_slowly
        if not named:
            return 0
        if not self._state.serving:
            # It keeps a reader that is behind; one that has caught up goes to the leader, unless it was named for that
            # one.
            own_id = follower_broker_id(self._followers.node_id)
            return own_id if not is_near or named in {_ANY_FOLLOWER, own_id} else 0
        followers = self._followers.linked_voters()
        if named != _ANY_FOLLOWER and any(follower_broker_id(node) == named for node in followers):
            return named
        # The one that is named is away. Who could read from the leader then does.
        if not followers or (is_near and named != _ANY_FOLLOWER):
            return 0
        return follower_broker_id(followers[position // _SPREAD_BYTES % len(followers)])


def _is_refused(connection: Connection, command: RemotingCommand) -> bool:
    """Refuses a pull that has waited and would fill the link to its client's node; tells whether it did."""
    if connection.is_link_full():
        reply(connection, command, ResponseCode.SYSTEM_BUSY, LINK_IS_FULL)
        return True
    return False


def _head(command: RemotingCommand, result: PullResult, suggested: int) -> bytes:
    return encode_response_head(
        command,
        int(result.code),
        result.status,
        {
            "suggestWhichBrokerId": str(suggested),
            "nextBeginOffset": str(result.next_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(result.max_offset),
        },
        result.size,
    )


class PullSteps(NamedTuple):
    """The steps of a pull, when it comes and again when it has waited: it is checked, its queue is read, and it is
    answered."""

    checks: PullChecks
    reads: QueueReads
    responses: PullResponses
