"""The identity of a client: its id at brokers, and the unique keys of the messages that it sends."""

import datetime
import socket
from typing import Final

from broker.client.transport.runtime import Runtime
from log.formats.message_id import unique_key, unique_key_prefix

_COUNTER_MAX: Final = 0xFFFF


def client_id(runtime: Runtime) -> str:
    """Return a new id ``ip@pid#random``, different for every client, also of one process."""
    return f"{runtime.local_address()}@{runtime.process_id()}#{runtime.random.getrandbits(48)}"


class UniqueKeys:
    """Makes unique keys, the property UNIQ_KEY. Two makers in one process differ by a random number in the prefix."""

    def __init__(self, runtime: Runtime) -> None:
        address = socket.inet_aton(runtime.local_address())
        self._prefix = unique_key_prefix(address, runtime.process_id(), runtime.random.getrandbits(31))
        self._counter = 0
        self._counter_end = 0
        """At this number the millisecond has no more keys: each has as many as its four digits can tell apart."""
        self._month_start_ms = 0
        self._month_end_ms = 0
        self._now_ms = -1
        """The time in the keys. It never falls, and is ahead of the clock when one millisecond had too few keys."""
        self._begin = ""
        """The keys of this millisecond without the counter at their end."""

    def next(self, now_ms: int) -> str:
        """Return the next key, of this wall time."""
        if now_ms > self._now_ms or self._counter == self._counter_end:
            self._enter(now_ms)
        self._counter = counter = self._counter + 1
        return f"{self._begin}{counter & _COUNTER_MAX:04X}"

    def take(self, count: int, now_ms: int) -> list[str]:
        """Return the next keys, as many calls of `next` would."""
        keys: list[str] = []
        while len(keys) < count:
            if now_ms > self._now_ms or self._counter == self._counter_end:
                self._enter(now_ms)
            begin, first = self._begin, self._counter + 1
            self._counter = end = min(self._counter + count - len(keys), self._counter_end)
            keys += [f"{begin}{number & _COUNTER_MAX:04X}" for number in range(first, end + 1)]
        return keys

    def _enter(self, now_ms: int) -> None:
        self._now_ms = now_ms = max(now_ms, self._now_ms + 1)
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._enter_month(now_ms)
        self._counter_end = self._counter + _COUNTER_MAX + 1
        self._begin = unique_key(self._prefix, now_ms - self._month_start_ms, 0)[:-4]

    def _enter_month(self, now_ms: int) -> None:
        # The reference counts from the start of the local month; UTC serves as well, and a seed then fixes the key.
        now = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
        start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        end = (start + datetime.timedelta(days=32)).replace(day=1)
        self._month_start_ms = int(start.timestamp() * 1000)
        self._month_end_ms = int(end.timestamp() * 1000)
        # Keys of another month would be those of messages that were sent in it.
        assert self._month_start_ms <= now_ms < self._month_end_ms, f"{now_ms} is not in the month of {start}"
