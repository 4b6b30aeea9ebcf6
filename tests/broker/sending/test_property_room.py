"""Room for what brokers add to a message's properties: what is taken can be retried, and becomes a dead letter."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.property_room import RETRY_BYTES, SENT_BYTES_MAX, fitted
from log.formats.properties import encode_properties, parse_properties
from log.formats.record import MAX_PROPERTIES_BYTES, SYS_FLAG_PREPARED, Record
from tests.broker.harness import Client, Group

TOPIC = "t" * 127
CONSUMERS = "g" * 248
"""As long as names may be."""
KEY = {"UNIQ_KEY": "0" * 56}
"""As long as a client at an IPv6 address makes it."""
COMMIT = 8


def longest(**own: str) -> dict[str, str]:
    """Properties of exactly as many bytes as a producer may give."""
    used = len(encode_properties({**own, "x": "y"})) - 1
    return {**own, "x": "y" * (SENT_BYTES_MAX - used)}


@pytest.fixture
def client() -> Client:
    group = Group.elected(1, broker={"delay_levels": "1s 2s 3s 4s 5s"})
    client = group.connect()
    client.create_topic(TOPIC)
    client.heartbeat(CONSUMERS, [TOPIC], producer_group="P" * 255)
    return client


def give_back(client: Client, record: Record, **more: Any) -> int:
    fields = {"offset": record.physical_offset, "group": CONSUMERS, "delayLevel": 1, **more}
    return client.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code


def end_as_committed(client: Client, **own: str) -> None:
    half = client.send(
        TOPIC, b"body", 0, longest(TRAN_MSG="true", **own), sysFlag=SYS_FLAG_PREPARED, producerGroup="P" * 255
    )
    fields = {
        "producerGroup": "P" * 255,
        "tranStateTableOffset": half.queue_offset,
        "commitLogOffset": int(half.message_id[16:], 16),
        "commitOrRollback": COMMIT,
        "msgId": "id",
    }
    client.ok(RequestCode.END_TRANSACTION, fields)


def send_longest(client: Client, kind: str) -> None:
    if kind == "committed":
        end_as_committed(client, **KEY)
    elif kind == "committed for a group in the request":
        end_as_committed(client)
    elif kind == "plain":
        client.send(TOPIC, b"body", 0, longest(**KEY))
    elif kind == "without a key":
        client.send(TOPIC, b"body", 0, longest())
    elif kind == "of a level":
        client.send(TOPIC, b"body", 0, longest(DELAY="1", **KEY))
    else:
        client.send(TOPIC, b"body", 0, longest(TIMER_DELAY_MS="500", **KEY))


@pytest.mark.parametrize(
    "kind",
    ["plain", "without a key", "of a level", "timed", "committed", "committed for a group in the request"],
)
def test_the_longest_properties_are_retried_and_reach_the_dead_letters(client: Client, kind: str) -> None:
    send_longest(client, kind)
    client.group.advance(2)
    (record,) = client.pull(TOPIC, CONSUMERS, 0).records
    own = record.properties_by_name()["x"]
    for retry in range(2):
        assert give_back(client, record) == ResponseCode.SUCCESS
        client.group.advance(2)
        (record,) = client.pull(f"%RETRY%{CONSUMERS}", CONSUMERS, retry).records
        told = record.properties_by_name()
        assert (told["RETRY_TOPIC"], told["x"], record.body) == (TOPIC, own, b"body")
    assert give_back(client, record, delayLevel=-1) == ResponseCode.SUCCESS
    (dead,) = client.pull(f"%DLQ%{CONSUMERS}", CONSUMERS, 0).records
    told = dead.properties_by_name()
    assert (told["RETRY_TOPIC"], told["x"], dead.body) == (TOPIC, own, b"body")


def test_with_usual_names_nothing_is_left_out(client: Client) -> None:
    client.create_topic("T")
    client.heartbeat("g", ["T"])
    client.send("T", b"body", 0, longest(**KEY))
    (record,) = client.pull("T", "g", 0).records
    assert give_back(client, record, group="g") == ResponseCode.SUCCESS
    client.group.advance(2)
    (record,) = client.pull("%RETRY%g", "g", 0).records
    assert {"MSG_REGION", "TRACE_ON", "CLUSTER", "ORIGIN_MESSAGE_ID"} <= record.properties_by_name().keys()


@pytest.mark.parametrize("more", [{}, {"TRAN_MSG": "true"}, {"DELAY": "1"}, {"TIMER_DELAY_MS": "500"}])
def test_a_byte_more_is_refused(client: Client, more: dict[str, str]) -> None:
    properties = longest(**more)
    properties["x"] += "y"
    answer = client.wait(client.start_send(TOPIC, b"body", 0, properties))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"at most {SENT_BYTES_MAX} are allowed" in (answer.remark or "")


def test_a_consumer_may_send_on_what_it_could_not_send_back(client: Client) -> None:
    """As Java's does it: all properties that it got, with its own, to the retry topic; and to the dead letters."""
    client.send(TOPIC, b"body", 0, longest(**KEY))
    (record,) = client.pull(TOPIC, CONSUMERS, 0).records
    noted = {
        **record.properties_by_name(),
        "RETRY_TOPIC": TOPIC,
        "ORIGIN_MESSAGE_ID": "0" * 56,
        "RECONSUME_TIME": "1",
        "MAX_RECONSUME_TIMES": "16",
        "MIN_OFFSET": "9" * 19,
        "MAX_OFFSET": "9" * 19,
        "CONSUME_START_TIME": "1" * 13,
        "DELAY": "1",
    }
    retry = f"%RETRY%{CONSUMERS}"
    client.send(retry, b"again", 0, noted, reconsumeTimes=1, maxReconsumeTimes=16)
    client.group.advance(2)
    (again,) = client.pull(retry, CONSUMERS, 0).records
    assert again.properties_by_name()["RETRY_TOPIC"] == TOPIC
    client.send(retry, b"dead", 0, noted, reconsumeTimes=17, maxReconsumeTimes=16)
    (dead,) = client.pull(f"%DLQ%{CONSUMERS}", CONSUMERS, 0).records
    assert dead.properties_by_name()["x"] == noted["x"]


def test_what_an_earlier_version_took_becomes_a_dead_letter(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no retry fits, its consumer would give it back for ever."""
    monkeypatch.setattr("broker.sending.properties.SENT_BYTES_MAX", MAX_PROPERTIES_BYTES)
    properties = longest(**KEY)
    properties["x"] += "y" * 600
    client.send(TOPIC, b"body", 0, properties)
    (record,) = client.pull(TOPIC, CONSUMERS, 0).records
    assert len(record.properties) > MAX_PROPERTIES_BYTES - RETRY_BYTES
    assert give_back(client, record) == ResponseCode.SUCCESS
    (dead,) = client.pull(f"%DLQ%{CONSUMERS}", CONSUMERS, 0).records
    assert dead.properties_by_name()["x"] == properties["x"]


NAMES = st.sampled_from(
    ["a", "TAGS", "CLUSTER", "TRACE_ON", "MSG_REGION", "ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_TOPIC"]
)


@given(st.dictionaries(NAMES, st.text("xyz", min_size=1)), st.integers(0, 60))
def test_only_what_does_not_fit_is_left_out(properties: dict[str, str], bytes_max: int) -> None:
    encoded = encode_properties(properties)
    short = fitted(encoded, bytes_max)
    kept = parse_properties(short)
    left_out = properties.keys() - kept.keys()
    assert kept.items() <= properties.items()
    assert not left_out & {"a", "TAGS"}
    if left_out:
        assert len(encoded) > bytes_max
    else:
        assert short == encoded
    if len(short) > bytes_max:
        assert kept.keys() <= {"a", "TAGS"}
