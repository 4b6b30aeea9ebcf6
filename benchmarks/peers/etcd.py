"""etcd: puts of keys of their own, over gRPC; a majority's disks. The few messages are encoded by hand."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.processes import HOST, Servers, free_base_port, until
from benchmarks.peers.workloads import Group, Setting

_CALL_S = 30.0
_PAGE_KEYS = 1000


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, value: bytes | int) -> bytes:
    """One field of a protocol buffer: bytes, or a number."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


class _EtcdGroup:
    def __init__(self, servers: Servers, ports: list[int]) -> None:
        self._servers = servers
        self._ports = ports
        self._channels: list[Any] = []
        self._leader = 0
        self._sent = 0

    @property
    def pids(self) -> list[int]:
        return self._servers.pids

    def _call(self, position: int, name: str) -> Any:
        while len(self._channels) < len(self._ports):
            import grpc.aio

            port = self._ports[len(self._channels)]
            self._channels.append(grpc.aio.insecure_channel(f"{HOST}:{port}"))
        return self._channels[position].unary_unary(f"/etcdserverpb.{name}")

    async def connect(self) -> None:
        """Finds the leader: the member that names its own id as the leader's."""
        import grpc

        for position in range(len(self._ports)):
            try:
                status = await self._call(position, "Maintenance/Status")(b"", timeout=1.0)
            except grpc.RpcError:
                continue
            fields = _fields(status)
            header = _fields(bytes(fields.get(1, b"")))
            if fields.get(4) and fields[4] == header.get(2):
                self._leader = position
                return
        raise ConnectionError("no member leads")

    def _key(self) -> bytes:
        self._sent += 1
        return b"k%012d" % self._sent

    async def _ask(self, name: str, request: bytes) -> bytes:
        import grpc

        try:
            return bytes(await self._call(self._leader, name)(request, timeout=_CALL_S))
        except grpc.RpcError as error:
            raise ConnectionError(str(error)) from error

    async def send(self, body: bytes) -> None:
        await self._ask("KV/Put", _field(1, self._key()) + _field(2, body))

    async def send_all(self, body: bytes, count: int, setting: Setting) -> None:
        batch, in_flight = setting
        left = count // batch

        async def task() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                puts = [_field(1, self._key()) + _field(2, body) for _ in range(batch)]
                await self._ask("KV/Txn", b"".join(_field(2, _field(2, put)) for put in puts))

        await asyncio.gather(*(task() for _ in range(in_flight)))

    async def read_all(self, count: int) -> None:
        at, got = b"k", 0
        while got < count:
            # From the last key on, to the end of all keys that begin with k.
            page = await self._ask(
                "KV/Range", _field(1, at + b"\0") + _field(2, b"l") + _field(3, _PAGE_KEYS)
            )
            keys = _all_of(page, 2)
            assert keys, f"read {got} of {count}"
            got += len(keys)
            at = bytes(_fields(keys[-1])[1])

    async def kill_leader(self) -> None:
        await self._servers.kill(self._leader)

    async def reconnect(self) -> None:
        await self.connect()

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


def _items(message: bytes) -> list[tuple[int, Any]]:
    """The fields of a protocol buffer in order: numbers, and bytes."""
    at = 0
    found: list[tuple[int, Any]] = []

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = number()
        if tag & 7 == 0:
            found.append((tag >> 3, number()))
        else:
            assert tag & 7 == 2, "no other kind is in these answers"
            size = number()
            found.append((tag >> 3, message[at : at + size]))
            at += size
    return found


def _fields(message: bytes) -> dict[int, Any]:
    return dict(_items(message))


def _all_of(message: bytes, field: int) -> list[bytes]:
    return [value for number, value in _items(message) if number == field]


class EtcdSystem:
    name = "etcd"
    settings: dict[int, list[Setting]] = {size: [(32, 16), (128, 4), (128, 16)] for size in (1024, 100)}
    """Transactions of as many puts as it allows by default."""

    def __init__(self) -> None:
        self.version = subprocess.check_output(["etcd", "--version"], text=True).splitlines()[0]

    @asynccontextmanager
    async def fresh(self, folder: Path) -> AsyncIterator[Group]:
        base = free_base_port(6)
        ports, peers = list(range(base, base + 3)), range(base + 3, base + 6)
        servers = Servers(folder)
        group = _EtcdGroup(servers, ports)
        try:
            for i, port in enumerate(ports):
                command: list[str | Path] = ["etcd", "--name", f"n{i}", "--data-dir", folder / f"n{i}"]
                command += ["--listen-client-urls", f"http://{HOST}:{port}"]
                command += ["--advertise-client-urls", f"http://{HOST}:{port}"]
                command += ["--listen-peer-urls", f"http://{HOST}:{peers[i]}"]
                command += ["--initial-advertise-peer-urls", f"http://{HOST}:{peers[i]}"]
                members = ",".join(f"n{k}=http://{HOST}:{peer}" for k, peer in enumerate(peers))
                command += ["--initial-cluster", members, "--log-level", "error"]
                servers.start(f"n{i}", [*command, "--quota-backend-bytes", str(8 << 30)])
            await until(group.connect, "a leader")
            yield group
            await group.close()
        finally:
            await servers.stop()
