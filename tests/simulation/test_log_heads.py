"""The judge of the logs' heads: what a client may be told of a queue's begin, whoever leads."""

from __future__ import annotations

import pytest

from broker.state.commands import FORMAT_OF_COMMANDS, PutTopic, RaiseFormat, RaiseHead
from broker.state.topic_rules import topic_config
from simulation.journal import Violation
from simulation.judges.log_heads import SERVES, LogHeads

AGREED = RaiseFormat(FORMAT_OF_COMMANDS[RaiseHead])


def test_the_begin_is_where_entries_have_raised_it_whoever_leads() -> None:
    heads = LogHeads()
    heads.begins_at("a", 0, 0)
    heads.begins_at("b", 0, 0)
    heads.elected("a", 1)
    heads.applied("a", 1, 1, AGREED, 2)
    heads.applied("a", 7, 1, RaiseHead(100), 10)
    heads.applied("a", 8, 1, RaiseHead(50), 11)
    heads.applied("a", 9, 1, RaiseHead(300), 20)
    heads.begins_at("a", 300, 21)
    heads.elected("b", 30)
    assert heads.begins_since(40) == [300], "the log of the new leader begins at 0"
    assert heads.begins_since(15) == [100, 300]
    assert heads.begins_since(5) == [0, 100, 300]
    assert heads.kept_from == 300


def test_until_all_members_read_the_entries_it_is_that_of_a_leader_of_the_time() -> None:
    heads = LogHeads()
    heads.begins_at("a", 0, 0)
    heads.begins_at("b", 0, 0)
    heads.elected("a", 1)
    heads.begins_at("a", 200, 5)
    heads.elected("b", 10)
    assert heads.begins_since(7) == [0, 200]
    assert heads.begins_since(12) == [0]
    heads.applied("b", 3, 2, AGREED, 15)
    assert heads.begins_since(16) == [0], "nodes have deleted by themselves: the first entry begins it"
    heads.applied("b", 4, 2, RaiseHead(200), 20)
    assert heads.begins_since(18) == [0, 200]
    assert heads.begins_since(21) == [200]


def test_a_leader_that_serves_has_all_that_the_group_keeps() -> None:
    heads = LogHeads()
    heads.serves("a", 100, 0, 0)
    heads.applied("a", 1, 1, AGREED, 2)
    heads.serves("a", 0, 1, 0)
    heads.applied("a", 2, 1, RaiseHead(100), 3)
    heads.serves("a", 100, 2, 100)
    heads.serves("a", 60, 2, 100)
    with pytest.raises(Violation, match=SERVES):
        heads.serves("a", 101, 2, 100)


def test_what_a_leader_has_deleted_by_itself_is_said_when_it_has_applied_the_entry() -> None:
    """Seed 8120050: the entry was committed, and the leader's turn over before it was applied."""
    heads = LogHeads()
    heads.begins_at("a", 100, 0)
    heads.applied("a", 1, 1, AGREED, 2)
    heads.applied("a", 3, 1, RaiseHead(100), 3)
    heads.serves("a", 100, 2, 0)
    heads.serves("a", 100, 3, 100)
    with pytest.raises(Violation, match=SERVES):
        heads.serves("a", 100, 3, 0)


def test_a_head_that_is_raised_for_its_age_is_held_to_what_waits() -> None:
    heads = LogHeads()
    looked: list[int] = []
    heads.spares_what_waits = lambda node, position: looked.append(position)
    heads.applied("a", 1, 1, AGREED, 2)
    heads.written(b"... raise_head ...", 4, 4, 1)
    heads.written(b"another entry", 5, 5, 1)
    heads.applied("a", 4, 1, RaiseHead(100), 3)
    assert heads.was_forced
    heads.applied("a", 5, 1, PutTopic(topic_config("T", 1), 0), 3)
    heads.applied("a", 6, 1, RaiseHead(200), 4)
    heads.applied("b", 4, 2, RaiseHead(300), 5)
    assert looked == [200, 300], "an entry of that index of another term is another one"
    assert not heads.was_forced
