"""The pure half of the data source: what the user may write, and which offsets follow from it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from broker.client.message import MessageQueue
from broker.client.transport.credentials import Credentials
from broker.spark_source.common_options import OptionError, Security
from broker.spark_source.narrowing import SLACK_MS, Narrowing
from broker.spark_source.offsets import (
    QueueRange,
    from_json,
    limited,
    new_losses,
    points_of,
    ranges,
    split,
    to_json,
)
from broker.spark_source.options import EARLIEST, LATEST, Point, parse_options

BASE = {"nameServers": "127.0.0.1:9876", "subscribe": "t"}
A0, A1, B0 = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)


def test_defaults_are_kafkas() -> None:
    batch = parse_options(BASE, streaming=False)
    assert (batch.topics, batch.pattern, batch.fail_on_data_loss) == (("t",), None, True)
    assert (batch.starting.everywhere, batch.ending.everywhere) == (EARLIEST, LATEST)
    assert parse_options(BASE, streaming=True).starting.everywhere == LATEST


def test_names_have_no_case_and_topics_are_joined_by_commas() -> None:
    options = parse_options(
        {"NAMESERVERS": "h:1,i:2", "Subscribe": " a, b,a", "MaxOffsetsPerTrigger": "5"}, streaming=True
    )
    assert (options.topics, options.limits.most_messages) == (("a", "b"), 5)


@pytest.mark.parametrize(
    ("given", "streaming", "complaint"),
    [
        ({"nameServers": "nowhere"}, False, "host:port"),
        ({"nameServers": ""}, False, "no name server"),
        ({"subscribe": " , "}, False, "names no topic"),
        ({"subscribePattern": "t.*"}, False, "one of the options"),
        ({"startingOffset": "earliest"}, False, "startingOffset: unknown; known are nameServers"),
        ({"path": "t"}, False, "named by the option subscribe"),
        ({"startingOffsets": "latest"}, False, "latest is not possible"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, False, "latest is not possible"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, False, "earliest is not possible"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, False, "is at -3"),
        ({"startingOffsets": '{"t": {"0": 1.5}}'}, False, "is at 1.5"),
        ({"startingOffsets": '{"t": [1]}'}, False, "no map of queues"),
        ({"startingOffsets": "[" * 100_000}, False, "or JSON such as"),
        ({"startingOffsets": '{"t": {"0": 9223372036854775808}}'}, False, "is at 9223372036854775808"),
        ({"startingTimestamp": "9" * 5000}, False, "startingTimestamp is 9+: at most 9223372036854775807"),
        ({"minPartitions": "9223372036854775808"}, False, "at most 9223372036854775807"),
        ({"startingOffsets": "newest"}, False, '"earliest", "latest", or JSON'),
        ({"startingTimestamp": "yesterday"}, False, "a whole number"),
        ({"startingTimestamp": "1", "startingOffsets": "earliest"}, False, "exclude each other"),
        ({"endingOffsets": "latest"}, True, "no meaning in a stream"),
        ({"maxOffsetsPerTrigger": "5"}, False, "no meaning in a batch"),
        ({"maxOffsetsPerTrigger": "0"}, True, "at least 1"),
        ({"minPartitions": "-1"}, False, "a whole number"),
        ({"failOnDataLoss": "maybe"}, False, "true or false"),
        ({"commitOffsets": "true"}, True, "name it by the option group"),
        ({"commitOffsets": "true", "group": "g"}, False, "no meaning in a batch"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, str], streaming: bool, complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        parse_options({**BASE, **given}, streaming=streaming)


def test_accounts_and_tls() -> None:
    assert parse_options(BASE, streaming=False).security == Security()
    given = {"tlsCa": "/ca.pem", "accessKey": "spark", "secretKey": "do-not-show"}
    options = parse_options({**BASE, **given}, streaming=True)
    assert options.security == Security(True, tls_ca="/ca.pem", access_key="spark", secret_key="do-not-show")
    assert options.security.credentials() == Credentials("spark", "do-not-show")
    assert "do-not-show" not in repr(options)
    with pytest.raises(OptionError, match=r"option tlsCa: /ca\.pem: No such file"):
        options.security.tls_context()
    for wrong, complaint in (
        ({"accessKey": "spark"}, "accessKey and secretKey go together"),
        ({"tlsCert": "a"}, "tlsCert and tlsKey go together"),
        ({"tls": "false", "tlsCa": "a"}, "tls is false"),
        ({"tls": "yes"}, "true or false"),
    ):
        with pytest.raises(OptionError, match=complaint):
            parse_options({**BASE, **wrong}, streaming=False)


def test_a_pattern_that_is_none() -> None:
    with pytest.raises(OptionError, match="subscribePattern"):
        parse_options({"nameServers": "h:1", "subscribePattern": "("}, streaming=False)


def starting(text: str) -> dict[str, str]:
    return {**BASE, "startingOffsets": text}


def test_points_by_queue() -> None:
    points = parse_options(starting('{"t": {"0": 23, "a:1": -2}}'), streaming=False).starting
    assert points_of(points, [A0, A1]) == {A0: Point("offset", 23), A1: EARLIEST}
    with pytest.raises(OptionError, match="says nothing of t/b:0"):
        points_of(parse_options(starting('{"t": {"a:0": 1}}'), streaming=False).starting, [A0, B0])
    with pytest.raises(OptionError, match="no such queue: t/7"):
        points_of(parse_options(starting('{"t": {"0": 1, "7": 1}}'), streaming=False).starting, [A0])
    with pytest.raises(OptionError, match="no such queue: t/0"):  # of which group?
        points_of(parse_options(starting('{"t": {"0": 1}}'), streaming=False).starting, [A0, B0])


def test_points_in_time() -> None:
    options = parse_options(
        {**BASE, "startingTimestamp": "5", "endingOffsetsByTimestamp": '{"t": {"0": 9}}'}, streaming=False
    )
    assert points_of(options.starting, [A0]) == {A0: Point("time", 5)}
    assert points_of(options.ending, [A0]) == {A0: Point("time", 9)}


def test_losses_are_told_apart() -> None:
    losses = new_losses({A0: 5, A1: 9, B0: 1}, {A0: 7, A1: 0}, {A0: 8, A1: 4})
    assert [(loss.queue, loss.first, loss.stop) for loss in losses] == [(A0, 5, 7), (A1, 4, 9), (B0, 1, None)]
    assert str(losses[0]) == "t/a:0: messages from 5 to 6 are lost: the queue begins at 7 now"


def test_ranges_leave_out_what_is_empty_and_begin_new_queues_at_their_first_message() -> None:
    assert ranges({A0: 3, A1: 4}, {A0: 5, A1: 4, B0: 2}) == [QueueRange(A0, 3, 5), QueueRange(B0, 0, 2)]


QUEUES = [MessageQueue("t", "a", number) for number in range(6)]
offsets = st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 200), max_size=6)


@given(offsets)
def test_offsets_survive_their_json(found: dict[MessageQueue, int]) -> None:
    assert from_json(to_json(found)) == found


@given(offsets, offsets, st.integers(1, 500))
def test_a_limit_is_used_up_and_shared_fairly(
    starts: dict[MessageQueue, int], more: dict[MessageQueue, int], most: int
) -> None:
    latest = {queue: starts.get(queue, 0) + count for queue, count in more.items()}
    taken = {queue: end - starts.get(queue, 0) for queue, end in limited(starts, latest, most).items()}
    assert sum(taken.values()) == min(most, sum(more.values()))
    assert all(0 <= taken[queue] <= more[queue] for queue in more)
    # Nobody who still waits has got less than another, but for a single message that cannot be shared.
    waiting = [taken[queue] for queue in more if taken[queue] < more[queue]]
    assert not waiting or max(taken.values()) <= min(waiting) + 1


def test_a_single_message_goes_round() -> None:
    at = {A0: 0, A1: 0}
    order = []
    for _ in range(4):
        following = limited(at, {A0: 10, A1: 10}, 1)
        order.append(next(queue for queue in following if following[queue] > at[queue]))
        at = following
    assert order == [A0, A1, A0, A1]


def test_a_queue_made_again_goes_on_at_its_end() -> None:
    assert limited({A0: 9, A1: 2}, {A0: 4, A1: 5}, 2) == {A0: 4, A1: 4}


@given(st.lists(st.integers(1, 100), min_size=1, max_size=6), st.none() | st.integers(1, 40))
def test_parts_cover_the_ranges_once(sizes: list[int], minimum: int | None) -> None:
    whole = [QueueRange(queue, 7, 7 + size) for queue, size in zip(QUEUES, sizes, strict=False)]
    parts = split(whole, minimum)
    covered = [(part.queue, offset) for part in parts for offset in range(part.start, part.stop)]
    assert covered == [(one.queue, offset) for one in whole for offset in range(one.start, one.stop)]
    assert all(part.start < part.stop for part in parts)
    assert len(parts) >= min(minimum or 1, sum(sizes))


def test_a_limit_by_bytes_is_shared_as_one_by_messages() -> None:
    """By the sizes of what comes next; at least one message, so that a query goes on whatever the limit."""
    latest = {A0: 100, A1: 100}
    sizes = {A0: 1000.0, A1: 10.0}
    assert limited({}, latest, None, sizes, 20_200) == {A0: 20, A1: 20}
    assert limited({}, latest, 10, sizes, 20_200) == {A0: 5, A1: 5}
    assert limited({A0: 99}, latest, None, sizes, 1_500) == {A0: 100, A1: 50}
    assert sum(limited({}, latest, None, sizes, 1).values()) == 1
    assert limited(latest, latest, None, {}, 1) == latest


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is more than maxOffsetsPerTrigger"),
        ({"maxTriggerDelayMs": "9"}, "give that, too"),
        ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger"),
        ({"tags": "a || *"}, "tags joined by"),
    ],
)
def test_limits_that_cannot_be_are_refused(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        parse_options({"nameServers": "a:1", "subscribe": "t", **given}, streaming=True)


def narrowed(*filters: Filter) -> tuple[Narrowing, list[Filter]]:
    narrowing = Narrowing()
    return narrowing, [one for one in filters if not narrowing.add(one)]


def test_filters_on_queues_and_offsets_are_applied_whole() -> None:
    narrowing, left = narrowed(
        *(IsNotNull(("queue",)), EqualTo(("topic",), "t"), In(("queue",), (1, 3)), LessThan(("queue",), 3)),
        *(GreaterThan(("offset",), 9), LessThanOrEqual(("offset",), 19), LessThan(("offset",), 50)),
    )
    assert left == []
    takes = [narrowing.takes(MessageQueue("t", "g", number)) for number in range(4)]
    assert takes == [False, True, False, False]
    assert not narrowing.takes(MessageQueue("u", "g", 1))
    assert narrowing.within(QueueRange(A0, 0, 100)) == QueueRange(A0, 10, 20)
    assert narrowing.within(QueueRange(A0, 15, 17)) == QueueRange(A0, 15, 17)


def test_filters_on_tags_and_times_narrow_and_are_looked_at_again() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    given: list[Filter] = [
        *(In(("tags",), ("a", "b")), EqualTo(("tags",), "b"), GreaterThanOrEqual(("timestamp",), noon)),
        *(LessThan(("timestamp",), noon + timedelta(hours=1)), IsNotNull(("tags",))),
    ]
    narrowing, left = narrowed(*given)
    assert left == given
    assert narrowing.tags == frozenset({"b"})
    noon_ms = int(noon.timestamp() * 1000)
    assert narrowing.first_ms == noon_ms - SLACK_MS
    assert narrowing.stop_ms == noon_ms + 3_600_000 + SLACK_MS


def test_what_no_subscription_can_name_and_what_is_negated_is_left_to_spark() -> None:
    given: list[Filter] = [
        *(EqualTo(("tags",), "a||b"), EqualTo(("tags",), " "), EqualTo(("tags",), "*")),
        *(Not(EqualTo(("queue",), 1)), StringStartsWith(("topic",), "t"), EqualTo(("body",), b"x")),
        *(EqualTo(("properties", "KEYS"), "k"), In(("offset",), (3, 5))),
    ]
    narrowing, left = narrowed(*given)
    assert left == given
    assert narrowing.tags is None
    assert narrowing.takes(MessageQueue("t", "g", 1))
    assert narrowing.within(QueueRange(A0, 0, 100)) == QueueRange(A0, 0, 100)
