"""Small stores for tests: opened, filled, flushed, noted, and what was built in them."""

import random

from log.files.mmap_disk import MmapDisk
from log.formats.own_topics import INTERNAL_TOPIC
from log.notes.hard_state import StoredHardState
from log.queues.consume_queue import ConsumeQueue
from log.store import RecoveryReport, Store
from tests.log.memory_disk import MemoryDisk
from tests.log.messages import NOW, TINY, Writer

INTERNAL = INTERNAL_TOPIC.decode()


def open_store(disk: MemoryDisk | MmapDisk) -> tuple[Store, RecoveryReport]:
    store, report = Store.open(disk, TINY, NOW)
    if store.hard_state.read() is None:
        store.hard_state.write(StoredHardState(1, "n0"))
    return store, report


def send_many(store: Store, count: int, *, seed: int = 0) -> None:
    rng = random.Random(seed)
    writer = Writer(store)
    for number in range(count):
        if number % 10 == 3:
            writer.send(INTERNAL, body=b"command %d" % number)
            continue
        writer.send(
            f"topic-{rng.randrange(3)}",
            rng.randrange(3),
            body=rng.randbytes(rng.randrange(40)),
            properties=b"UNIQ_KEY\x01u%d\x02TAGS\x01Tag%d\x02KEYS\x01k%d all"
            % (number, number % 3, number % 7),
            store_time=NOW + 100 * number,
        )


def units_of(queue: ConsumeQueue) -> list[tuple[int, int, int]]:
    units: list[tuple[int, int, int]] = []
    while queue.min_offset + len(units) < queue.max_offset:
        units += queue.units(queue.min_offset + len(units), 1000)
    return units


def derived(store: Store) -> dict[str, object]:
    """All that dispatch built, to be compared."""
    state: dict[str, object] = {
        f"{queue.topic}/{queue.queue_id}": (queue.min_offset, queue.max_offset, units_of(queue))
        for queue in sorted(store.queues, key=lambda queue: (queue.topic, queue.queue_id))
        if queue.max_offset
    }
    for topic in range(3):
        for key in [*(f"k{number}" for number in range(7)), "all", "u5", "u40"]:
            name = f"topic-{topic}"
            state[f"{name}#{key}"] = store.find_by_key(name, key, 64)
    return state


def checkpoint(store: Store, commit_index: int) -> None:
    job = store.checkpoints.job(commit_index)
    if job is None:
        assert store.checkpoints.waits
        flush(store)
        job = store.checkpoints.job(commit_index)
    assert job is not None
    job.run()
    store.checkpoints.done(job)


def flush(store: Store) -> int:
    job = store.log.flushes.job()
    if job is not None:
        job.run()
        store.log.flushes.done(job)
    return store.log.durable_index


def flip(disk: MemoryDisk, path: str, at: int) -> None:
    disk.files[path].seen[at] ^= 1
