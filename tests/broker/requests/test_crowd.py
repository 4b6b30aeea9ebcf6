"""A crowd: the oldest of the address that has most goes first, whatever came and went before."""

from __future__ import annotations

import random

import pytest

from broker.requests.crowd import Crowd


def test_the_oldest_of_the_largest_crowd_goes_first() -> None:
    crowd: Crowd[int] = Crowd()
    for member, address in enumerate(("a", "b", "b", "a", "b")):
        crowd.add(member, address)
    assert crowd.first_to_go() == 1
    crowd.add(1, "b")
    assert crowd.first_to_go() == 2, "who is added again stands last"
    crowd.discard(2)
    assert crowd.first_to_go() == 0, "of two addresses the one that has so many for longer"
    assert len(crowd) == 4


def test_one_that_comes_has_the_first_to_go_taken_out_if_there_are_as_many_as_may_be() -> None:
    crowd: Crowd[int] = Crowd()
    for member, address in enumerate(("a", "b", "b")):
        crowd.add(member, address)
    assert crowd.make_room(4) is None
    assert [*crowd] == [0, 1, 2]
    assert crowd.make_room(3) == 1
    assert [*crowd] == [0, 2]


def test_who_is_not_there_is_not_taken_out() -> None:
    crowd: Crowd[int] = Crowd()
    crowd.add(1, "a")
    crowd.discard(2)
    assert len(crowd) == 1
    crowd.discard(1)
    crowd.discard(1)
    assert not crowd


@pytest.mark.parametrize("seed", range(20))
def test_as_a_plain_list_would_have_it(seed: int) -> None:
    dice = random.Random(seed)
    crowd: Crowd[int] = Crowd()
    plain: list[tuple[int, str]] = []
    for _ in range(300):
        member = dice.randrange(60)
        address = "aabc"[member % 4]
        if (member, address) in plain:
            plain.remove((member, address))
        if dice.random() < 0.6:
            crowd.add(member, address)
            plain.append((member, address))
        else:
            crowd.discard(member)
        assert [*crowd] == [each for each, _ in plain]
        assert len(crowd) == len(plain)
        if plain:
            of = {where: [each for each, there in plain if there == where] for _, where in plain}
            assert crowd.first_to_go() in {
                members[0] for members in of.values() if len(members) == max(map(len, of.values()))
            }
