"""Microseconds per message of what the log does for every message: append, append_range, dispatch, record_at.

    .venv/bin/python benchmarks/log_hot_path.py [--messages N] [--body BYTES] [--directory DIR] [--json]

Single thread, page cache, pages prepared ahead as the shell does it. The limit line is a bare copy of the
same bytes into a touched mapping, measured in the same run.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable

from log.entries.entry_reads import record_at
from log.files.mmap_disk import MmapDisk
from log.formats.layout import HEADER_BYTES
from log.formats.record import encode_record, pack_host
from log.options import StoreOptions
from log.store import Store

_HOST = pack_host("127.0.0.1", 10911)
_RANGE_BYTES = 128 * 1024
_DISPATCH_BATCH = 64


def _record(number: int, physical_offset: int, body: bytes) -> bytes:
    properties = b"UNIQ_KEY\x01%032X\x02KEYS\x01key%d\x02TAGS\x01TagA\x02" % (number, number)
    return encode_record(
        b"BenchmarkTopic",
        number % 8,
        0,
        number // 8,
        physical_offset,
        0,
        1_700_000_000_000,
        _HOST,
        1_700_000_000_000,
        _HOST,
        0,
        0,
        body,
        properties,
    )


def _prepare(store: Store) -> None:
    job = store.log.prepare_job()
    if job is not None:
        job.run()
        store.log.prepared(job)


def _microseconds(messages: int, work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) / messages * 1e6


def measure(directory: str, messages: int, body_bytes: int) -> dict[str, float]:
    """Microseconds per message by step."""
    body = bytes(range(256)) * (body_bytes // 256 + 1)
    body = body[:body_bytes]
    options = StoreOptions(
        prepare_ahead_bytes=max(64 << 20, 2 * messages * (body_bytes + 400)), data_file_bytes=4 << 30
    )
    leader, _ = Store.open(MmapDisk(f"{directory}/leader"), options, 0)
    follower, _ = Store.open(MmapDisk(f"{directory}/follower"), options, 0)
    _prepare(leader)
    _prepare(follower)
    log = leader.log
    sample = _record(0, 0, body)
    position = log.next_position(len(sample)) + HEADER_BYTES
    encoded: list[bytes] = []

    def encode() -> None:
        nonlocal position
        for number in range(messages):
            record = _record(number, position, body)
            position += len(record) + HEADER_BYTES
            encoded.append(record)

    def append() -> None:
        for record in encoded:
            log.append(1, record)

    def append_range() -> None:
        index = 0
        while index < messages:
            run = log.run(index, log.last_index, _RANGE_BYTES)
            follower.log.append_range(follower.log.check_range(run.body, index, run.position))
            index = run.last_index + 1

    def dispatch(batch: int) -> None:
        while leader.dispatched_index < log.last_index:
            leader.dispatch(min(log.last_index, leader.dispatched_index + batch), 1_700_000_000_000)

    def dispatch_follower() -> None:
        follower.dispatch(follower.log.last_index, 1_700_000_000_000)

    def read_by_queue() -> None:
        for queue in leader.queues:
            offset = queue.min_offset
            while offset < queue.max_offset:
                for physical_offset, size, _ in queue.units(offset, 32):
                    record_at(log, physical_offset, size)
                offset += 32

    def copy() -> None:
        target = follower.log.file_of(0)[0].buffer
        begin = 0
        for record in encoded:
            end = begin + len(record)
            target[begin:end] = record
            begin = end

    results = {
        "encode record": _microseconds(messages, encode),
        "append": _microseconds(messages, append),
        "check and append range": _microseconds(messages, append_range),
        f"dispatch, {_DISPATCH_BATCH} at a time": _microseconds(messages, lambda: dispatch(_DISPATCH_BATCH)),
        "dispatch, all at once": _microseconds(messages, dispatch_follower),
        "read by queue": _microseconds(messages, read_by_queue),
        "limit: copy into touched mapping": _microseconds(messages, copy),
    }
    leader.abandon()
    follower.abandon()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--body", type=int, default=1024, help="bytes of each body")
    parser.add_argument("--directory", default=None, help="where to write; a temporary directory by default")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        results = measure(directory, arguments.messages, arguments.body)
    if arguments.json:
        print(json.dumps({name: round(value, 3) for name, value in results.items()}))
    else:
        for name, value in results.items():
            print(f"{name:36} {value:8.2f} us/message")


if __name__ == "__main__":
    main()
