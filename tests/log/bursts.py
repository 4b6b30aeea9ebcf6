"""Messages of all kinds in a log, in bursts that may be runs, and what dispatch leaves of them."""

import random
from collections.abc import Iterator
from dataclasses import replace

from log.dispatching.dispatch import Allowance
from log.errors import DiskFullError, QueueOrderError
from log.formats.layout import HEADER_BYTES
from log.formats.loops import PURE, Loops
from log.formats.own_topics import INTERNAL_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from log.formats.record import SMALLEST_RECORD_BYTES, pack_host
from log.store import Store
from tests.log.memory_disk import MemoryDisk
from tests.log.messages import HOST, NOW, TINY, Writer, make_record

OPTIONS = replace(
    TINY, data_file_bytes=1 << 15, index_file_units=64, index_slots=31, index_entries=90, dispatch_entries=200
)
TOPICS = ["T", "T", "Kreis-ü", "x" * 127, "a/b", ".", "\x7f"]
SPECIAL = [SCHEDULE_TOPIC, TIMER_TOPIC, INTERNAL_TOPIC, b"TRANS_CHECK_MAX_TIME_TOPIC"]
HOST_V6 = pack_host("::1", 1)
PROPERTIES = [
    b"",
    b"TAGS\x01a\x02",
    b"UNIQ_KEY\x01%08d\x02TAGS\x01a\x02",
    b"UNIQ_KEY\x01%08d\x02KEYS\x01k%04d",
    b"KEYS\x01k%04d",
    b"KEYS\x01one two%04d\x02",
    b"XUNIQ_KEY\x01%08d\x02TAGS\x01b\x02",
    b"UNIQ_KEY\x01%08d\x02TAGS\x01t%d\x02",
    b"UNIQ_KEY\x01\x02UNIQ_KEY\x01%08d\x02",
    b"a\x01b\x01%08d\x02\x02TAGS\x01\x02b",
    b"UNIQ_KEY\x01" + b"u" * 300 + b"%08d\x02",
]


def burst(rng: random.Random, writer: Writer, made: int) -> int:
    """Appends messages that may be a run, with something odd among them now and then; returns how many."""
    count = rng.choice([1, 2, 5, 20, 60])
    topic = rng.choice(SPECIAL).decode() if rng.random() < 0.15 else rng.choice(TOPICS)
    queue_id, template = rng.choice([0, 0, 1, -1]), rng.choice(PROPERTIES)
    body = rng.randbytes(rng.randrange(50))
    oddness = rng.choice([0.0, 0.0, 0.05])
    for number in range(made, made + count):
        places = template.count(b"%")
        properties = template % ((number,) * places) if places else template
        sys_flag = 0
        if rng.random() < oddness:
            odd = rng.randrange(6)
            if odd == 0 and properties:
                at = rng.randrange(len(properties))
                properties = (
                    properties[:at]
                    + rng.choice([b"\x01", b"\x02", b" ", b"\xff", b"z"])
                    + properties[at + 1 :]
                )
            elif odd == 1:
                sys_flag = rng.choice([4, 8, 12])
            elif odd == 2:
                body = rng.randbytes(rng.randrange(50))
            elif odd == 3:
                queue_id = rng.choice([0, 1])
            elif odd == 4:
                hostile(rng, writer, topic, queue_id, body, properties)
            else:
                writer.ends[topic, queue_id] = writer.ends.get((topic, queue_id), 0)
                writer.store.log.append(writer.term, rng.randbytes(rng.randrange(1, 200)))
        writer.send(topic, queue_id, body, properties, sys_flag, NOW + number)
    return count


def hostile(
    rng: random.Random, writer: Writer, topic: str, queue_id: int, body: bytes, properties: bytes
) -> None:
    """Appends the next message of a queue with IPv6 hosts, or with a wrong byte in what leads to its parts."""
    log = writer.store.log
    offset = writer.ends.get((topic, queue_id), 0)
    host = rng.choice([HOST, HOST_V6])

    def record(physical_offset: int) -> bytes:
        return make_record(
            physical_offset,
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            body=body,
            properties=properties,
            host=host,
        )

    damaged = bytearray(record(log.next_position(len(record(0))) + HEADER_BYTES))
    topic_at = SMALLEST_RECORD_BYTES - 3 + len(body) + 2 * (len(host) - len(HOST))
    magic, physical, flags, body_length = range(4, 8), range(28, 36), range(36, 40), range(84, 88)
    places = rng.choice([range(4), magic, physical, flags, body_length, (topic_at,), ()])
    for at in places:
        damaged[at] = rng.choice([damaged[at], damaged[at] ^ 1 << rng.randrange(8), 0, 0xFF])
    log.append(writer.term, bytes(damaged))


def written(disk: MemoryDisk) -> dict[str, bytes]:
    """All that a log and its dispatch leave."""
    return {path: bytes(file.seen) for path, file in disk.files.items()}


def dispatched(
    seed: int, *, full: bool = False, loops: Loops = PURE, allowance: Allowance | None = None
) -> Iterator[object]:
    """What dispatch tells, step by step, and the bytes that it leaves; only these where something cuts it short."""
    rng = random.Random(seed)
    disk = MemoryDisk()
    store, _ = Store.open(disk, replace(OPTIONS, loops=loops), NOW)
    writer = Writer(store)
    made = 0
    while made < 900:
        made += burst(rng, writer, made)
    step = random.Random(seed)
    arrivals: dict[tuple[str, int], tuple[int, int]] = {}
    while store.dispatched_index < store.log.last_index:
        if full and step.random() < 0.3:
            disk.free_pages = step.randrange(3)
        upto = min(store.log.last_index, store.dispatched_index + step.randrange(1, 400))
        try:
            outcome = store.dispatch(
                upto,
                NOW,
                stop_at_internal=step.random() < 0.5,
                allowance=None if allowance is None else replace(allowance),
            )
        except DiskFullError:
            disk.free_pages = None
            continue
        except QueueOrderError as error:
            yield str(error)  # the node stops
            return
        for topic, queue_id, first, end in outcome.arrivals:
            before = arrivals.get((topic, queue_id), (first, first))
            assert before[1] == first, "arrivals follow each other"
            arrivals[topic, queue_id] = (before[0], end)
        if not full and allowance is None:
            yield outcome.last_index, [(index, bytes(record)) for index, record in outcome.internal]
    disk.free_pages = None
    store.index.write()
    yield arrivals
    yield written(disk)
