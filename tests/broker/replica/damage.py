"""Groups whose disks are damaged while they run."""

from collections.abc import Callable
from dataclasses import replace

from broker.replica.replica import Replica
from log.entries.entry_reads import index_at
from log.formats.layout import HEADER_BYTES, UNIT_BYTES
from log.queues.consume_queue import UNIT_BYTES as QUEUE_UNIT_BYTES
from tests.broker.harness import SMALL_STORE, Group

MESSAGES = 60
FILE = 16 * 1024
OPTIONS = replace(
    SMALL_STORE,
    data_file_bytes=FILE,
    hot_bytes=FILE,
    index_file_units=32,
    consume_queue_file_units=16,
    index_slots=7,
    index_entries=16,
)


SCRUBBED = {"scrub_bytes_per_second": 1 << 30, "scrub_interval_s": 1}


def group_of(size: int = 3, *, scrubbed: bool = True) -> Group:
    group = Group.elected(size, options=OPTIONS, storage=SCRUBBED if scrubbed else {})
    client = group.connect(group.leader)
    client.create_topic("T")
    client.heartbeat("g")
    for number in range(MESSAGES):
        keys = {"UNIQ_KEY": f"u{number}", "KEYS": f"k{number % 7} all"}
        client.send("T", b"%02d" % number + bytes(1000), properties=keys)
    group.converge()
    group.advance(3.5)  # and a checkpoint, which sums up index files
    group.advance(0.6)  # what is not on the disk is no scrubber's business
    return group


def replica_of(group: Group, node: str) -> Replica:
    return group.node(node).replica


class Damage:
    """Bytes of a node's files that are changed as a disk would, below everything that runs."""

    def __init__(self, group: Group, node: str) -> None:
        self.replica = replica_of(group, node)
        self._files = group.members[node].disk.files

    def flip(self, path: str, at: int, count: int = 1) -> None:
        for place in range(at, at + count):
            self._files[path].seen[place] ^= 0x40
            self._files[path].durable[place] ^= 0x40

    def entry(self, index: int, at: int, count: int = 1) -> None:
        """Damages an entry, `at` bytes behind its beginning."""
        position = self.replica.store.log.position_of(index)
        start = position - position % FILE
        self.flip(self.path_of_data(start), position - start + at, count)

    def path_of_data(self, start: int) -> str:
        return f"dledger-{self.replica.node_id}/data/{start:020d}"

    def unit(self, index: int, at: int) -> None:
        byte = index * UNIT_BYTES
        file_bytes = OPTIONS.index_file_units * UNIT_BYTES
        start = byte - byte % file_bytes
        self.flip(f"dledger-{self.replica.node_id}/index/{start:020d}", byte - start + at)

    def queue_unit(self, offset: int, at: int, count: int = 1) -> None:
        byte = offset * QUEUE_UNIT_BYTES
        file_bytes = OPTIONS.consume_queue_file_units * QUEUE_UNIT_BYTES
        start = byte - byte % file_bytes
        self.flip(f"consumequeue/T/0/{start:020d}", byte - start + at, count)


def entry_of(replica: Replica, offset: int) -> int:
    """The entry of message `offset` of T."""
    queue = replica.store.queues.get("T", 0)
    assert queue is not None
    unit = queue.unit(offset)
    assert unit is not None
    return index_at(replica.store.log, unit[0] - HEADER_BYTES)


def same_files(group: Group, what: str) -> bool:
    """True if all nodes hold the same below a directory, in the page cache and on the disk."""
    contents = []
    for member in group.alive():
        for kind in ("seen", "durable"):
            files = {
                path.replace(f"dledger-{member.id}", ""): bytes(getattr(file, kind))
                for path, file in member.disk.files.items()
                if what in path
            }
            contents.append(files)
    return all(content == contents[0] for content in contents)


def old_files_are_the_same(group: Group) -> Callable[[], bool]:
    """Of the data files all but the last one: what behind it is not flushed differs from node to node."""

    def same() -> bool:
        last = replica_of(group, group.leader).store.log.file_starts()[-1]
        return all(same_files(group, f"/data/{start:020d}") for start in range(0, last, FILE))

    return same
