"""Long lists are written in steps of so many members, and nobody copies them into one piece."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from broker.remoting.json_body import encode_body
from broker.remoting.pieces import PIECE_BYTES, Pieces
from broker.requests.long_bodies import MEMBERS_AT_ONCE, listed, table, whole


def test_each_step_writes_so_many_members() -> None:
    written: list[int] = []

    def write(some: Sequence[int]) -> bytes:
        written.append(len(some))
        return encode_body(list(some))

    steps = listed(b'{"a":[', range(3 * MEMBERS_AT_ONCE + 1), write)
    for number in range(1, 4):
        next(steps)
        assert written == [MEMBERS_AT_ONCE] * number
    body = whole(steps)
    assert written[3:] == [1]
    assert msgspec.json.decode(body) == {"a": list(range(3 * MEMBERS_AT_ONCE + 1))}


@pytest.mark.parametrize("count", [0, 1, MEMBERS_AT_ONCE, 2 * MEMBERS_AT_ONCE])
def test_what_comes_out_does_not_show_the_steps(count: int) -> None:
    members = {f"topic-{number}": number for number in range(count)}
    body = whole(table(b'{"version":1,"table":{', members, lambda name: not name.endswith("7")))
    seen = {name: number for name, number in members.items() if not name.endswith("7")}
    assert body == encode_body({"version": 1, "table": seen})


def test_members_are_those_of_the_beginning() -> None:
    members = {f"topic-{number}": number for number in range(2 * MEMBERS_AT_ONCE)}
    before = dict(members)
    steps = table(b'{"table":{', members, lambda _: True)
    next(steps)
    del members["topic-1500"]
    members["new"] = 1
    assert msgspec.json.decode(whole(steps)) == {"table": before}


def test_a_part_of_which_nothing_is_seen_leaves_no_comma() -> None:
    members = {f"topic-{number}": number for number in range(3 * MEMBERS_AT_ONCE)}
    body = whole(table(b'{"table":{', members, lambda name: members[name] >= MEMBERS_AT_ONCE * 2))
    assert len(msgspec.json.decode(body)["table"]) == MEMBERS_AT_ONCE


def test_pieces_are_not_longer_than_what_was_written_at_once() -> None:
    pieces = Pieces(b"begin")
    for _ in range(100):
        pieces.write(b"x" * 10_000)
    inner = Pieces(b"(")
    inner.write(b"y" * PIECE_BYTES)
    pieces.take(inner)
    pieces.write(b")end")
    assert b"".join(pieces.all()) == b"begin" + b"x" * 1_000_000 + b"(" + b"y" * PIECE_BYTES + b")end"
    assert max(map(len, pieces.all())) < 2 * PIECE_BYTES
    assert len(pieces.all()) < 20
