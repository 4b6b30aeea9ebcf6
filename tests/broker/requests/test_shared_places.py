"""Places that are shared: who takes all that he gets leaves some to others."""

from __future__ import annotations

import random

from broker.requests.shared_places import SharedPlaces


def taken(places: SharedPlaces, address: str) -> int:
    """How many somebody gets who takes all that he can."""
    count = 0
    while places.has_room(address):
        places.take(address)
        count += 1
    return count


def test_the_first_half_is_for_whoever_comes_and_the_second_for_those_who_have_little() -> None:
    places = SharedPlaces(1000)
    assert [taken(places, address) for address in "abc"] == [500, 167, 83]
    assert not places.has_room("a")
    assert places.has_room("d", 62), "a fourth of what is left"
    assert not places.has_room("d", 63)


def test_in_the_first_half_nobody_is_counted() -> None:
    """As long as there is enough for all nobody is limited by how many others there are."""
    places = SharedPlaces(1000)
    for number in range(100):
        places.take(f"small {number}")
    assert taken(places, "large") == 400
    assert all(places.has_room(f"small {number}") for number in range(100))


def test_a_hundred_addresses_that_take_all_they_get_leave_room_to_the_next() -> None:
    """With half of what was left for each, fourteen had all of twenty thousand."""
    places = SharedPlaces(40_000)
    for number in range(100):
        assert taken(places, str(number)) > 0
    assert places.has_room("next", 3)


def test_there_are_never_more_than_there_are() -> None:
    chance = random.Random(1)
    for most in (1, 2, 3, 10, 1000):
        places = SharedPlaces(most)
        assert taken(places, "alone") == (most + 1) // 2
        held = [("alone", 1)] * ((most + 1) // 2)
        for _ in range(2000):
            address, wanted = chance.choice("abcdefghij"), chance.randint(1, max(1, most // 20))
            if places.has_room(address, wanted):
                places.take(address, wanted)
                held.append((address, wanted))
            elif held:
                places.free(*held.pop(chance.randrange(len(held))))
            assert places.taken == sum(count for _, count in held) <= most


def test_what_is_freed_is_free_for_all() -> None:
    places = SharedPlaces(1000)
    taken(places, "a")
    for _ in range(300):
        places.free("a")
    assert (places.taken, taken(places, "b")) == (200, 300)
    places.free("a", 200)
    assert (places.taken, taken(places, "b")) == (300, 200)


def test_many_are_taken_at_once_where_as_many_are_free() -> None:
    places = SharedPlaces(1000)
    assert (places.has_room("a", 1000), places.has_room("a", 1001)) == (True, False)
    places.take("a", 400)
    assert (places.has_room("a", 200), places.has_room("a", 201)) == (True, False)
    assert (places.has_room("b", 300), places.has_room("b", 301)) == (True, False)
    places.free("a", 400)
    assert places.taken == 0


def test_whoever_wants_to_know_hears_that_somebody_finds_no_room() -> None:
    places, heard = SharedPlaces(2), list[None]()
    places.none_left = lambda: heard.append(None)
    assert places.has_room("one")
    places.take("one")
    assert not heard
    assert not places.has_room("one", 2)
    assert len(heard) == 1
