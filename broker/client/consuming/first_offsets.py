"""Where a consumer begins in a queue of which its consumer group has no stored offset."""

from __future__ import annotations

import datetime
from typing import Literal

from broker.client.checks import LONG_MAX, check_whole
from broker.client.consuming.queue_calls import QueueCalls
from broker.client.errors import UsageError
from broker.client.message import MessageQueue
from broker.remoting.bodies import ConsumeFromWhere
from broker.state.topic_rules import RETRY_PREFIX

Start = Literal["first", "last"] | int | datetime.datetime
"""The place to begin at: the queue's first kept message, its end, or a time (ms since 1970; a datetime without a zone
is in local time)."""
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class FirstOffsets:
    """Finds where to begin.

    The constructor raises UsageError for a `start` of another form than `Start`, and for a time before 1970.
    """

    def __init__(self, calls: QueueCalls, start: Start) -> None:
        self._calls = calls
        self._start: Literal["first", "last"] | int
        if isinstance(start, datetime.datetime):
            try:
                start = (start.astimezone(datetime.UTC) - _EPOCH) // datetime.timedelta(milliseconds=1)
            except (ValueError, OverflowError) as error:  # near the ends of what a datetime can be
                raise UsageError(f"start={start}: {error}") from error
        if start in ("first", "last"):
            self._start = start
        elif type(start) is int:
            check_whole(0, LONG_MAX, start=start)
            self._start = start
        else:
            raise UsageError(f'start={start!r}: "first", "last", a datetime, or milliseconds since 1970')

    @property
    def consume_from_where(self) -> ConsumeFromWhere:
        """The start as heartbeats tell it."""
        if self._start == "first":
            return ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        if self._start == "last":
            return ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP

    @property
    def is_time(self) -> bool:
        """Tell whether a time was given; what is older than that is not wanted, even of a queue that is young."""
        return isinstance(self._start, int)

    async def find(self, queue: MessageQueue) -> int:
        """Return the offset. Raises BrokerError, ConnectionFailed, NoRoute, NameServerUnavailable."""
        if queue.topic.startswith(RETRY_PREFIX):
            return 0  # the consumer group is to have all that it sent back, whenever that was
        if self._start == "first":
            return await self._calls.min_offset(queue)
        if self._start == "last":
            return await self._calls.max_offset(queue)
        return await self._calls.search_offset(queue, self._start)
