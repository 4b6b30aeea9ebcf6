"""The syntax of java.util.Properties, with the line of every entry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.settings.properties_file import BODY_BYTES_MAX, PropertiesSyntaxError, Property, parse, parse_body


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("a=b", "a", "b"),
        ("  a = b ", "a", "b "),
        ("a:b", "a", "b"),
        ("a b", "a", "b"),
        ("a\t=\tb", "a", "b"),
        ("a", "a", ""),
        ("a=", "a", ""),
        ("a==b", "a", "=b"),
        ("a = b = c", "a", "b = c"),
        (r"a\=b=c", "a=b", "c"),
        (r"a\ b c", "a b", "c"),
        (r"path=C:\\store", "path", "C:\\store"),
        (r"a=\u00fc\t\q", "a", "ü\tq"),
        ("a=b#c", "a", "b#c"),
    ],
)
def test_one_entry(text: str, key: str, value: str) -> None:
    assert parse(text) == [Property(key, value, 1)]


def test_comments_blank_lines_and_every_line_end() -> None:
    text = "# one\r\n! two\n\n  # three\ra=1\r\nb=2"
    assert parse(text) == [Property("a", "1", 5), Property("b", "2", 6)]


def test_continued_line_keeps_the_number_of_its_first_line() -> None:
    assert parse("a=1,\\\n   2,\\\n\t3\nb=4\\\\\nc=5") == [
        Property("a", "1,2,3", 1),
        Property("b", "4\\", 4),
        Property("c", "5", 5),
    ]


def test_continuation_at_the_end_of_the_text() -> None:
    assert parse("a=b\\") == [Property("a", "b", 1)]


def test_repeated_keys_are_all_there() -> None:
    assert parse("a=1\na=2") == [Property("a", "1", 1), Property("a", "2", 2)]


@pytest.mark.parametrize("digits", ["", "1", "12g4", " 123", "+123"])
def test_bad_unicode_escape_names_its_line(digits: str) -> None:
    with pytest.raises(PropertiesSyntaxError, match="line 2: ") as caught:
        parse(f"a=1\nb=\\u{digits}")
    assert caught.value.line == 2


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        entries = parse(text)
    except PropertiesSyntaxError:
        return
    assert all(entry.line >= 1 for entry in entries)


def test_the_body_of_a_request_has_a_bound_and_is_utf_8() -> None:
    """200 KB of backslashes took 80 ms."""
    assert [entry.key for entry in parse_body(b"a=1\nb=2\n")] == ["a", "b"]
    with pytest.raises(PropertiesSyntaxError, match=f"a body of {BODY_BYTES_MAX + 1} bytes, at most"):
        parse_body(b"\\" * (BODY_BYTES_MAX + 1))
    with pytest.raises(PropertiesSyntaxError, match="line 2: byte 4 is not UTF-8 text"):
        parse_body(b"a=1\n\xff=2")
