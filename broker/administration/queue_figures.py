"""Figures of topics' queues for administrators: their messages' times, and the progress of consumer groups in them."""

from collections.abc import Iterator
from typing import Final

from broker.node.ports import State, StoredMessages
from broker.remoting.admin_bodies import ConsumeOffset
from broker.remoting.bodies import MessageQueue, TopicConfig
from broker.remoting.codes import ResponseCode
from broker.requests.errors import RequestError
from log.errors import DamagedLogError
from log.queues.consume_queue import ConsumeQueue

QUEUES_TOLD_MAX: Final = 100_000
"""One response tells the progress in at most so many queues; of more it would be no frame, after seconds of work."""

QUEUES_AT_ONCE: Final = 2_000
"""A step of such a response tells of so many queues: some 4 ms."""


def check_number_told(queues: int, instead: str) -> None:
    """Raises `RequestError` where the progress in too many queues is asked for; `instead` says what to ask."""
    if queues > QUEUES_TOLD_MAX:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"these are {queues} queues, a response tells of at most {QUEUES_TOLD_MAX}: {instead}",
        )


def store_time(store: StoredMessages, queue: ConsumeQueue, offset: int) -> int:
    """Returns when the message at an offset was stored (ms), 0 if it is not there, or damaged."""
    unit = queue.unit(offset)
    try:
        return 0 if unit is None else store.store_time_of(unit[0], unit[1])
    except DamagedLogError:
        return 0


def queue_ranges(count: int) -> Iterator[range]:
    """Yields the queues of a topic, at most `QUEUES_AT_ONCE` at a time."""
    for begin in range(0, count, QUEUES_AT_ONCE):
        yield range(begin, min(begin + QUEUES_AT_ONCE, count))


class QueueFigures:
    """Reads them from what is committed and applied on this node."""

    def __init__(self, state: State, broker_name: str) -> None:
        """`broker_name` stands in every queue that a response names."""
        self._state = state
        self._broker_name = broker_name

    def topic(self, topic: str) -> TopicConfig:
        """Returns a topic's settings. Raises `RequestError` if it does not exist."""
        config = self._state.metadata.topics.get(topic)
        if config is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        return config

    def name(self, topic: str, queue_id: int) -> MessageQueue:
        """Returns a queue as clients name it."""
        return MessageQueue(self._broker_name, queue_id, topic)

    def store_time(self, queue: ConsumeQueue, offset: int) -> int:
        """Returns when the message at an offset was stored (ms), 0 if it is not there."""
        return store_time(self._state.store, queue, offset)

    def progress(self, group: str, topic: str, queue_ids: range) -> dict[MessageQueue, ConsumeOffset]:
        """Returns a consumer group's progress in queues of a topic; where it has no offset, it is 0."""
        stored = self._state.metadata.offsets.get((group, topic), {})
        found: dict[MessageQueue, ConsumeOffset] = {}
        for queue_id in queue_ids:
            queue = self._state.store.queues.get(topic, queue_id)
            consumed = stored.get(queue_id, 0)
            found[self.name(topic, queue_id)] = ConsumeOffset(
                broker_offset=0 if queue is None else queue.max_offset,
                consumer_offset=consumed,
                last_timestamp=0 if queue is None else self.store_time(queue, consumed - 1),
                pull_offset=consumed,
            )
        return found
