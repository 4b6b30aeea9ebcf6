"""Options and arguments that cannot be are refused where they are given, by name, with what is allowed."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from typing import Any

import pytest

from broker.client.admin import AdminClient
from broker.client.consuming.consumer import Consumer
from broker.client.consuming.intake import FetchLimits
from broker.client.consuming.order_locks import LockTimes
from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.errors import UsageError
from broker.client.message import Message, MessageQueue
from broker.client.producing.latency import LatencyClasses
from broker.client.producing.producer import Producer
from broker.client.producing.transactions import TransactionalProducer
from broker.client.threaded import sync
from tests.broker.client.cluster import NAME_SERVER, Broker
from tests.broker.client.links import ClientRuntime

NO_SECONDS: list[Any] = [math.nan, math.inf, -1.0, True, "1", None]
NO_NUMBER: list[Any] = [1.5, math.nan, math.inf, -2, True, "1", 2**70]
LOCAL_TIME = datetime.datetime(2026, 7, 1)  # noqa: DTZ001 - of no zone
Q0 = MessageQueue("t", "g", 0)


async def check(message: object) -> Any:
    raise AssertionError("nobody asks")


def transactional(**options: Any) -> TransactionalProducer:
    return TransactionalProducer(NAME_SERVER, group="p", **({"check": check} | options))


def producer(**options: Any) -> Producer:
    return Producer(**({"name_servers": NAME_SERVER, "group": "p"} | options))


def consumer(**options: Any) -> Consumer:
    return Consumer(NAME_SERVER, **({"group": "c", "topics": "t"} | options))


def puller(**options: Any) -> PullConsumer:
    return PullConsumer(NAME_SERVER, group="c", **options)


def admin(**options: Any) -> AdminClient:
    return AdminClient(**({"name_servers": NAME_SERVER} | options))


@pytest.mark.parametrize(
    ("make", "name", "wrong"),
    [
        (producer, "send_timeout_s", [*NO_SECONDS, 0]),
        (producer, "attempt_timeout_s", [*NO_SECONDS[:-1], 0]),
        (producer, "compress_above", NO_NUMBER),
        (producer, "exactly_once", [1, "no", None]),
        (producer, "retry_unknown", [0, "no", None]),
        (producer, "avoid_slow", [True, {}]),
        (producer, "tls", [True, "certificate.pem"]),
        (producer, "credentials", [("key", "secret"), "key:secret"]),
        (producer, "trace", ["file"]),
        (producer, "name_servers", [None, 9876, {"127.0.0.1:9876"}]),
        (admin, "name_servers", [None, 9876]),
        (admin, "tls", [False]),
        (admin, "credentials", [("key", "secret")]),
        (transactional, "check", [None, "check"]),
        (transactional, "check_after_s", [*NO_NUMBER, 0]),
        (transactional, "decision_timeout_s", [*NO_SECONDS, 0]),
        (transactional, "send_timeout_s", NO_SECONDS),
        (consumer, "topics", [None, 5]),
        (consumer, "strategy", [None, "averagely"]),
        (consumer, "broadcast", [1, None]),
        (consumer, "orderly", ["yes"]),
        (consumer, "offsets", ["offsets.json"]),
        (consumer, "lock_times", [20.0]),
        (consumer, "max_retries", NO_NUMBER),
        (consumer, "limits", [100, {}]),
        (consumer, "credentials", [("key", "secret")]),
        (puller, "topics", ["t", ["t"]]),
        (puller, "limits", [{}, 100]),
        (FetchLimits, "messages", [*NO_NUMBER, 0]),
        (FetchLimits, "size_bytes", [*NO_NUMBER, 0]),
        (FetchLimits, "batch", [*NO_NUMBER, 0]),
        (FetchLimits, "batch_bytes", [*NO_NUMBER, 0]),
        (FetchLimits, "suspend_s", NO_SECONDS),
        (LockTimes, "renew_s", NO_SECONDS),
        (LockTimes, "good_s", NO_SECONDS),
        (LatencyClasses, "failure_ms", NO_NUMBER),
        (LatencyClasses, "avoided_ms", [5, ((1,),), ((1.5, 2),), (1, 2)]),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_its_name(
    make: Callable[..., object], name: str, wrong: list[object]
) -> None:
    for value in wrong:
        with pytest.raises(UsageError, match=f"{name}\\b.*") as caught:
            make(**{name: value})
        assert "secret" not in str(caught.value)


def test_the_error_tells_what_is_allowed() -> None:
    with pytest.raises(UsageError) as caught:
        producer(send_timeout_s=math.nan)
    assert str(caught.value) == (
        "send_timeout_s is nan, and must be at least 0.001 and at most 1000000000: a number of seconds"
    )
    with pytest.raises(UsageError, match="limits is of class dict, and must be of FetchLimits or None"):
        consumer(limits={})


@pytest.mark.parametrize("make", [consumer, puller])
@pytest.mark.parametrize("tags", [None, 5, b"a"])
def test_tags_that_are_no_text_are_refused_at_once(make: Callable[..., object], tags: object) -> None:
    with pytest.raises(UsageError, match="subscription is of class"):
        make(topics={"t": tags})


@pytest.mark.parametrize(
    "start",
    [
        datetime.datetime(1, 1, 1),  # noqa: DTZ001 - that is what is asked
        datetime.datetime(1, 1, 1, tzinfo=datetime.UTC),
        datetime.datetime.min.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=14))),
        datetime.datetime.max.replace(tzinfo=datetime.timezone(-datetime.timedelta(hours=14))),
        datetime.datetime(1969, 12, 31, tzinfo=datetime.UTC),
        datetime.date(2026, 1, 1),
        *(-1, 2**63, 1.5, math.nan, True, None, "1"),
    ],
)
def test_a_beginning_that_is_no_time_since_1970_is_refused(start: Any) -> None:
    with pytest.raises(UsageError, match="start"):
        consumer(start=start)


@pytest.mark.parametrize(
    ("start", "expected_ms"),
    [
        (datetime.datetime(2026, 1, 1, microsecond=1000, tzinfo=datetime.UTC), 1_767_225_600_001),
        (datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=datetime.UTC), 253_402_300_799_999),
        (LOCAL_TIME, int(LOCAL_TIME.timestamp()) * 1000),
        (0, 0),
    ],
)
def test_a_beginning_is_kept_to_the_millisecond(start: Any, expected_ms: int) -> None:
    assert consumer(start=start)._first_offsets._start == expected_ms


async def test_arguments_of_a_producer_are_checked(broker: Broker, runtime: ClientRuntime) -> None:
    message = Message("t", b"x")
    async with producer(runtime=runtime) as client:
        for wrong in NO_SECONDS[:-1]:
            for call in (
                lambda value: client.send(message, timeout_s=value),
                lambda value: client.send_batch([message], timeout_s=value),
                lambda value: client.send_many([message], timeout_s=value),
                lambda value: client.request(message, timeout_s=value),
            ):
                with pytest.raises(UsageError, match="timeout_s is"):
                    await call(wrong)
            with pytest.raises(UsageError, match="timeout_s is"):
                client.portion("w", 0, timeout_s=wrong)
        for number in NO_NUMBER:
            with pytest.raises(UsageError, match="in_flight is"):
                await client.send_many([message], in_flight=number)
            with pytest.raises(UsageError, match="waiting_max is"):
                async with client.outbox(waiting_max=number):
                    pass
            with pytest.raises(UsageError, match="number is"):
                client.portion("w", number)
        writer: Any
        for writer in ("", "w" * 256, "a\x00b", "\ud800", None, 5):
            with pytest.raises(UsageError, match="writer is"):
                client.portion(writer, 0)
    assert broker.stored() == []


async def test_arguments_of_a_pull_consumer_are_checked(broker: Broker, runtime: ClientRuntime) -> None:
    broker.append("t", 0, b"x")
    calls: dict[str, Callable[[PullConsumer, Any], Any]] = {
        "timestamp_ms": lambda client, value: client.search_offset(Q0, value),
        "boundary": lambda client, value: client.search_offset(Q0, 0, value),
        "max_messages": lambda client, value: client.poll(value),
        "begin_ms": lambda client, value: client.messages_with_key("t", "k", begin_ms=value),
        "offset": lambda client, value: client.commit({Q0: value}),
    }
    async with puller(runtime=runtime) as client:
        client.assign({Q0: 0})
        for name, call in calls.items():
            for wrong in (1.5, math.nan, -2, True, "zz"):
                with pytest.raises(UsageError, match=f"{name} is"):
                    await call(client, wrong)
        for seconds in NO_SECONDS:
            if seconds != math.inf:
                with pytest.raises(UsageError, match="timeout_s is"):
                    await client.poll(timeout_s=seconds)
        for queue, offset in ((Q0, -1), (Q0, math.nan), (("t", "g", 0), 0)):
            with pytest.raises(UsageError, match=r"(offset|queue) is"):
                client.assign({queue: offset})  # type: ignore[dict-item]
        assert [message.body for message in await client.poll(timeout_s=math.inf)] == [b"x"], "as it was"


async def test_arguments_of_an_administration_client_are_checked(
    broker: Broker, runtime: ClientRuntime
) -> None:
    async with admin(runtime=runtime) as client:
        for number in NO_NUMBER:
            with pytest.raises(UsageError, match="queues is"):
                await client.create_topic("t2", queues=number)
            with pytest.raises(UsageError, match="perm is"):
                await client.create_topic("t2", perm=number)
        with pytest.raises(UsageError, match="timeout_s is"):
            await client.promote_member("n", timeout_s=math.inf)
        groups: Any
        for groups in ("g", [], ()):
            with pytest.raises(UsageError, match="groups is"):
                await client.create_topic("t2", groups=groups)
        with pytest.raises(UsageError, match="address is of class"):
            await client.call(None, 105)  # type: ignore[arg-type]


def test_the_time_of_a_poll_is_checked_in_the_caller_s_thread() -> None:
    for wrong in (value for value in NO_SECONDS if value != math.inf):
        with pytest.raises(UsageError, match="timeout_s is"):
            sync.Consumer(NAME_SERVER, group="c", topics="t").poll(wrong)
