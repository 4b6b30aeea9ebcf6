"""A lean client of RocketMQ's protocol over asyncio: the same for every broker that speaks it.

It encodes by templates and matches answers by opaque, and does nothing else: no repetition, no time limits, no routes.
"""

from __future__ import annotations

import asyncio
import json
import re
import struct
import time
from collections.abc import Callable, Sequence

TOPIC = "Bench"
QUEUES = 4

SEND_V2 = 310
SEND_BATCH = 320
PULL = 11
SYSTEM_BUSY = 2

_FRAME = struct.Struct(">II")
_OPAQUE = re.compile(rb'"opaque":(\d+)')
_CODE = re.compile(rb'"code":(\d+)')


class RefusedError(Exception):
    """The broker answered a send or pull with an error code."""

    def __init__(self, code: int, detail: str = "") -> None:
        super().__init__(f"code {code} {detail}")
        self.code = code


class Connection(asyncio.Protocol):
    """One connection; ``answers`` maps opaques to what is called with (code, body)."""

    def __init__(self) -> None:
        self.answers: dict[int, Callable[[int, bytes], None]] = {}
        self.transport: asyncio.Transport
        self.lost: BaseException | None = None
        self._buffer = bytearray()
        self._opaque = 0

    @classmethod
    async def open(cls, address: str) -> Connection:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, host, int(port))
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = error or ConnectionError("closed")
        for answer in list(self.answers.values()):
            answer(-1, b"")
        self.answers.clear()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start, size = 0, len(buffer)
        while size - start >= 8:
            length, word = _FRAME.unpack_from(buffer, start)
            end = start + 4 + length
            if end > size:
                break
            body_start = start + 8 + (word & 0xFFFFFF)
            header = bytes(buffer[start + 8 : body_start])
            opaque, code = _OPAQUE.search(header), _CODE.search(header)
            assert opaque is not None
            assert code is not None
            answer = self.answers.pop(int(opaque[1]), None)
            if answer is not None:
                answer(int(code[1]), bytes(buffer[body_start:end]))
            start = end
        del buffer[:start]

    def request(
        self, template: tuple[bytes, bytes], body: bytes, answer: Callable[[int, bytes], None]
    ) -> None:
        """Sends one request; ``template`` is its header around the opaque."""
        if self.lost is not None:
            raise ConnectionError("closed")
        self._opaque += 1
        self.answers[self._opaque] = answer
        header = b"%b%d%b" % (template[0], self._opaque, template[1])
        self.transport.write(_FRAME.pack(4 + len(header) + len(body), len(header)) + header + body)

    async def ask(self, template: tuple[bytes, bytes], body: bytes = b"") -> bytes:
        """The body of the answer; raises RefusedError for a code other than success."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def answer(code: int, answered: bytes) -> None:
            if future.done():
                return
            if code == 0:
                future.set_result(answered)
            else:
                future.set_exception(RefusedError(code))

        self.request(template, body, answer)
        return await future

    async def send_all(
        self, templates: Sequence[tuple[bytes, bytes]], body: bytes, count: int, in_flight: int
    ) -> None:
        """Sends so many requests with this body, by the templates in turn; those that a busy broker refused, again.

        Raises RefusedError.
        """
        left = waits = count
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def send_one() -> None:
            nonlocal left
            left -= 1
            self.request(templates[left % len(templates)], body, answered)

        def answered(code: int, _: bytes) -> None:
            nonlocal left, waits
            if code == SYSTEM_BUSY:
                left += 1
            elif code == 0:
                waits -= 1
            elif not done.done():
                done.set_exception(RefusedError(code))
            if done.done():
                return
            if left:
                send_one()
            elif not waits:
                done.set_result(None)

        for _ in range(min(in_flight, left)):
            send_one()
        await done


def template(code: int, fields: dict[str, str]) -> tuple[bytes, bytes]:
    """A JSON header cut in two at the place of its opaque."""
    header = {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 0, "version": 407}
    text = json.dumps(header, separators=(",", ":")).encode()
    before, after = text.split(b'"opaque":0', 1)
    return before + b'"opaque":', after


def send_template(code: int, queue: int, properties: str = "") -> tuple[bytes, bytes]:
    """SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE to one queue."""
    fields = {"a": "BENCH", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "h": "0"}
    fields |= {
        "i": properties,
        "g": str(int(time.time() * 1000)),
        "j": "0",
        "k": "false",
        "m": str(code == SEND_BATCH).lower(),
    }
    return template(code, fields)


SENDS = [send_template(SEND_V2, queue) for queue in range(QUEUES)]
BATCHES = [send_template(SEND_BATCH, queue) for queue in range(QUEUES)]


def batch_body(body: bytes, count: int) -> bytes:
    """``count`` messages without properties in the form of SEND_BATCH_MESSAGE."""
    size = 4 + 4 + 4 + 4 + 4 + len(body) + 2
    return (struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body + b"\0\0") * count


def pull_template(queue: int, offset: int, count: int) -> tuple[bytes, bytes]:
    fields = {"consumerGroup": "BENCH", "topic": TOPIC, "queueId": str(queue), "queueOffset": str(offset)}
    fields |= {"maxMsgNums": str(count), "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
    return template(PULL, fields | {"subscription": "*", "subVersion": "0"})


def messages_in(records: bytes) -> int:
    """Count the records that lie back to back; each begins with its size."""
    count = position = 0
    while position < len(records):
        (size,) = struct.unpack_from(">i", records, position)
        position += size
        count += 1
    assert position == len(records), "a record is cut off"
    return count
