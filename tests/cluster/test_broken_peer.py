"""A peer that knows the group's secret and is broken, at the ports of real processes: the two others serve on.

The frames are those that `tests/hostile` sends to nodes without sockets: well-framed messages of every kind with the
fields of another moment, beyond what there is, or of nobody; damaged ones; clients' requests that nobody made.
"""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import trio

from broker.peers.handshake import NONCE_BYTES, Dialling
from broker.peers.protocol import Challenge, Hello, encode_frame, take_frame
from broker.remoting.addresses import split_address
from broker.remoting.node_status import NodeStatus
from broker.state.release import THIS_RELEASE
from broker.tools.cluster.layout import LocalNode
from tests.cluster.support import Load, check_identical, check_nothing_lost, ready_cluster
from tests.hostile.drawing import Drawing, Names
from tests.hostile.peers import BROKEN, BrokenPeer

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

FRAMES = 400
IN_A_ROW = 20
ANSWERS_WITHIN_S = 0.005
"""So long it looks whether its link is closed, before the next frame; later is soon enough."""


class BrokenProcess(BrokenPeer):
    """`BrokenPeer` on real sockets; what it knows of the others they have told by their last status."""

    def __init__(self, nodes: dict[str, LocalNode], random: Random) -> None:
        self.status: dict[str, NodeStatus] = {}
        self._nodes = nodes
        self._sockets: dict[str, socket.socket] = {}
        self.closed = 0
        seen = SimpleNamespace(node=self._seen, kill=lambda _: None)
        super().__init__(seen, random, Drawing(random, Names()))  # type: ignore[arg-type]

    def _seen(self, target: str) -> SimpleNamespace:
        status = self.status[target]
        entries = SimpleNamespace(body=self._random.randbytes(300))
        log = SimpleNamespace(
            first_index=status.first_index,
            last_index=status.last_index,
            end_position=status.last_position,
            run=lambda *_: entries,
        )
        return SimpleNamespace(
            replica=SimpleNamespace(
                term=status.term,
                leader=status.leader,
                applied_index=status.applied_index,
                store=SimpleNamespace(log=log),
                raft=SimpleNamespace(leader=status.leader, commit_index=status.commit_index),
            )
        )

    def send(self, target: str) -> bool:
        """Sends one frame, over a new link if the last one is closed."""
        link = self._sockets.get(target)
        if link is None:
            link = self._sockets[target] = self._dialled(target)
        data = b"".join(encode_frame(self._frame(target)))
        damaged = self._random.random() < 0.15
        if damaged:
            data = self._damaged(data)
        try:
            link.sendall(data)
            link.settimeout(ANSWERS_WITHIN_S)
            with contextlib.suppress(TimeoutError):
                while link.recv(1 << 16):
                    pass
                raise ConnectionResetError("closed")
        except OSError:
            self.closed += 1
            self.hang_up(target)
            return True
        if damaged:
            self.hang_up(target)  # what it sent may be the beginning of a longer frame
        return False

    def hang_up(self, target: str) -> None:
        """Closes the link."""
        if target in self._sockets:
            self._sockets.pop(target).close()

    def end(self) -> None:
        """Closes all links."""
        for target in [*self._sockets]:
            self.hang_up(target)

    def _dialled(self, target: str) -> socket.socket:
        node = self._nodes[target]
        link = socket.create_connection(split_address(node.peer_address), 30.0)
        hello = Hello(
            THIS_RELEASE.newest_protocol,
            node.group,
            BROKEN,
            target,
            self._nodes[BROKEN].peer_address,
            self._random.randbytes(NONCE_BYTES),
            THIS_RELEASE.oldest_protocol,
            THIS_RELEASE.newest_format,
            THIS_RELEASE.name,
        )
        handshake = Dialling(hello, node.settings.raft.peer_secret, THIS_RELEASE, self.status[target].format)
        link.sendall(b"".join(encode_frame(hello)))
        received = b""
        while (taken := take_frame(received, 1 << 16)) is None:
            piece = link.recv(1 << 16)
            assert piece, "the node has closed the link instead of answering the hello"
            received += piece
        assert isinstance(taken[0], Challenge)
        link.sendall(b"".join(encode_frame(handshake.answered(taken[0]))))
        return link


async def test_the_others_serve_on_beside_a_broken_peer(tmp_path: Path) -> None:
    async with ready_cluster(tmp_path) as cluster:
        await cluster.kill(BROKEN)
        await cluster.leader()
        broken = BrokenProcess(cluster.nodes, Random(7))
        load = Load(cluster)

        def send_some() -> None:
            for _ in range(IN_A_ROW):
                broken.send(broken._random.choice(("n0", "n1")))

        async with load.running():
            for _ in range(FRAMES // IN_A_ROW):
                broken.status = {}
                while len(broken.status) < 2:
                    broken.status = await cluster.status()
                await trio.to_thread.run_sync(send_some)
                await load.wait_for(1)  # whatever was sent, the two others take messages
        assert broken.closed, "frames that cannot be right close the link"
        broken.end()
        assert all(cluster.nodes[name].running for name in ("n0", "n1"))
        cluster.start(BROKEN)
        await check_nothing_lost(cluster, load)
        await check_identical(cluster)
