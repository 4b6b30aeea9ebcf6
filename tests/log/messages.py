"""Records and stores of test size."""

from log.formats.layout import HEADER_BYTES
from log.formats.record import encode_record, pack_host
from log.options import StoreOptions
from log.store import Store

HOST = pack_host("127.0.0.1", 10911)
NOW = 1_700_000_000_000

TINY = StoreOptions(
    data_file_bytes=2048,
    index_file_units=16,
    prepare_ahead_bytes=1024,
    prepare_step_bytes=256,
    data_mappings=3,
    consume_queue_file_units=8,
    consume_queue_mappings=4,
    index_slots=7,
    index_entries=16,
    index_mappings=2,
    zero_gap_bytes=1 << 20,
)
"""Every file rolls after some messages."""


def make_record(
    physical_offset: int,
    *,
    topic: str = "T",
    queue_id: int = 0,
    queue_offset: int = 0,
    body: bytes = b"body",
    properties: bytes = b"",
    sys_flag: int = 0,
    store_time: int = NOW,
    host: bytes = HOST,
) -> bytes:
    return encode_record(
        topic.encode(),
        queue_id,
        0,
        queue_offset,
        physical_offset,
        sys_flag,
        store_time,
        host,
        store_time,
        host,
        0,
        0,
        body,
        properties,
    )


def queue_ends(store: Store) -> dict[tuple[str, int], int]:
    """Returns by (topic, queue id) the offset that a leader gives to the next message."""
    return {
        (queue.topic, queue.queue_id): queue.max_offset for queue in store.queues
    } | store.queue_ends_behind_dispatch()


class Writer:
    """Appends messages to a store as a leader would, assigning queue offsets."""

    def __init__(self, store: Store, term: int = 1) -> None:
        self.store = store
        self.term = term
        self.ends = queue_ends(store)

    def send(
        self,
        topic: str = "T",
        queue_id: int = 0,
        body: bytes = b"body",
        properties: bytes = b"",
        sys_flag: int = 0,
        store_time: int = NOW,
    ) -> int:
        """The index of the entry."""
        offset = self.ends.get((topic, queue_id), 0)
        counts = topic != "TRIVET_SYS_RAFT_LOG" and sys_flag & 0xC not in (4, 12)
        draft = make_record(
            0,
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset if counts else 0,
            body=body,
            properties=properties,
            sys_flag=sys_flag,
            store_time=store_time,
        )
        position = self.store.log.next_position(len(draft))
        record = draft[:28] + (position + HEADER_BYTES).to_bytes(8, "big") + draft[36:]
        index = self.store.log.append(self.term, record)
        if counts:
            self.ends[topic, queue_id] = offset + 1
        return index
