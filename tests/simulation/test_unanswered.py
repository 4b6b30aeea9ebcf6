"""Who waits for a response is known by what came and went on its connection."""

from __future__ import annotations

import pytest

from broker.node import client_calls
from broker.remoting.codes import PullSysFlag, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, encode, request, response
from broker.requests.connection import Connection, Outgoing
from simulation.machines.unanswered import Unanswered
from simulation.scheduler import SECOND


class Port:
    """One client, and the requests that are handled for it."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.unanswered = Unanswered(lambda: self.now_ns)
        self.handled: list[RemotingCommand] = []
        self.connection = Connection(Outgoing(), "10.0.2.1:30000")
        self._handle = self.unanswered.before(lambda _, command: self.handled.append(command))

    def asks(
        self, code: int, opaque: int, fields: dict[str, str] | None = None, *, one_way: bool = False
    ) -> None:
        self._handle(self.connection, request(code, fields, opaque=opaque, one_way=one_way))

    def gets(self, *commands: RemotingCommand) -> None:
        """They leave in one turn, cut anywhere into buffers."""
        data = b"".join(encode(command) for command in commands)
        self.unanswered.sent(self.connection, [data[:7], memoryview(data)[7:]])

    def overdue(self) -> list[int]:
        """The codes of what should have been answered."""
        return [asked.code for asked in self.unanswered.overdue()]


@pytest.fixture
def port() -> Port:
    return Port()


def _answer(opaque: int) -> RemotingCommand:
    return response(request(0, opaque=opaque), ResponseCode.SUCCESS)


def test_a_request_waits_until_its_response_leaves(port: Port) -> None:
    port.asks(RequestCode.GET_MAX_OFFSET, 1)
    port.asks(RequestCode.GET_MIN_OFFSET, 2)
    assert len(port.handled) == 2
    port.gets(_answer(3), _answer(1))
    assert port.overdue() == [RequestCode.GET_MIN_OFFSET]
    port.gets(_answer(2))
    assert port.overdue() == []


def test_a_question_of_the_server_is_no_response(port: Port) -> None:
    port.asks(RequestCode.GET_MAX_OFFSET, 1)
    port.gets(request(RequestCode.CHECK_TRANSACTION_STATE, opaque=1))
    assert port.overdue() == [RequestCode.GET_MAX_OFFSET]


def test_nobody_waits_who_wants_no_response(port: Port) -> None:
    port.asks(RequestCode.UPDATE_CONSUMER_OFFSET, 1, one_way=True)
    port.asks(RequestCode.TRIVET_CHANGE_GROUP, 2)
    assert len(port.handled) == 2
    assert port.overdue() == []


def test_a_reply_is_answered_when_another_client_has_or_has_not_for_so_long(port: Port) -> None:
    """Seed 9100014: who had asked was at a node that nobody heard."""
    port.asks(RequestCode.SEND_REPLY_MESSAGE_V2, 1)
    port.now_ns = client_calls.TIMEOUT_NS - 1
    assert port.overdue() == []
    port.now_ns += 1
    assert port.overdue() == [RequestCode.SEND_REPLY_MESSAGE_V2]


@pytest.mark.parametrize(("flags", "held_s"), [(PullSysFlag.SUSPEND, 15), (PullSysFlag.SUBSCRIPTION, 0)])
def test_a_pull_may_be_held_for_as_long_as_it_says(port: Port, flags: int, held_s: int) -> None:
    fields = {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "1",
        "sysFlag": str(int(flags)),
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subVersion": "0",
    }
    port.asks(RequestCode.PULL_MESSAGE, 1, fields)
    port.now_ns = held_s * SECOND - 1
    assert port.overdue() == []
    port.now_ns += 1
    assert port.overdue() == [RequestCode.PULL_MESSAGE]


def test_nothing_is_owed_on_a_connection_that_has_ended(port: Port) -> None:
    port.asks(RequestCode.GET_MAX_OFFSET, 1)
    port.unanswered.lost(port.connection)
    port.unanswered.lost(port.connection)
    assert port.overdue() == []
