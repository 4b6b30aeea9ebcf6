"""The properties of a send: looked through once, they say the same as a table of all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.remoting.property_room import SENT_BYTES_MAX
from broker.requests.errors import RequestError
from broker.sending.properties import (
    KEYS_MAX,
    SHORT_CHARACTERS,
    AddedProperties,
    check_properties,
    read_properties,
)
from log.formats.properties import parse_properties, properties_by_name

_NOT_PLAIN = ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TRAN_MSG"]
_PARTS = ["UNIQ_KEY", "XUNIQ_KEY", "WAIT", "true", "POP_CK", *_NOT_PLAIN, "\x01", "\x02", "a", "b c"]


@given(st.lists(st.sampled_from(_PARTS), max_size=16))
def test_what_is_stored_is_what_was_sent_but_for_the_broker_alone(parts: list[str]) -> None:
    text = "".join(parts)
    sent = parse_properties(text.encode())
    read = read_properties(text)
    assert read.unique_key == sent.get("UNIQ_KEY")
    stored = parse_properties(read.text.encode())
    assert stored == parse_properties(b"".join(b"%s\x01%s\x02" % item for item in read.by_name().items()))
    assert "POP_CK" not in stored
    assert {name: value for name, value in stored.items() if name != "WAIT"} == {
        name: value for name, value in sent.items() if name not in ("WAIT", "POP_CK")
    }


@given(st.lists(st.sampled_from(_PARTS), max_size=16), st.sampled_from(["", *_NOT_PLAIN]))
def test_a_message_that_is_called_plain_is_plain(parts: list[str], name: str) -> None:
    """Most of the drawn texts are plain: the name of a property that is not stands behind half of them."""
    text = "".join(parts) + (f"\x02{name}\x011" if name else "")
    values = properties_by_name(text.encode())
    assert not (read_properties(text).is_plain and {one.encode() for one in _NOT_PLAIN} & values.keys())
    assert name.encode() in values or not name


@pytest.mark.parametrize("name", _NOT_PLAIN)
def test_what_makes_a_message_another_than_plain_is_seen(name: str) -> None:
    assert not read_properties(f"KEYS\x01k\x02{name}\x011").is_plain
    assert read_properties("KEYS\x01k\x02WAIT\x01true").is_plain


def test_properties_are_taken_apart_once() -> None:
    """A half message is asked for its properties twice: by its flags, and by what hides it."""
    read = read_properties("TRAN_MSG\x01true\x02PGROUP\x01g")
    assert read.by_name() is read.by_name()
    assert read.by_name() == {b"TRAN_MSG": b"true", b"PGROUP": b"g"}


def test_every_wait_goes_wherever_it_stands() -> None:
    assert read_properties("WAIT\x01true\x02a\x01b\x02WAIT\x01true").text == "a\x01b\x02"
    assert read_properties("a\x01b\x02WAIT\x01false").text == "a\x01b\x02WAIT\x01false\x02", (
        "it says something"
    )
    assert read_properties(None) == read_properties("")


def test_a_message_without_a_key_gets_one_of_its_own() -> None:
    added = AddedProperties("c", b"\x0a\0\0\x01\0\0\x2a\x9f")
    text, key = added.add_to("a\x01b\x02", None, 5)
    assert key == "0A0000012A9F00000000000500000001"
    assert parse_properties(text.encode()) == {
        "a": "b",
        "UNIQ_KEY": key,
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "c",
    }
    assert len(text) == len("a\x01b\x02") + len(f"UNIQ_KEY\x01{key}\x02") + added.bytes
    assert added.add_to("", None, 5)[1] != key
    assert added.add_to("UNIQ_KEY\x01k\x02", "k", 5)[1] == "k"


def test_what_needs_no_check_passes_it() -> None:
    keys = "KEYS\x01" + "k " * (SHORT_CHARACTERS // 2 - 3)
    check_properties(keys[:SHORT_CHARACTERS], "T")
    check_properties("a\x01" + "\U0001f600" * (SHORT_CHARACTERS - 2), "T")
    with pytest.raises(RequestError, match="keys, at most"):
        check_properties("KEYS\x01" + "k " * (KEYS_MAX + 1), "T")
    with pytest.raises(RequestError, match="bytes, at most"):
        check_properties("a" * (SENT_BYTES_MAX + 1), "T")
    check_properties("a" * (SENT_BYTES_MAX + 1), "%RETRY%g")
