"""Cleaning on request: a node does at once what it does by itself anyway.

Queues follow the log, and a deleted topic takes its queues with it, always; so of the three requests only the one
about the log has something to do.
"""

from collections.abc import Iterable

from broker.node.ports import Requests
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.requests.connection import Connection
from broker.requests.processing import HandledOn, Route
from broker.requests.responses import reply
from broker.retention.retention import Retention


class CleaningProcessor:
    """CLEAN_EXPIRED_CONSUMEQUEUE 306, CLEAN_UNUSED_TOPIC 316, DELETE_EXPIRED_COMMITLOG 329."""

    def __init__(self, retention: Retention, requests: Requests) -> None:
        self._retention = retention
        self._requests = requests

    def routes(self) -> Iterable[Route]:
        """Every node; what has expired is the leader's to say, once the group agrees on its head."""
        return (
            Route(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, self.nothing_left, HandledOn.ANY),
            Route(RequestCode.CLEAN_UNUSED_TOPIC, self.nothing_left, HandledOn.ANY),
            Route(RequestCode.DELETE_EXPIRED_COMMITLOG, self.look_now, HandledOn.ANY),
        )

    def nothing_left(self, connection: Connection, command: RemotingCommand) -> None:
        """Answers with success: whatever there was to clean is cleaned already."""
        reply(connection, command, ResponseCode.SUCCESS)

    def look_now(self, connection: Connection, command: RemotingCommand) -> None:
        """Deletes data files that are older than they are to be kept, whatever the hour."""
        if not self._retention.decides:
            self._requests.forward(connection, command)
            return
        self._retention.look(at_any_hour=True)
        reply(connection, command, ResponseCode.SUCCESS)
