"""Places for connections: those who show nothing of themselves give theirs up, others keep them."""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog.testing

from broker.requests.connection_places import Place, Places
from broker.statistics.events import Event, Events


@dataclass
class Rig:
    """Two places, and who had to go."""

    proving: bool = True
    events: Events = field(default_factory=Events)
    gone: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.places = Places(2, lambda: self.proving, lambda: 0, self.events)

    def take(self, name: str, address: str = "10.0.0.1") -> Place | None:
        place = self.places.take(address)
        if place is not None:
            place.held_by(lambda: self.gone.append(name))
        return place

    def asks(self, name: str, *, proven: bool = False, address: str = "10.0.0.1") -> Place:
        place = self.take(name, address)
        assert place is not None
        place.asked(proven=proven)
        return place


def test_the_silent_go_before_strangers_and_those_before_nobody() -> None:
    rig = Rig()
    rig.asks("stranger")
    rig.take("silent")
    rig.asks("account", proven=True)
    assert rig.gone == ["silent"]
    rig.asks("another", proven=True)
    assert rig.gone == ["silent", "stranger"]
    with structlog.testing.capture_logs() as logs:
        assert rig.take("late", "10.0.0.9") is None
    assert rig.gone == ["silent", "stranger"]
    assert [(each["event"], each["source"], each["limit"]) for each in logs] == [
        (Event.CONNECTION_REFUSED.value, "10.0.0.9", 2)
    ]
    assert rig.events.counts == {
        (Event.CONNECTION_CLOSED, "too many connections"): 2,
        (Event.CONNECTION_REFUSED, "too many connections"): 1,
    }


def test_of_strangers_the_one_goes_that_has_asked_for_nothing_for_longest() -> None:
    rig = Rig()
    first = rig.asks("first")
    rig.asks("second")
    first.asked(proven=False)
    rig.asks("third")
    assert rig.gone == ["second"]


def test_where_nobody_can_prove_anything_whoever_has_asked_stays() -> None:
    rig = Rig(proving=False)
    assert rig.asks("a").is_safe
    rig.take("silent")
    rig.asks("b")
    assert rig.gone == ["silent"]
    assert rig.take("c") is None


def test_a_sender_of_many_connections_loses_his_own() -> None:
    rig = Rig()
    rig.places = Places(4, lambda: True, lambda: 0, rig.events)
    rig.take("lonely", "10.0.0.2")
    for number in range(9):
        rig.take(str(number))
    assert rig.gone == ["0", "1", "2", "3", "4", "5"]


def test_addresses_of_one_network_of_ipv6_are_those_of_one_sender() -> None:
    rig = Rig()
    rig.places = Places(4, lambda: True, lambda: 0, rig.events)
    rig.take("lonely", "2001:db8:0:2::1")
    with structlog.testing.capture_logs() as logs:
        for number in range(9):
            rig.take(str(number), f"2001:db8:0:1::{number}")
    assert rig.gone == ["0", "1", "2", "3", "4", "5"]
    assert [each["source"] for each in logs] == ["2001:db8:0:1::0"], "the first of many, by its own address"


def test_a_place_that_is_given_up_is_free_once() -> None:
    rig = Rig()
    place = rig.asks("a")
    rig.take("b")
    place.free()
    place.free()
    assert rig.take("c") is not None
    assert rig.places.taken == 2
    assert rig.gone == []


def test_who_hears_late_that_his_place_is_gone_hears_it_at_once() -> None:
    rig = Rig()
    place = rig.places.take("10.0.0.1")
    assert place is not None
    rig.take("b"), rig.take("c")
    place.held_by(lambda: rig.gone.append("a"))
    assert rig.gone == ["a"]
    place.free()
    assert rig.places.taken == 2
