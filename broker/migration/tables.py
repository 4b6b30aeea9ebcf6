"""The tables that RocketMQ keeps beside its log, as it writes them: into JSON files, and into responses."""

import struct
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from broker.remoting.bodies import SubscriptionGroupConfig, TopicConfig
from broker.remoting.errors import BodyError

_TIMER_CHECKPOINT: Final = struct.Struct(">qqq")
TIMER_CHECKPOINT_BYTES: Final = _TIMER_CHECKPOINT.size
"""The bytes that are read of the file timercheck, which is longer."""

_Offset = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class OffsetTable(msgspec.Struct, rename="camel"):
    """consumerOffset.json, and the response to code 43: by ``topic@group``, queue id -> next offset."""

    offset_table: dict[str, dict[int, _Offset]] = {}

    def by_group(self) -> dict[tuple[str, str], dict[int, int]]:
        """Returns it by (consumer group, topic). Raises BodyError."""
        found = {}
        for key, queues in self.offset_table.items():
            topic, separator, group = key.partition("@")
            if not separator or not topic or not group:
                raise BodyError(f"{key[:80]!r} is not topic@group")
            found[group, topic] = queues
        return found


class DelayTable(msgspec.Struct, rename="camel"):
    """delayOffset.json, and the response to code 45: by level, the next offset in its queue."""

    offset_table: dict[int, _Offset] = {}


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """The progress of 5.x's timer wheel: units before `queue_offset` that were due before `read_ms` are delivered."""

    read_ms: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class Tables:
    """All tables, as they were found; `missing` names the files that are not there."""

    topics: dict[str, TopicConfig]
    groups: dict[str, SubscriptionGroupConfig]
    offsets: dict[tuple[str, str], dict[int, int]]
    """By (consumer group, topic), queue id -> next offset."""
    delays: dict[int, int]
    """By delay level."""
    timers: TimerCheckpoint | None = None
    missing: tuple[str, ...] = field(default=())


def timer_checkpoint(raw: bytes | memoryview) -> TimerCheckpoint:
    """Reads the first fields of `TimerCheckpoint`: read time in ms, position in the timer log, offset in the queue.

    Raises BodyError.
    """
    if len(raw) < TIMER_CHECKPOINT_BYTES:
        raise BodyError("it is cut off")
    read_ms, _, queue_offset = _TIMER_CHECKPOINT.unpack_from(raw)
    if read_ms < 0 or queue_offset < 0:
        raise BodyError(f"time {read_ms} and offset {queue_offset} are impossible")
    return TimerCheckpoint(read_ms, queue_offset)
