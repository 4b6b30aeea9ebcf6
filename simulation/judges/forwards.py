"""Requests of one client that come by another node are handled in the order in which they have come.

A node hands on what its clients ask, each request in a frame of its own (broker/node/forwarding.py), and the leader
handles as many in a turn as it may; the others wait (broker/node/relayed_clients.py). Some come to nothing: they are
refused, given back, or lost with their link. But nothing is handled behind a later request of its client: a report of
where a member is must not undo a later one, nor an unlock what was locked behind it.
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import Final

from broker.node.relayed_clients import RelayedClients
from broker.peers.protocol import Forward
from broker.remoting.command import RemotingCommand
from broker.remoting.frame import whole_commands
from broker.requests.connection import Connection, RelayedConnection
from simulation.journal import Violation

IN_ORDER: Final = "requests of a client stay in order"


def watch_forwards(name: str, relayed: RelayedClients) -> None:
    """Looks at what comes to a node's new process from other nodes' clients, and what is handled of it.

    From then on either raises Violation.
    """
    came: dict[tuple[str, int], deque[int]] = {}
    """(node, number of the client there) -> the opaques of its requests since the one that was handled last."""
    forwarded, received = relayed.forwarded, relayed._received

    def comes(source: str, frame: Forward) -> None:
        opaques = came.setdefault((source, frame.connection), deque())
        opaques += [
            command.opaque for command in whole_commands(bytes(frame.body)) if not command.is_response
        ]
        forwarded(source, frame)

    def is_handled(connection: Connection, command: RemotingCommand) -> None:
        if not command.is_response:
            assert isinstance(connection, RelayedConnection), "of another node"
            opaques = came[connection.node, connection.number]
            before = len([*takewhile(lambda opaque: opaque != command.opaque, opaques)])
            if before == len(opaques):
                detail = (
                    f"request {command.code} of client {connection.number} at {connection.node} was overtaken"
                )
                raise Violation(IN_ORDER, name, detail)
            # Those before it have come to nothing, and must not be handled behind it.
            for _ in range(before + 1):
                opaques.popleft()
        received(connection, command)

    relayed.forwarded = comes  # type: ignore[method-assign]
    relayed._received = is_handled
