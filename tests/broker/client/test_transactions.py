"""Transactions of the client: what is decided when, and what a producer answers to a broker that asks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog
import trio

from broker.client.errors import BrokerError, MessageRejected, NoRoute, TransactionUndecided, UsageError
from broker.client.message import Message, MessageView
from broker.client.producing.transactions import CHECKS_MAX, Decision, TransactionalProducer
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import request, response
from broker.remoting.headers import EndTransactionHeader, SendMessageHeaderV2
from broker.state.topic_rules import HALF_TOPIC
from log.formats.properties import get_property
from log.formats.record import decode_record
from tests.broker.client.cluster import NAME_SERVER, Broker, one_group
from tests.broker.client.links import ClientRuntime, World, code, reset, silent

END = RequestCode.END_TRANSACTION


async def never(message: MessageView) -> Decision:
    raise AssertionError("nobody asks")


def killed(broker: Broker) -> ZeroDivisionError:
    broker.kill()
    return ZeroDivisionError()


def decisions(broker: Broker) -> list[EndTransactionHeader]:
    return [command.decode_fields(EndTransactionHeader) for command in broker.received(END)]


@contextlib.asynccontextmanager
async def producing(
    runtime: ClientRuntime, check: Any = never, **options: Any
) -> AsyncIterator[TransactionalProducer]:
    async with TransactionalProducer(
        NAME_SERVER, group="p", check=check, runtime=runtime, **options
    ) as producer:
        yield producer


async def test_block_commits_what_was_stored_unseen(broker: Broker, runtime: ClientRuntime) -> None:
    async with producing(runtime, check_after_s=7) as producer:
        async with producer.transaction(Message("t", b"x", tags="a")) as transaction:
            assert decisions(broker) == []
            (record,) = (decode_record(raw) for raw in broker.records(HALF_TOPIC))
            assert broker.stored() == []
        (sent,) = broker.received(RequestCode.SEND_MESSAGE_V2)
        assert sent.decode_fields(SendMessageHeaderV2).sys_flag & 0xC == 4
        for name, value in (("TRAN_MSG", "true"), ("PGROUP", "p"), ("CHECK_IMMUNITY_TIME_IN_SECONDS", "7")):
            assert get_property(record.properties, name.encode()) == value.encode()
        (decision,) = decisions(broker)
        assert decision.outcome == Decision.COMMIT
        assert (decision.producer_group, decision.from_transaction_check) == ("p", False)
        assert (decision.half_queue_offset, decision.commit_log_offset) == (0, record.physical_offset)
        assert decision.message_id == transaction.message_id
    assert broker.stored() == [b"x"]


async def test_block_that_raises_rolls_back(broker: Broker, runtime: ClientRuntime) -> None:
    async with producing(runtime) as producer:
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message("t", b"x")):
                raise ZeroDivisionError
        assert [decision.outcome for decision in decisions(broker)] == [Decision.ROLLBACK]


async def test_block_that_raises_keeps_its_error_when_the_broker_is_gone(
    broker: Broker, runtime: ClientRuntime
) -> None:
    async with producing(runtime) as producer:
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message("t", b"x")):
                raise killed(broker)


async def test_block_may_decide_by_itself(broker: Broker, runtime: ClientRuntime) -> None:
    async with producing(runtime) as producer:
        async with producer.transaction(Message("t", b"x")) as transaction:
            await transaction.rollback()
            with pytest.raises(UsageError):
                await transaction.commit()
            await transaction.rollback()
        assert [decision.outcome for decision in decisions(broker)] == [Decision.ROLLBACK] * 2


async def test_cancelled_block_decides_nothing(broker: Broker, runtime: ClientRuntime) -> None:
    async with producing(runtime) as producer:
        with trio.move_on_after(1):
            async with producer.transaction(Message("t", b"x")):
                await trio.sleep_forever()
        assert len(list(broker.records(HALF_TOPIC))) == 1, "there was something to decide"
        assert decisions(broker) == []


@pytest.mark.parametrize("failures", [[silent], [reset], [code(1)], [code(2), code(14), reset]])
async def test_decision_is_repeated_until_it_is_confirmed(
    world: World, runtime: ClientRuntime, failures: list[Any]
) -> None:
    brokers = one_group(world, members=3)
    for broker in brokers:
        broker.script(END, *failures[:1])
    brokers[0].scripts[END].clear()
    brokers[0].script(END, *failures)
    async with producing(runtime, decision_timeout_s=8.0) as producer:
        transaction = await producer.begin(Message("t", b"x"))
        await transaction.commit()
    found = [decision for broker in brokers for decision in decisions(broker)]
    assert len(found) >= 2
    assert all(decision == found[0] for decision in found)
    assert brokers[0].stored() == [b"x"]


async def test_decision_without_confirmation_is_undecided(broker: Broker, runtime: ClientRuntime) -> None:
    broker.script(END, *[code(1)] * 100)
    async with producing(runtime) as producer:
        transaction = await producer.begin(Message("t", b"x"))
        with pytest.raises(TransactionUndecided) as caught:
            await transaction.commit()
        assert caught.value.message_id == transaction.message_id
        broker.scripts.clear()
        await transaction.commit()
    assert broker.stored() == [b"x"]


@pytest.mark.parametrize("number", [ResponseCode.TRANSACTION_FAILED, ResponseCode.ILLEGAL_OPERATION])
async def test_refused_decision_is_raised_at_once(
    broker: Broker, runtime: ClientRuntime, number: int
) -> None:
    broker.script(END, code(number))
    async with producing(runtime) as producer:
        transaction = await producer.begin(Message("t", b"x"))
        with pytest.raises(BrokerError) as caught:
            await transaction.commit()
        assert caught.value.code == number


async def test_delayed_message_is_refused(world: World, runtime: ClientRuntime) -> None:
    one_group(world)
    async with producing(runtime) as producer:
        with pytest.raises(MessageRejected):
            await producer.begin(Message("t", b"x", delay_level=1))
        for name in ("TRAN_MSG", "PGROUP"):  # the first one of a name counts
            with pytest.raises(MessageRejected, match=f"{name}.*the client's own"):
                await producer.begin(Message("t", b"x", properties={name: "false"}))
    with pytest.raises(UsageError):
        TransactionalProducer(NAME_SERVER, group="p", check=never, check_after_s=0, runtime=runtime)


# Questions ---------------------------------------------------------------------------------------------

ASKS_SOON: dict[str, Any] = {"transaction_timeout_ms": 1000, "transaction_check_interval_ms": 1000}
"""An undecided transaction is asked about after a second, and each second."""


@pytest.mark.parametrize(
    ("decision", "outcomes"), [(Decision.COMMIT, [8]), (Decision.ROLLBACK, [12]), (Decision.UNKNOWN, [])]
)
async def test_question_is_answered_by_what_check_finds(
    world: World, runtime: ClientRuntime, decision: Decision, outcomes: list[int]
) -> None:
    seen: list[MessageView] = []

    async def check(message: MessageView) -> Decision:
        seen.append(message)
        await trio.sleep(0.2)
        return decision

    (broker,) = one_group(world, **ASKS_SOON)
    async with producing(runtime, check) as producer:
        transaction = await producer.begin(Message("t", b"x", keys=["order-7"]))
        (half,) = (decode_record(raw) for raw in broker.records(HALF_TOPIC))
        await trio.sleep(5)
        message = seen[0]
        assert (message.topic, message.body, message.keys, message.queue.broker_name) == (
            "t",
            b"x",
            ["order-7"],
            "g",
        )
        assert (len(seen) == 1) == (decision is not Decision.UNKNOWN), "an undecided one is asked about again"
        found = decisions(broker)
        assert [one.outcome for one in found] == outcomes
        for one in found:
            assert (one.half_queue_offset, one.commit_log_offset) == (0, half.physical_offset)
            assert (one.message_id, one.from_transaction_check) == (transaction.message_id, True)
        assert broker.stored() == ([b"x"] if decision is Decision.COMMIT else [])


async def test_failing_checks_and_lost_decisions_leave_the_producer_alive(
    world: World, runtime: ClientRuntime
) -> None:
    calls = 0

    async def check(message: MessageView) -> Decision:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyError("the application's mistake")
        return Decision.COMMIT

    (broker,) = one_group(world, **ASKS_SOON)
    broker.script(END, silent)
    async with producing(runtime, check) as producer:
        await producer.begin(Message("t", b"x"))
        (link,) = broker.links
        link.send(request(RequestCode.CHECK_TRANSACTION_STATE, None, b"nothing", one_way=True))
        await trio.sleep(60)  # a heartbeat has connected again after the silence
        assert [decision.outcome for decision in decisions(broker)] == [8, 8]
    assert calls == 3
    assert broker.stored() == [b"x"]


@pytest.mark.parametrize("wrong", [NoRoute("other", "unknown"), "commit", None])
async def test_a_check_that_decides_nothing_is_told_of_and_asked_again(
    world: World, runtime: ClientRuntime, wrong: object
) -> None:
    """An error of the client, too: `check` may use one itself, and no decision is lost then, as there was none."""
    results = [wrong, Decision.COMMIT]

    async def check(message: MessageView) -> Any:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    (broker,) = one_group(world, **ASKS_SOON)
    with structlog.testing.capture_logs() as told:
        async with producing(runtime, check) as producer:
            transaction = await producer.begin(Message("t", b"x"))
            await trio.sleep(5)
    (line,) = told
    assert line["event"] == "check failed: the transaction stays undecided"
    assert (line["message"], line["exc_info"]) == (transaction.message_id, True)
    assert [decision.outcome for decision in decisions(broker)] == [Decision.COMMIT]
    assert broker.stored() == [b"x"]


async def test_questions_are_bounded(world: World, runtime: ClientRuntime) -> None:
    waiting = 0

    async def check(message: MessageView) -> Decision:
        nonlocal waiting
        waiting += 1
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    one_group(world, **ASKS_SOON)
    async with producing(runtime, check) as producer:
        for _ in range(CHECKS_MAX + 10):
            await producer.begin(Message("t", b"x"))
        await trio.sleep(3)
        assert waiting == CHECKS_MAX


async def test_a_decision_about_an_id_that_is_none_is_an_error_of_the_broker(
    broker: Broker, runtime: ClientRuntime
) -> None:
    """Rolling back behind an error of the block must not hide that one."""
    fields = {"msgId": "nonsense", "queueId": "0", "queueOffset": "0"}
    broker.script(
        RequestCode.SEND_MESSAGE_V2, *[lambda link, command: response(command, 0, None, fields)] * 2
    )
    async with producing(runtime) as producer:
        transaction = await producer.begin(Message("t", b"x"))
        with pytest.raises(BrokerError, match="no message id"):
            await transaction.commit()
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message("t", b"x")):
                raise ZeroDivisionError
