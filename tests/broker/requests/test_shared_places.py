"""Places that are shared: who takes all that he gets leaves some to others."""

from __future__ import annotations

from broker.requests.shared_places import SharedPlaces


def taken(places: SharedPlaces, address: str) -> int:
    """How many somebody gets who takes all that he can."""
    count = 0
    while places.has_room(address):
        places.take(address)
        count += 1
    return count


def test_nobody_gets_more_than_he_leaves() -> None:
    places = SharedPlaces(1000)
    assert [taken(places, address) for address in "abc"] == [500, 250, 125]
    assert places.taken == 875
    assert places.has_room("d")
    assert not places.has_room("a")


def test_what_is_given_back_is_free_for_all() -> None:
    places = SharedPlaces(1000)
    taken(places, "a")
    for _ in range(300):
        places.give_back("a")
    assert (places.taken, taken(places, "b")) == (200, 400)


def test_many_are_taken_at_once_where_as_many_are_free() -> None:
    places = SharedPlaces(1000)
    assert (places.has_room("a", 1000), places.has_room("a", 1001)) == (True, False)
    places.take("a", 400)
    assert (places.has_room("a", 200), places.has_room("a", 201)) == (True, False)
    assert (places.has_room("b", 600), places.has_room("b", 601)) == (True, False)
    places.give_back("a", 400)
    assert places.taken == 0
