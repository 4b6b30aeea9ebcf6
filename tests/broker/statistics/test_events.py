"""Trouble is told a few times for each kind, reason and source, how much was left out is told later, all is counted."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import structlog.testing

from broker.statistics.events import OTHERS, SOURCES_MAX, TOLD_EVERY_NS, EventKind, Events

SECOND = 1_000_000_000
Logs = list[MutableMapping[str, Any]]


@pytest.fixture
def logs() -> Iterator[Logs]:
    with structlog.testing.capture_logs() as captured:
        yield captured


def damaged(events: Events, source: str, now_ns: int, at_once: int = 1) -> None:
    events.warn(EventKind.DAMAGED_FRAME, "no frame", now_ns, source=source, at_once=at_once)


def test_a_flood_from_one_source_is_told_in_few_lines(logs: Logs) -> None:
    events = Events()
    for second in range(60):
        for number in range(690):
            damaged(events, "10.0.0.9", second * SECOND + number)
    assert events.count(EventKind.DAMAGED_FRAME) == 60 * 690
    assert [entry.get("not_told") for entry in logs] == [None, *[6899] * 5]
    events.sweep(60 * SECOND)
    assert logs[-1]["not_told"] == 6899, "also where nothing more happens"
    assert sum(entry.get("not_told", 0) + 1 for entry in logs) == 60 * 690 + 1


def test_other_sources_and_kinds_are_told_meanwhile(logs: Logs) -> None:
    events = Events()
    for number in range(100):
        damaged(events, "10.0.0.9", number)
    logs.clear()
    damaged(events, "10.0.0.8", 200)
    events.warn(EventKind.CONNECTION_REFUSED, "too many connections", 201, source="10.0.0.9", limit=7)
    assert [(entry["event"], entry["source"], entry.get("limit")) for entry in logs] == [
        ("damaged frame", "10.0.0.8", None),
        ("connection refused", "10.0.0.9", 7),
    ]


def test_a_flood_from_many_addresses_of_one_network_is_one(logs: Logs) -> None:
    events = Events()
    for number in range(2 * SOURCES_MAX):
        damaged(events, f"2001:db8::{number:x}", number)
    damaged(events, "2001:db8:0:1::1", 2 * SOURCES_MAX)
    assert [entry["source"] for entry in logs] == ["2001:db8::0", "2001:db8:0:1::1"]
    events.sweep(60 * SECOND)
    assert (logs[-1]["source"], logs[-1]["not_told"]) == ("2001:db8::/64", 2 * SOURCES_MAX - 1)


def test_some_are_told_at_once(logs: Logs) -> None:
    events = Events()
    for number in range(20):
        damaged(events, "10.0.0.9", number, at_once=3)
    assert len(logs) == 3
    damaged(events, "10.0.0.9", TOLD_EVERY_NS, at_once=3)
    assert [entry.get("not_told") for entry in logs] == [None, None, None, 17]


def test_many_sources_share_one_place(logs: Logs) -> None:
    events = Events()
    for number in range(10 * SOURCES_MAX):
        damaged(events, f"fd00:0:0:{number:x}::", number)
    assert len(events._told) == SOURCES_MAX + 1
    assert len(logs) == SOURCES_MAX + 1
    events.sweep(2 * TOLD_EVERY_NS)
    assert (logs[-1]["source"], logs[-1]["not_told"]) == (OTHERS, 9 * SOURCES_MAX - 1)
    assert (events.count(EventKind.DAMAGED_FRAME), events._told) == (10 * SOURCES_MAX, {})


def test_what_others_write_is_limited_and_counted_alike(logs: Logs) -> None:
    events = Events()
    told = [
        events.admits(EventKind.REQUEST_FAILED, "KeyError", number, source="10.0.0.9") for number in range(5)
    ]
    assert told == [True, *[False] * 4]
    assert events.admits(EventKind.REQUEST_FAILED, "KeyError", TOLD_EVERY_NS, source="10.0.0.9")
    assert [(entry["event"], entry["not_told"]) for entry in logs] == [("request failed", 4)]
    assert events.counts == {(EventKind.REQUEST_FAILED, "KeyError"): 6}
