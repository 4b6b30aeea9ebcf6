"""A logging proxy between a client and a group: every frame of both directions as a JSON line.

    python -m tests.interop.proxy --namesrv 127.0.0.1:9876 > frames.jsonl

prints ``{"event": "proxy", "namesrv": ...}``, to which a client is then pointed. Routes that the name server answers
are rewritten so that brokers are reached through the proxy too. A development tool: it shows what a client puts on the
wire and what a broker answers, for the reference and for Trivet alike.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import struct
import sys
import threading
from dataclasses import dataclass, field

from tests.interop.cluster import HOST

ADDRESS = re.compile(rb"\b(\d+\.\d+\.\d+\.\d+:\d+)\b")
ROUTE_REQUESTS = {105, 106}
SHOWN_BODY_BYTES = 600


@dataclass(slots=True)
class Proxy:
    """Listeners on loopback, one for each upstream address met so far."""

    listeners: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def front_of(self, upstream: str) -> str:
        """The loopback address that leads to ``upstream``, made on first use."""
        with self.lock:
            if upstream not in self.listeners:
                listener = socket.create_server((HOST, 0))
                self.listeners[upstream] = f"{HOST}:{listener.getsockname()[1]}"
                threading.Thread(target=self._accept, args=(listener, upstream), daemon=True).start()
            return self.listeners[upstream]

    def _accept(self, listener: socket.socket, upstream: str) -> None:
        host, _, port = upstream.rpartition(":")
        while True:
            downstream, _ = listener.accept()
            try:
                server = socket.create_connection((host, int(port)), timeout=5)
            except OSError as error:
                write(event="refused", server=upstream, error=str(error))
                downstream.close()
                continue
            server.settimeout(None)
            routes: set[int] = set()
            for source, target, direction in ((downstream, server, "->"), (server, downstream, "<-")):
                arguments = (source, target, direction, upstream, routes)
                threading.Thread(target=self._relay, args=arguments, daemon=True).start()

    def _relay(
        self, source: socket.socket, target: socket.socket, direction: str, upstream: str, routes: set[int]
    ) -> None:
        """Copies frames one way. ``routes`` holds the opaques of route requests that await their answer."""
        try:
            while (frame := read_frame(source)) is not None:
                header = describe(frame, direction, upstream)
                if direction == "->" and header.get("code") in ROUTE_REQUESTS:
                    routes.add(header["opaque"])
                elif direction == "<-" and header.get("opaque") in routes:
                    routes.discard(header["opaque"])
                    frame = self._rewritten(frame)
                target.sendall(struct.pack(">I", len(frame)) + frame)
        except OSError:
            pass
        finally:
            write(event="closed", server=upstream, direction=direction)
            for end in (source, target):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def _rewritten(self, frame: bytes) -> bytes:
        header_end = 4 + (struct.unpack_from(">I", frame)[0] & 0xFFFFFF)
        body = ADDRESS.sub(lambda match: self.front_of(match[1].decode()).encode(), frame[header_end:])
        return frame[:header_end] + body


def read_frame(connection: socket.socket) -> bytes | None:
    """One frame without its length field; None at the end of the stream."""
    prefix = _read(connection, 4)
    return None if prefix is None else _read(connection, struct.unpack(">I", prefix)[0])


def _read(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 16))
        if not part:
            return None
        parts += part
    return bytes(parts)


def describe(frame: bytes, direction: str, upstream: str) -> dict[str, int]:
    """Logs the frame; gives its code and opaque where the header is JSON."""
    (word,) = struct.unpack_from(">I", frame)
    serialization, length = word >> 24, word & 0xFFFFFF
    raw_header, body = frame[4 : 4 + length], frame[4 + length :]
    write(
        event="frame",
        direction=direction,
        server=upstream,
        serialization=serialization,
        header=raw_header.decode(errors="backslashreplace") if serialization == 0 else raw_header.hex(),
        body_size=len(body),
        body=body[:SHOWN_BODY_BYTES].decode("latin-1"),
    )
    if serialization == 0:
        header = json.loads(raw_header)
        return {"code": header["code"], "opaque": header["opaque"]}
    code, _, _, opaque = struct.unpack_from(">hbhi", raw_header)
    return {"code": code, "opaque": opaque}


_output = threading.Lock()


def write(**fields: object) -> None:
    with _output:
        print(json.dumps(fields), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", required=True)
    options = parser.parse_args()
    write(event="proxy", namesrv=Proxy().front_of(options.namesrv))
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
