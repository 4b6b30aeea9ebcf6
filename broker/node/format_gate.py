"""The gate that new behaviour of a release passes: the leader raises the group's format when all members read it.

While a group is upgraded, node by node, some members read less than others (broker/state/release.py). The leader looks
when it begins to serve, and then every second until the format is the newest that its own release reads, or the one at
which its settings hold it (`raft.hold_format`): that keeps the way back to the earlier release open.

A member that comes back with an older release in between, or behind the raise, is refused by those who know of the
raise (broker/peers/handshake.py), or stops when it meets the command, which it cannot read. It has lost nothing.
"""

from typing import Final

import structlog

from broker.node.listeners import Listeners
from broker.node.ports import Formats, Proposals
from broker.requests.deadline import NEVER, Time
from broker.requests.errors import ReplicaError
from broker.settings.live import LiveSettings
from broker.state.commands import RaiseFormat
from broker.state.release import Release
from log.errors import DiskFullError

log = structlog.get_logger("trivet.formats")

LOOK_NS: Final = 1_000_000_000
"""The time between two looks, while there is something to raise."""


class FormatGate:
    """Raises the group's format, while this node serves."""

    def __init__(
        self,
        leadership: Proposals,
        members: Formats,
        release: Release,
        settings: LiveSettings,
        time: Time,
        listeners: Listeners,
    ) -> None:
        self._leadership = leadership
        self._members = members
        self._release = release
        self._settings = settings
        self._time = time
        self._is_proposed = False
        """A raise is in the log, and not applied yet."""
        self._deadline = time.add_deadline(self._look)
        listeners.role_changes.append(self._role_changed)

    def _role_changed(self) -> None:
        if not self._leadership.serving:
            self._deadline.due_ns = NEVER
            # What became of that raise the state tells, once this node serves again.
            self._is_proposed = False
        # It is called for leaders and members, too: a look that is planned stays as it is.
        elif self._deadline.due_ns == NEVER and self._wanted() > self._leadership.metadata.format:
            self._deadline.due_ns = self._time.now_ns

    def _wanted(self) -> int:
        newest, hold = self._release.newest_format, self._settings.current.raft.hold_format
        return min(newest, hold) if hold else newest

    def _look(self) -> None:
        wanted, reached = self._wanted(), self._leadership.metadata.format
        if reached >= wanted:
            self._deadline.due_ns = NEVER
            return
        self._deadline.due_ns = self._time.now_ns + LOOK_NS
        common = self._members.common_format()
        # Of a member that is away nobody knows what it reads: it may come back with another release.
        if self._is_proposed or common is None:
            return
        version = min(common, wanted)
        # Some member reads no more than what the group writes already.
        if version <= reached:
            return
        try:
            self._leadership.propose_command(RaiseFormat(version), self._settled, self._settled)
        except (ReplicaError, DiskFullError):
            return  # the next look tries again
        self._is_proposed = True

    def _settled(self, _: object = None) -> None:
        self._is_proposed = False
