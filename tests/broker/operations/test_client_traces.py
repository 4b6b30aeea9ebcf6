"""What clients trace of themselves, in the forms of several releases, and whatever else stands in the trace topic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.admin import AdminClient
from broker.operations.asking import Groups
from broker.operations.client_traces import Traced, client_traces, traced
from broker.operations.messages import way_of
from broker.operations.queue_browsing import StoredMessage
from tests.broker.client.cluster import Broker

ID = "0A00000700001FDF00000000DEADBEEF"
HOST = "10.1.1.1:5000"


def trace(*records: list[str]) -> StoredMessage:
    """A message of the trace topic."""
    body = "".join("\x01".join(fields) + "\x02" for fields in records)
    return StoredMessage(
        topic="RMQ_SYS_TRACE_TOPIC",
        broker="a",
        queue=0,
        offset=0,
        message_id="",
        offset_message_id="",
        tags=None,
        keys=(ID,),
        born_ms=0,
        born_host=HOST,
        stored_ms=0,
        store_host="",
        reconsume_times=0,
        flag=0,
        size=len(body),
        properties={},
        body=body.encode("utf-8", "surrogatepass"),
        damage=None,
    )


PUB = ["Pub", "1000", "region", "makers", "t", ID, "tag", "key", "10.0.0.1:10911", "5", "12", "0"]
BEFORE = ["SubBefore", "1500", "region", "readers", "request-1", ID, "2", "key"]
AFTER = ["SubAfter", "request-1", ID, "30", "true", "key"]


@pytest.mark.parametrize(
    ("rest", "result"),
    [
        (["true"], "success"),
        (["false"], "failed"),
        (["offsetid", "true"], "success"),
        (["offsetid", "false", "host"], "failed"),
    ],
)
def test_a_send_in_every_form(rest: list[str], result: str) -> None:
    assert traced([trace([*PUB, *rest])], ID) == [
        Traced(what="sent", group="makers", client=HOST, at_ms=1000, took_ms=12, result=result)
    ]


@pytest.mark.parametrize(
    ("rest", "result"),
    [([], "success"), (["2"], "exception"), (["4", "1530", "readers"], "failed"), (["99"], "success")],
)
def test_a_consumption_is_put_together(rest: list[str], result: str) -> None:
    expected = Traced(
        what="consumed", group="readers", client=HOST, at_ms=1500, took_ms=30, result=result, times=2
    )
    assert traced([trace([*AFTER, *rest]), trace(BEFORE)], ID) == [expected]


def test_one_that_has_not_ended_and_one_of_another_message() -> None:
    other = ["SubBefore", "1", "r", "readers", "request-2", "another id", "0", ""]
    (one,) = traced([trace(BEFORE, other)], ID)
    assert (one.took_ms, one.result) == (None, None)


@given(
    st.lists(
        st.lists(st.text() | st.sampled_from(["Pub", "SubBefore", "SubAfter", ID, "7", "true"]), max_size=16),
        max_size=5,
    )
)
def test_nothing_that_stands_there_raises(records: list[list[str]]) -> None:
    traced([trace(*records)], ID)


async def test_traces_are_found_by_the_message_they_tell_of(
    leaders: list[Broker], admin: AdminClient
) -> None:
    a, _ = leaders
    a.append("t", 0, b"x", f"UNIQ_KEY\x01{ID}\x02".encode())
    assert await client_traces(await Groups.registered(admin), ID) == []
    with a.client() as client:
        body = trace([*PUB, "true"], BEFORE, AFTER).body
        assert body is not None
        client.send("RMQ_SYS_TRACE_TOPIC", body, 0, {"KEYS": f"{ID} key"}, defaultTopic="TBW102")
    way = await way_of(await Groups.registered(admin), "t", ID)
    assert [(one.what, one.group, one.result) for one in way.traces] == [
        ("sent", "makers", "success"),
        ("consumed", "readers", "success"),
    ]
