"""A store as a RocketMQ DLedger node leaves it, made by code that shares nothing with log/ or broker/.

It writes what RocketMQ's classes write (`DLedgerMmapFileStore`, `MessageExtEncoder`, `ConsumeQueue`, `ConfigManager`),
as far as somebody reads it: no checksums in entries, unquoted numbers as keys, the last \\x02 of 4.9 left out.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import defaultdict
from pathlib import Path

from tests.log.plain_reader import plain_hash

FILE_BYTES = 8192
ENTRY_HEADER_BYTES = 48
QUEUE_FILE_UNITS = 50
BORN_HOST = bytes((10, 0, 0, 1)) + struct.pack(">i", 1234)
STORE_HOST = bytes((127, 0, 0, 1)) + struct.pack(">i", 10911)
START_MS = 1_700_000_000_000
DELAYS_MS = (1000, 5000)
"""The first delay levels."""

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OPERATIONS = "RMQ_SYS_TRANS_OP_HALF_TOPIC"


class RocketMQStore:
    """The directory of node n0; `save` writes it."""

    def __init__(
        self, root: Path, *, first_index: int = 0, first_file: int = 0, file_bytes: int = FILE_BYTES
    ) -> None:
        self.root = root
        self.file_bytes = file_bytes
        self.files: dict[int, bytearray] = {}
        self.units: dict[tuple[str, int], dict[int, tuple[int, int, int]]] = defaultdict(dict)
        self.next_offset: dict[tuple[str, int], int] = defaultdict(int)
        self.index = first_index
        self.position = first_file * file_bytes
        self.term = 0
        self.topics: dict[str, int] = {}
        self.groups: list[str] = []
        self.positions: dict[str, dict[int, int]] = {}
        self.delays: dict[int, int] = {}
        self.records: list[bytes] = []
        self.clean = True
        self.has_queues = True
        self.committed_behind = 0

    def send(
        self,
        topic: str,
        body: bytes = b"hello",
        queue: int = 0,
        properties: dict[str, str] | None = None,
        *,
        sys_flag: int = 0,
        offset: int | None = None,
        prepared: int = 0,
    ) -> int:
        """Appends a message; returns its physical offset."""
        key = (topic, queue)
        queued = sys_flag & 12 not in (4, 12)
        if offset is None:
            offset = self.next_offset[key] if queued else 0
        text = "\x02".join(f"{name}\x01{value}" for name, value in (properties or {}).items()).encode()
        raw_topic = topic.encode()
        long_topic = len(raw_topic) > 127
        size = 91 + len(body) + len(raw_topic) + len(text) + long_topic
        position = self._place(ENTRY_HEADER_BYTES + size)
        store_time = START_MS + self.index
        record = struct.pack(
            ">iIIiiqqiq8sq8siqi",
            size,
            0xDAA320AB if long_topic else 0xDAA320A7,
            zlib.crc32(body) & 0x7FFFFFFF,
            queue,
            0,
            offset,
            position + ENTRY_HEADER_BYTES,
            sys_flag,
            store_time,
            BORN_HOST,
            store_time,
            STORE_HOST,
            0,
            prepared,
            len(body),
        )
        record += body + len(raw_topic).to_bytes(1 + long_topic, "big") + raw_topic
        record += struct.pack(">h", len(text)) + text
        self._entry(position, record)
        if queued:
            self.next_offset[key] = offset + 1
            code = plain_hash((properties or {}).get("TAGS", ""))
            if topic == SCHEDULE:
                code = store_time + DELAYS_MS[queue]
            self.units[key][offset] = (position + ENTRY_HEADER_BYTES, size, code)
        return position + ENTRY_HEADER_BYTES

    def delay(self, topic: str, body: bytes, level: int, queue: int = 0) -> None:
        properties = {
            "DELAY": str(level),
            "REAL_TOPIC": topic,
            "REAL_QID": str(queue),
            "UNIQ_KEY": body.hex(),
        }
        self.send(SCHEDULE, body, level - 1, properties)

    def half(self, topic: str, body: bytes, **more: str) -> int:
        """Appends a half message; returns its offset among them."""
        properties = {
            "TRAN_MSG": "true",
            "PGROUP": "producers",
            "UNIQ_KEY": body.hex(),
            "REAL_TOPIC": topic,
            "REAL_QID": "0",
        }
        self.send(HALF, body, 0, properties | more)
        return self.next_offset[HALF, 0] - 1

    def decide(self, *halves: int) -> None:
        self.send(OPERATIONS, ",".join(map(str, halves)).encode(), 0, {"TAGS": "d"})

    def delete_topic(self, topic: str) -> None:
        """What RocketMQ's leader does: it forgets topic and queues, and keeps the messages in its log."""
        self.topics.pop(topic, None)
        for key in [key for key in self.next_offset if key[0] == topic]:
            del self.next_offset[key]
            self.units.pop(key, None)

    def save(self) -> Path:
        dledger = self.root / "dledger-n0"
        for start, data in self.files.items():
            write(dledger / "data" / f"{start:020d}", bytes(data))
        committed = self.index - 1 - self.committed_behind
        write(
            dledger / "checkpoint", f"#now\nendIndex={self.index - 1}\ncommittedIndex={committed}\n".encode()
        )
        write(dledger / "currterm", f"#now\ncurrTerm={self.term}\nvoteLeader=n0\n".encode())
        config = self.root / "config"
        topics = {
            name: {
                "topicName": name,
                "readQueueNums": queues,
                "writeQueueNums": queues,
                "perm": 6,
                "order": False,
            }
            for name, queues in {"TBW102": 8, SCHEDULE: 18, "broker-a": 1, **self.topics}.items()
        }
        write_json(config / "topics.json", {"dataVersion": {"counter": 3}, "topicConfigTable": topics})
        groups = {name: {"groupName": name, "retryQueueNums": 1, "retryMaxTimes": 5} for name in self.groups}
        groups["TOOLS_CONSUMER"] = {"groupName": "TOOLS_CONSUMER"}
        write_json(config / "subscriptionGroup.json", {"subscriptionGroupTable": groups})
        offsets = ",".join(
            f'"{key}":{{{",".join(f"{queue}:{offset}" for queue, offset in queues.items())}}}'
            for key, queues in self.positions.items()
        )
        write(config / "consumerOffset.json", f'{{"offsetTable":{{{offsets}}}}}'.encode())
        delays = ",".join(f"{level}:{offset}" for level, offset in self.delays.items())
        write(config / "delayOffset.json", f'{{"offsetTable":{{{delays}}}}}'.encode())
        write(self.root / "lock", b"lock")
        if not self.clean:
            write(self.root / "abort", b"4711")
        if self.has_queues:
            self._save_queues()
        return self.root

    def _save_queues(self) -> None:
        for (topic, queue), units in self.units.items():
            files: dict[int, bytearray] = {}
            for offset, unit in units.items():
                start = offset // QUEUE_FILE_UNITS * QUEUE_FILE_UNITS
                file = files.get(start)
                if file is None:
                    file = files[start] = bytearray(QUEUE_FILE_UNITS * 20)
                    for filler in range(min(units) - start if min(units) > start else 0):
                        struct.pack_into(">qiq", file, filler * 20, 0, 0x7FFFFFFF, 0)
                struct.pack_into(">qiq", file, (offset - start) * 20, *unit)
            for start, data in files.items():
                write(self.root / "consumequeue" / topic / str(queue) / f"{start * 20:020d}", bytes(data))

    def _place(self, size: int) -> int:
        left = self.file_bytes - self.position % self.file_bytes
        if size + 8 > left:
            file = self._file()
            struct.pack_into(">ii", file, self.position % self.file_bytes, -1, left)
            self.position += left
        return self.position

    def _file(self) -> bytearray:
        start = self.position // self.file_bytes * self.file_bytes
        if start not in self.files:
            self.files[start] = bytearray(self.file_bytes)
        return self.files[start]

    def _entry(self, position: int, record: bytes) -> None:
        file, size = self._file(), ENTRY_HEADER_BYTES + len(record)
        at = position % self.file_bytes
        struct.pack_into(
            ">iiqqqiiii", file, at, 1, size, self.index, self.term, position, 0, 0, 0, len(record)
        )
        file[at + ENTRY_HEADER_BYTES : at + size] = record
        self.records.append(record)
        self.index += 1
        self.position += size


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_json(path: Path, value: object) -> None:
    write(path, json.dumps(value, indent=2).encode())
