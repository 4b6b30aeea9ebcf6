"""The messages that a node has stored, and their bytes, by topic (request 315).

A topic may have tens of thousands of queues, and a day's units are too many to be read for a response. So what is new
is summed up every ten seconds, whenever somebody asks, and before very many queues have grown: else a turn only notes
which have, and the sizes are one column of their units. It is counted on every node, of committed messages, from when
the node started.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np

from broker.statistics.totals import Totals
from broker.statistics.windows import Windows
from log.dispatching.dispatch import Arrival
from log.queues.consume_queue import NO_RECORD_BYTES, UNIT, UNIT_BYTES
from log.queues.consume_queues import ConsumeQueues

TOPICS_COUNTED_MAX: Final = 10_000
"""Topics whose bytes are counted; of more, those that came first are forgotten."""

_GROWN_MAX: Final = 256
"""Queues that may have grown before they are counted; a millisecond's work, as their last files are mapped still."""

_UNIT: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")])
assert _UNIT.itemsize == UNIT_BYTES


class StoredBytes:
    """Messages and bytes of records, by topic and of all topics, since the node started; `led` has those that were
    stored while this node led.
    """

    __slots__ = ("_grown", "_leads", "by_topic", "led", "messages", "record_bytes")

    def __init__(self, series_max: int) -> None:
        self._leads = False
        self.led = Totals(series_max)
        """By topic. Only one node counts a message here, so that a sum over all nodes is what the group took."""
        self._grown: dict[tuple[str, int], int] = {}
        """By topic and queue, the first offset that is not counted."""
        self.by_topic: dict[str, Windows] = {}
        self.messages = 0
        self.record_bytes = 0

    def arrived(self, arrivals: Iterable[Arrival]) -> bool:
        """Notes which queues have grown. Returns True when they are so many that they are to be counted."""
        grown = self._grown
        for arrival in arrivals:
            queue, first = (arrival.topic, arrival.queue_id), arrival.first_offset
            # Offsets of a queue rise: a lower one is of a new topic, which has the name of one that was deleted.
            if first <= grown.get(queue, first):
                grown[queue] = first
        return len(grown) >= _GROWN_MAX

    def count(self, queues: ConsumeQueues, now_s: int) -> None:
        """Counts what has come since the last call."""
        grown, self._grown = self._grown, {}
        for (topic, queue_id), first in grown.items():
            queue = queues.get(topic, queue_id)
            if queue is None:
                continue
            offset = max(first, queue.min_offset)  # retention may have taken some since
            messages = record_bytes = 0
            while offset < queue.max_offset:
                units = queue.unit_bytes(offset, queue.max_offset - offset)
                assert len(units), "there are units from a queue's beginning to its end"
                if len(units) == UNIT_BYTES:  # where many queues grow, most by one message
                    size = UNIT.unpack(units)[1]
                    record_bytes += size if size != NO_RECORD_BYTES else 0
                    messages += 1
                    offset += 1
                    continue
                sizes = np.frombuffer(units, _UNIT)["size"]
                record_bytes += int(sizes[sizes != NO_RECORD_BYTES].sum(dtype=np.int64))
                messages += len(sizes)
                offset += len(sizes)
            if self._leads:
                self.led.add((topic,), messages, record_bytes)
            self.messages += messages
            self.record_bytes += record_bytes
            windows = self.by_topic.get(topic)
            if windows is None:
                if len(self.by_topic) >= TOPICS_COUNTED_MAX:
                    del self.by_topic[next(iter(self.by_topic))]
                windows = self.by_topic[topic] = Windows()
            windows.add(now_s, record_bytes, messages)

    def role_changed(self, leads: bool, queues: ConsumeQueues, now_s: int) -> None:
        """Notes whether this node leads from now on; what was stored until now is counted first, under the old role."""
        if leads != self._leads:
            self.count(queues, now_s)
            self._leads = leads
