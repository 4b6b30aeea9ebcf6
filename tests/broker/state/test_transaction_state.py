"""Open transactions: the compact state against a plain one, and the records that change it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.remoting.steps import finished
from broker.requests.processing import Pace
from broker.state.metadata import Metadata
from broker.state.open_transactions import Transactions
from broker.state.topic_rules import CHECK_EXHAUSTED_TOPIC, HALF_OPERATIONS_TOPIC
from broker.state.transaction_records import (
    OPERATION_BYTES_MAX,
    Decision,
    check_immunity_ms,
    decision_of,
    operation_body,
    operation_properties,
)
from log.formats.record import SYS_FLAG_COMMIT, encode_record, pack_host

HOST = pack_host("127.0.0.1", 1)
END = 30

offset = st.integers(0, END - 1)
steps = st.one_of(
    st.tuples(st.just("message"), offset),
    st.tuples(st.just("operation"), st.lists(offset, max_size=4).map(tuple)),
    st.tuples(st.just("checked"), st.lists(offset, max_size=4).map(tuple)),
    st.tuples(st.just("resumed"), offset),
)


def record(
    topic: str, properties: bytes, body: bytes = b"x", sys_flag: int = 0, prepared: int = 0
) -> memoryview:
    return memoryview(
        encode_record(topic.encode(), 0, 0, 0, 0, sys_flag, 0, HOST, 0, HOST, 0, prepared, body, properties)
    )


def committed(half_offset: int) -> memoryview:
    return record(
        "T", b"TRAN_PREPARED_QUEUE_OFFSET\x01%d\x02" % half_offset, sys_flag=SYS_FLAG_COMMIT, prepared=7
    )


def operation(half_offsets: tuple[int, ...]) -> memoryview:
    return record(HALF_OPERATIONS_TOPIC, operation_properties(b"K"), operation_body(half_offsets))


@given(st.lists(steps, max_size=40))
def test_state_is_that_of_a_plain_table(history: list[tuple[str, object]]) -> None:
    state = Transactions()
    opened = dict.fromkeys(range(END), 0)
    owed: dict[int, None] = {}
    for kind, what in history:
        if kind == "message":
            assert isinstance(what, int)
            state.apply_record(committed(what))
            if opened.pop(what, None) is not None:
                owed[what] = None
        elif kind == "resumed":
            assert isinstance(what, int)
            state.resumed(what)
            if what in opened:
                opened[what] = 0
        else:
            assert isinstance(what, tuple)
            if kind == "operation":
                state.apply_record(operation(what))
            else:
                state.checked(what)
            for each in what:
                if kind == "operation":
                    opened.pop(each, None)
                    owed.pop(each, None)
                elif each in opened:
                    opened[each] += 1
        assert sorted(state.open_before(END)) == list(opened)
        assert [state.times(each) for each in opened] == list(opened.values())
        assert all(state.is_open(each) == (each in opened) for each in range(END))
        assert list(state.operations_owed) == list(owed)
        assert state.first_open(END) == min(opened, default=END)
        assert Metadata.restore(Metadata(transactions=state).snapshot()).transactions == state
        assert len(state.times_checked) <= len(opened), "finished ones cost nothing"


@pytest.mark.parametrize(
    ("read", "says"),
    [
        (committed(5), Decision((5,), False)),
        (record("T", b"TRAN_PREPARED_QUEUE_OFFSET\x015\x02", sys_flag=SYS_FLAG_COMMIT), None),
        (record("T", b"TRAN_PREPARED_QUEUE_OFFSET\x01-5\x02", sys_flag=SYS_FLAG_COMMIT, prepared=7), None),
        (
            record(
                "T",
                b"TRAN_PREPARED_QUEUE_OFFSET\x01" + b"9" * 30 + b"\x02",
                sys_flag=SYS_FLAG_COMMIT,
                prepared=7,
            ),
            None,
        ),
        (record("T", b"", sys_flag=SYS_FLAG_COMMIT, prepared=7), None),
        (
            record(CHECK_EXHAUSTED_TOPIC, b"TRAN_PREPARED_QUEUE_OFFSET\x013\x02", prepared=7),
            Decision((3,), False),
        ),
        (operation((1,)), Decision((1,), True)),
        (operation((1, 22, 333)), Decision((1, 22, 333), True)),
        (record(HALF_OPERATIONS_TOPIC, b"TAGS\x01d\x02", b"1,x,,-2,4"), Decision((1, 4), True)),
        (record(HALF_OPERATIONS_TOPIC, b"TAGS\x01x\x02", b"1"), None),
        (record(HALF_OPERATIONS_TOPIC, b"", b"1"), None),
    ],
)
def test_what_records_say(read: memoryview, says: Decision | None) -> None:
    assert decision_of(read) == says


def test_one_operation_is_written_as_4_9_reads_it_and_several_as_5_does() -> None:
    assert operation_body((7,)) == b"7"
    assert operation_body((7, 8)) == b"7,8,"
    assert len(operation_body(tuple(range(1000, 1800)))) <= OPERATION_BYTES_MAX


@pytest.mark.parametrize(
    ("given_text", "milliseconds"),
    [(None, None), (b"5", 5000), (b"0", 0), (b"-1", 77), (b"x", 77), (b"9" * 10, 77)],
)
def test_immunity(given_text: bytes | None, milliseconds: int | None) -> None:
    properties = b"" if given_text is None else b"CHECK_IMMUNITY_TIME_IN_SECONDS\x01%s\x02" % given_text
    assert check_immunity_ms(properties, 77) == milliseconds


def test_snapshots_of_earlier_versions_are_restored() -> None:
    def read(fields: list[Any] | None) -> Transactions:
        return finished(Transactions.read(fields, 1, Pace(1)))

    assert read(None) == Transactions()
    state = Transactions(7, {2: 0, 5: 3}, {1: None, 0: None})
    assert read([7, [[2, 0], [5, 3]], [1, 0]]) == state
    assert Metadata.restore(Metadata(transactions=state).snapshot()).transactions == state
