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

from broker.node.relayed_clients import RelayObserver
from broker.peers.protocol import Forward
from broker.remoting.command import RemotingCommand
from broker.remoting.frame import whole_commands
from broker.requests.connection import RelayedConnection
from simulation.journal import Violation

IN_ORDER: Final = "requests of a client stay in order"


class Forwards(RelayObserver):
    """Looks at what comes to a node's new process from other nodes' clients, and what is handled of it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._came: dict[tuple[str, int], deque[int]] = {}
        """(node, number of the client there) -> the opaques of its requests since the one that was handled last."""

    def comes(self, source: str, frame: Forward) -> None:
        """Notes the requests in a frame."""
        opaques = self._came.setdefault((source, frame.connection), deque())
        opaques += [
            command.opaque for command in whole_commands(bytes(frame.body)) if not command.is_response
        ]

    def is_handled(self, client: RelayedConnection, command: RemotingCommand) -> None:
        """Raises Violation for a request that a later one has overtaken."""
        opaques = self._came[client.node, client.number]
        before = len([*takewhile(lambda opaque: opaque != command.opaque, opaques)])
        if before == len(opaques):
            raise Violation(
                IN_ORDER,
                self._name,
                f"request {command.code} of client {client.number} at {client.node} was overtaken",
            )
        # Those before it have come to nothing, and must not be handled behind it.
        for _ in range(before + 1):
            opaques.popleft()
