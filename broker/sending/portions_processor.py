"""Portions of messages that may be written again, in whatever order, by whomever and however late: stored once.

Some programs do not repeat a send but all their work: Spark runs a task again elsewhere, twice at the same time, or
hours later after its driver has died, and nobody remembers what was sent before. Such a writer names itself and numbers
its portions, and makes the same keys of the same messages. What it asks here and what `repeated_sends.py` remembers
make one rule:

1. It begins the portion in the broker group, by a command in the log (broker/state/writers.py). ``new`` is told to one
   asker only, and with it the position at which the log ended: the floor of all messages of the portion, for everybody
   and for ever. Whoever asks later hears ``begun`` and the same floor, or ``done``.
2. It sends the messages with that floor, as first attempts if it heard ``new``, as repeated ones if it heard ``begun``.
   So of each message there is one first attempt at most, and the argument in repeated_sends.py holds: nothing is
   stored twice.
3. When all are stored, it ends the portion. From then on it is ``done``, and nothing of it need be sent or looked for.

An attempt that was forgotten, and wakes up when its portion is long done, still has the old floor: its messages are
found in the log, or refused when the log does not reach back to the floor any more. That also befalls a portion that
was begun, left, and begun again after the log's retention: nothing is stored then, and the writer has to say so.

A writer is a few words on every node. There may be `limits.max_writers`, and those of which nothing was heard for
thirty days are forgotten (`InnerLimits.writers_kept_ms`): a portion that is written again after that is a new one.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final

import structlog

from broker.node.listeners import Listeners
from broker.node.ports import Proposals
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import PortionHeader
from broker.requests.connection import Connection
from broker.requests.deadline import MS, NEVER, Time
from broker.requests.errors import ReplicaError, RequestError
from broker.requests.processing import HandledOn, Route
from broker.requests.responses import reply, reply_unknown
from broker.settings.live import LiveSettings
from broker.state.commands import FORMAT_OF_COMMANDS, BeginPortion, EndPortion, ForgetWriters
from broker.state.topic_rules import FORBIDDEN_TO_SEND
from broker.state.writers import Begun
from log.errors import DiskFullError

log = structlog.get_logger("trivet.writers")

WRITER_CHARACTERS_MAX: Final = 255
_LOOK_NS_MAX: Final = 600_000_000_000
"""Time between two looks for writers to be forgotten."""
_FORGOTTEN_AT_ONCE: Final = 1_000


class PortionsProcessor:
    """TRIVET_BEGIN_PORTION 90008 and TRIVET_END_PORTION 90009; and writers that nobody hears of."""

    def __init__(
        self, leadership: Proposals, settings: LiveSettings, time: Time, listeners: Listeners
    ) -> None:
        self._leadership = leadership
        self._settings = settings
        self._time = time
        self._look_ns = min(_LOOK_NS_MAX, leadership.limits.writers_kept_ms * MS)
        self._under_way: dict[tuple[str, str], int] = {}
        """By topic and writer that is not known yet, the number of commands under way that make it known."""
        listeners.role_changes.append(self._role_changed)
        self._deadline = time.add_deadline(self._look)

    def routes(self) -> Iterable[Route]:
        """Both are commands, and the leader's. Done twice they do no harm: the second one hears the safe answer."""
        return (
            Route(RequestCode.TRIVET_BEGIN_PORTION, self.begin, HandledOn.LEADER),
            Route(RequestCode.TRIVET_END_PORTION, self.end, HandledOn.LEADER),
        )

    def begin(self, connection: Connection, command: RemotingCommand) -> None:
        """Begins a portion; the response says how it stands, and its floor. Raises `RequestError`."""
        header = self._header(command)
        if header.topic in FORBIDDEN_TO_SEND:
            raise RequestError(ResponseCode.NO_PERMISSION, f"nobody writes to [{header.topic}]")
        if header.topic not in self._leadership.metadata.topics:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, _no_topic(header.topic))
        key = (header.topic, header.writer)
        self._check_room(key)

        def done(result: object) -> None:
            self._free(key)
            if result is None:  # the topic was deleted in between
                reply(connection, command, ResponseCode.TOPIC_NOT_EXIST, _no_topic(header.topic))
                return
            assert isinstance(result, Begun), "the result of BeginPortion"
            fields = {"standing": result.standing, "position": str(result.position)}
            reply(connection, command, ResponseCode.SUCCESS, None, fields)

        def lost() -> None:
            self._free(key)
            reply_unknown(connection, command)

        # The floor: no message of the portion is before it, as its writer hears of it only when this command is
        # committed, and with that everything before it.
        position = self._leadership.store.log.end_position
        self._under_way[key] = self._under_way.get(key, 0) + 1
        try:
            self._leadership.propose_command(
                BeginPortion(*key, header.number, position, self._time.group_ms), done, lost
            )
        except (ReplicaError, DiskFullError):
            self._free(key)
            raise

    def end(self, connection: Connection, command: RemotingCommand) -> None:
        """Ends a portion; the response comes when that is committed. Raises `RequestError`."""
        header = self._header(command)
        self._leadership.propose_command(
            EndPortion(header.topic, header.writer, header.number, self._time.group_ms),
            lambda _: reply(connection, command, ResponseCode.SUCCESS),
            lambda: reply_unknown(connection, command),
        )

    def _header(self, command: RemotingCommand) -> PortionHeader:
        header = command.decode_fields(PortionHeader)
        if not 0 < len(header.writer) <= WRITER_CHARACTERS_MAX or not header.writer.isprintable():
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"a writer's name has 1 to {WRITER_CHARACTERS_MAX} printable characters, not {len(header.writer)}",
            )
        if header.number < 0:
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"portion {header.number}: numbers begin at 0")
        if FORMAT_OF_COMMANDS[BeginPortion] > self._leadership.metadata.format:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                "the group is being upgraded: writers of portions are served when all nodes run the new release",
            )
        return header

    def _check_room(self, key: tuple[str, str]) -> None:
        """Raises `RequestError` where the writer is a new one and there are too many; what is under way counts."""
        portions = self._leadership.metadata.writers.portions
        count = len(portions) + len(self._under_way)
        most = self._settings.current.limits.max_writers
        # Only a new writer takes a place; who is known, or is becoming known by another request, goes on.
        if key not in portions and key not in self._under_way and count >= most:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"there are {count} writers of portions, at most {most} may be (limits.max_writers)",
            )

    def _free(self, key: tuple[str, str]) -> None:
        self._under_way[key] -= 1
        if not self._under_way[key]:
            del self._under_way[key]

    # ------------------------------------------------------------------ writers that nobody hears of

    def _role_changed(self) -> None:
        if not self._leadership.serving:
            self._deadline.due_ns = NEVER
        elif self._deadline.due_ns == NEVER:
            self._deadline.due_ns = self._time.now_ns + self._look_ns

    def _look(self) -> None:
        before_ms = self._time.group_ms - self._leadership.limits.writers_kept_ms
        silent = tuple(islice(self._leadership.metadata.writers.unheard_since(before_ms), _FORGOTTEN_AT_ONCE))
        self._deadline.due_ns = self._time.now_ns + self._look_ns
        if not silent:
            return
        log.info("writers that were silent for long are forgotten", count=len(silent))
        try:
            # The time goes with the names: a writer that is heard of before this is applied stays (`Writers.forget`).
            self._leadership.propose_command(ForgetWriters(silent, before_ms))
        except (ReplicaError, DiskFullError):
            pass  # the next look comes to them again


def _no_topic(topic: str) -> str:
    return f"topic [{topic}] does not exist: it is to be created before a writer begins"
