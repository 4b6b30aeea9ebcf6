"""A name server and a broker in one process that do next to nothing: what a client costs beside them is its own.

Every send is answered as stored as soon as it is read, every pull with the same records, all that a read holds with one
write. Started by `client_cost.py`; says its port, and ends with its standard input.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import struct
import sys
from typing import Final

from broker.remoting.codes import RequestCode
from log.formats.record import encode_record, pack_host

TOPIC: Final = "Cost"
GROUP: Final = "STUB"
BODY_BYTES: Final = 1024
PULL_BYTES_MAX: Final = 256 * 1024
"""What a pull gets that does not ask for a number of bytes, as at Trivet's brokers."""
RECORDS: Final = 1024
MESSAGES_MAX: Final = 1 << 40

_HEADER: Final = re.compile(rb'\{"code":(\d+),.*"opaque":(\d+)', re.DOTALL)
_OFFSET: Final = re.compile(rb'"queueOffset":"(\d+)","maxMsgNums":"(\d+)"')
_BYTES: Final = re.compile(rb'"maxMsgBytes":"(\d+)"')
_START: Final = struct.Struct(">II")
_QUEUE_OFFSET_AT: Final = 20

_STORED: Final = (
    b'{"code":0,"extFields":{"queueId":"0","TRACE_ON":"true","MSG_REGION":"DefaultRegion",'
    b'"msgId":"7F00000100002A9F%016X","transactionId":"7F000001000000000000000000000000",'
    b'"queueOffset":"%d"},"flag":1,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":409}'
)
_PULLED: Final = (
    b'{"code":0,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"%d","minOffset":"0","maxOffset":"%d"},'
    b'"flag":1,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":409}'
)
_PLAIN: Final = (
    b'{"code":0,"flag":1,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":409}'
)


def records() -> bytes:
    """Records with bodies of 1 KiB, as many as a pull gets at most; their offsets count from 0."""
    host = pack_host("127.0.0.1", 10911)
    properties = b"UNIQ_KEY\x017F000001000000000000000000000000\x02"
    return b"".join(
        encode_record(
            TOPIC.encode(),
            0,
            0,
            number,
            number * 1200,
            0,
            0,
            host,
            0,
            host,
            0,
            0,
            bytes(BODY_BYTES),
            properties,
        )
        for number in range(RECORDS)
    )


class Stub:
    """Answers what has come on one connection."""

    def __init__(self, port: int) -> None:
        address = f"127.0.0.1:{port}"
        self._route = json.dumps(
            {
                "brokerDatas": [{"brokerAddrs": {"0": address}, "brokerName": GROUP, "cluster": "c"}],
                "filterServerTable": {},
                "queueDatas": [
                    {
                        "brokerName": GROUP,
                        "perm": 6,
                        "readQueueNums": 1,
                        "writeQueueNums": 1,
                        "topicSysFlag": 0,
                    }
                ],
            }
        ).encode()
        self._records = bytearray(records())
        self._size = len(self._records) // RECORDS
        self._stored = 0

    def answer(self, data: bytes) -> tuple[list[bytes | bytearray], int]:
        """Return the answers to all whole frames, and how many bytes those took."""
        answers: list[bytes | bytearray] = []
        at, end = 0, len(data)
        while end - at >= 8:
            length, header_length = _START.unpack_from(data, at)
            if at + 4 + length > end:
                break
            header = data[at + 8 : at + 8 + (header_length & 0xFFFFFF)]
            at += 4 + length
            found = _HEADER.match(header)
            assert found is not None, header
            code, opaque = int(found[1]), int(found[2])
            body: bytes | bytearray = b""
            if code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
                self._stored += 1
                head = _STORED % (self._stored * 1200, self._stored, opaque)
            elif code == RequestCode.PULL_MESSAGE:
                asked = _OFFSET.search(header)
                assert asked is not None
                most = _BYTES.search(header)
                size = PULL_BYTES_MAX if most is None else int(most[1])
                begin, count = int(asked[1]), min(int(asked[2]), RECORDS, size // self._size)
                head = _PULLED % (begin + count, MESSAGES_MAX, opaque)
                body = self._records_from(begin, count)
            else:
                head = _PLAIN % opaque
                body = self._route if code == RequestCode.GET_ROUTEINFO_BY_TOPIC else b""
            answers.append(_START.pack(4 + len(head) + len(body), len(head)) + head)
            if body:
                answers.append(body)
        return answers, at

    def _records_from(self, begin: int, count: int) -> bytearray:
        found = self._records[: count * self._size]
        for number in range(count):
            struct.pack_into(">q", found, number * self._size + _QUEUE_OFFSET_AT, begin + number)
        return found


def serve() -> None:
    """Serve until standard input ends."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    port = listener.getsockname()[1]
    print(port, flush=True)
    stub = Stub(port)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    rests: dict[socket.socket, bytes] = {}
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                return
            if key.fileobj is listener:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connection, selectors.EVENT_READ)
                rests[connection] = b""
                continue
            connection = key.fileobj  # type: ignore[assignment]
            try:
                read = connection.recv(256 * 1024)
            except ConnectionError:
                read = b""
            if not read:
                selector.unregister(connection)
                connection.close()
                continue
            data = rests[connection] + read
            answers, taken = stub.answer(data)
            rests[connection] = data[taken:]
            if answers:
                connection.sendall(b"".join(answers))


if __name__ == "__main__":
    serve()
