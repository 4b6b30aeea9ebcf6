"""An answer to a pull is held to what its consumer group subscribes to as the broker answers."""

from __future__ import annotations

import pytest

from broker.reading.pull_checks import PullChecks
from broker.reading.pull_responses import PullResponses
from broker.reading.queue_reads import PullResult
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, request
from broker.remoting.headers import PullMessageHeader
from broker.requests.connection import Outgoing, RelayedConnection
from log.formats.layout import HEADER_BYTES
from simulation.journal import Violation
from simulation.judges.group_model import CommittedQueue, GroupModel
from simulation.judges.subscribed import NOT_PASSED_OVER, watch_subscribed_pulls
from tests.log.messages import make_record
from tests.simulation import stand_ins

_TAGS = ("a", "b", "a", "c")


class Broker:
    """Its queue t/0 has a message of each tag, and its consumer group subscribes to that."""

    def __init__(self, subscribed: tuple[str, str] | None) -> None:
        self.model = GroupModel()
        queue = self.model.queues["t", 0] = CommittedQueue()
        for offset, tag in enumerate(_TAGS):
            record = make_record(
                len(self.model.image), queue_offset=offset, properties=b"TAGS\x01%s\x02" % tag.encode()
            )
            queue.positions.append(len(self.model.image) + HEADER_BYTES)
            queue.sizes.append(len(record))
            self.model.image += bytes(HEADER_BYTES) + record
        self.answers: list[PullResult] = []
        responses = stand_ins.stand_in(respond=lambda *arguments: self.answers.append(arguments[-1]))
        checks = stand_ins.stand_in(subscribed=lambda _: subscribed)
        node = stand_ins.node(parts={PullChecks: checks, PullResponses: responses})
        watch_subscribed_pulls("n0", node, self.model)
        self._respond = responses.respond

    def answer(self, begin: int, end: int, *, records: int = 0, code: int | None = None) -> None:
        """Answers a pull from `begin` on, which has waited at `end`, and is to go on there."""
        if code is None:
            code = ResponseCode.SUCCESS if records else ResponseCode.PULL_NOT_FOUND
        result = PullResult(code, "", end, None)
        result.records = [memoryview(b"")] * records
        command = _pull(begin)
        header = command.decode_fields(PullMessageHeader)
        header.queue_offset = end
        connection = RelayedConnection(Outgoing(), "n1", 1, bytes(8), lambda buffers: None, lambda: False)
        self._respond(connection, command, header, result)


def _pull(offset: int) -> RemotingCommand:
    fields = {"topic": "t", "queueId": "0", "consumerGroup": "g", "queueOffset": str(offset)}
    more = {
        "maxMsgNums": "1",
        "sysFlag": "2",
        "commitOffset": "0",
        "suspendTimeoutMillis": "100",
        "subVersion": "1",
    }
    return request(RequestCode.PULL_MESSAGE, fields | more)


@pytest.mark.parametrize("expression", ["b", "c || b", "b||d"])
def test_what_it_wants_by_now_is_not_passed_over(expression: str) -> None:
    broker = Broker(("TAG", expression))
    broker.answer(0, 0)
    broker.answer(0, 1)
    with pytest.raises(Violation, match=NOT_PASSED_OVER):
        broker.answer(0, 2)
    broker.answer(0, 2, records=1)
    broker.answer(2, 3)
    assert len(broker.answers) == 4, "each answer that holds is given"


def test_what_it_does_not_want_is() -> None:
    Broker(("TAG", "d")).answer(0, len(_TAGS))


@pytest.mark.parametrize("subscribed", [None, ("TAG", "*"), ("SQL92", "a > 3")])
def test_pulls_that_rest_on_something_else_are_judged_by_others(subscribed: tuple[str, str] | None) -> None:
    Broker(subscribed).answer(0, len(_TAGS))


def test_who_is_sent_elsewhere_is_told_where() -> None:
    Broker(("TAG", "a")).answer(0, 3, code=ResponseCode.PULL_OFFSET_MOVED)


def test_what_some_node_has_deleted_may_be_passed_over() -> None:
    broker = Broker(("TAG", "a"))
    broker.model.heads.kept_from = broker.model.queues["t", 0].positions[1]
    broker.answer(0, 2)
    with pytest.raises(Violation, match=NOT_PASSED_OVER):
        broker.answer(0, 3)


def test_a_queue_that_is_gone_has_nothing() -> None:
    broker = Broker(("TAG", "a"))
    del broker.model.queues["t", 0]
    broker.answer(0, 3)
