"""The limits of the machine: the work that no replicated log can avoid, measured bare.

For one message of n bytes three replicas each write n bytes into their mapping, and the bytes cross the loopback three
times: client to leader, leader to each follower. Nothing else is counted; no checksum, no Python per message. The
resulting rate is the ceiling that workload C is compared with.
"""

import contextlib
import mmap
import os
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path

import msgspec

_CHUNK = 256 * 1024
_MAPPING_BYTES = 64 * 1024 * 1024
_LOOPBACK_BYTES = 256 * 1024 * 1024
_FLUSHES = 50


class RawLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of one core, and the ceilings that follow for both cores together."""

    mapping_first_write_bytes_per_s: float
    """Into pages of a new file that nobody touched."""
    mapping_rewrite_bytes_per_s: float
    """Into the same pages again."""
    loopback_bytes_per_s: float
    """Sent and received, both ends busy."""
    flush_1_kib_ms: float
    """Median of a 1 KiB write and its flush."""
    cores: int
    ceiling_1_kib_msgs_per_s: float
    ceiling_100_b_msgs_per_s: float


def measure_limits(directory: Path) -> RawLimits:
    """Measure in ``directory``, which should be on the disk of the stores; takes about two seconds."""
    first, again = _mapping_rates(directory)
    loopback = _loopback_rate()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def ceiling(message_bytes: int) -> float:
        # A transfer keeps two ends busy, each about for its duration.
        core_s = 3 * message_bytes / first + 3 * 2 * message_bytes / loopback
        return cores / core_s

    return RawLimits(
        mapping_first_write_bytes_per_s=first,
        mapping_rewrite_bytes_per_s=again,
        loopback_bytes_per_s=loopback,
        flush_1_kib_ms=_flush_ms(directory),
        cores=cores,
        ceiling_1_kib_msgs_per_s=ceiling(1024),
        ceiling_100_b_msgs_per_s=ceiling(100),
    )


def _mapping_rates(directory: Path) -> tuple[float, float]:
    data = os.urandom(_CHUNK)
    with tempfile.TemporaryFile(dir=directory) as file:
        os.posix_fallocate(file.fileno(), 0, _MAPPING_BYTES)
        with mmap.mmap(file.fileno(), _MAPPING_BYTES) as mapped, memoryview(mapped) as view:
            rates = []
            for _ in range(2):
                begin = time.perf_counter()
                for offset in range(0, _MAPPING_BYTES, _CHUNK):
                    view[offset : offset + _CHUNK] = data
                rates.append(_MAPPING_BYTES / (time.perf_counter() - begin))
    return rates[0], rates[1]


def _loopback_rate() -> float:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    with sender, receiver:
        thread = threading.Thread(target=_send_all, args=(sender,))
        buffer = memoryview(bytearray(_CHUNK))
        received = 0
        begin = time.perf_counter()
        thread.start()
        while received < _LOOPBACK_BYTES:
            received += receiver.recv_into(buffer)
        rate = received / (time.perf_counter() - begin)
        thread.join()
    return rate


def _send_all(sender: socket.socket) -> None:
    data = os.urandom(_CHUNK)
    with contextlib.suppress(OSError):  # the receiver was interrupted, and has closed both ends
        for _ in range(_LOOPBACK_BYTES // _CHUNK):
            sender.sendall(data)


def _flush_ms(directory: Path) -> float:
    taken = []
    with tempfile.TemporaryFile(dir=directory) as file:
        os.posix_fallocate(file.fileno(), 0, _FLUSHES * 4096)
        data = os.urandom(1024)
        for number in range(_FLUSHES):
            begin = time.perf_counter()
            os.pwrite(file.fileno(), data, number * 4096)
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - begin) * 1000)
    return statistics.median(taken)
