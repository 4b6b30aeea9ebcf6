"""A seeded share of the fuzzing in `tests/hostile/fuzz.py`, which says what must hold. `make fuzz` sends a million."""

from __future__ import annotations

from typing import Any

import pytest

from broker.name_server.route_table import RouteTable
from broker.name_server.server import LONG_REGISTRATION_BYTES, NameServer
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from tests.broker.harness import Group
from tests.hostile import fuzz
from tests.hostile.drawing import BODIES, HEADERS


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", fuzz.ROUNDS)
def test_hostile_requests_harm_nobody(kind: str, seed: int) -> None:
    told = fuzz.run(kind, seed, 600)
    assert told.requests == 600


def test_the_fields_of_every_request_are_drawn() -> None:
    """A request that a node takes and that has neither fields nor a body is named here."""
    group = Group(1)
    node = group.node(group.elect())
    bare = {
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.TRIVET_NODE_STATUS,
        RequestCode.UPDATE_BROKER_CONFIG,  # its body is no JSON
    }
    assert {*node._routes} - {*HEADERS, *BODIES} == bare


def test_a_short_registration_that_unfolds_beside_a_long_one_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name server took what is compressed for short by its bytes, and ended."""

    def is_long(_: NameServer, command: RemotingCommand) -> bool:
        return command.code == RequestCode.REGISTER_BROKER and len(command.body) > LONG_REGISTRATION_BYTES

    monkeypatch.setattr(NameServer, "is_long", is_long)
    with pytest.raises(AssertionError, match="a long request is begun when there is no other"):
        fuzz.run("name server", 1, 600)


def test_what_nobody_foresaw_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that fails answers with code 1 and an exception in the log: a finding, with what replays it."""

    def fails(*_: Any) -> None:
        raise KeyError("nobody foresaw this")

    monkeypatch.setattr(RouteTable, "unregister", fails)
    with pytest.raises(fuzz.FindingError, match="unforeseen") as found:
        fuzz.run("name server", 1, 600)
    assert "--only 'name server' --seed 1 --requests 600" in found.value.__notes__[0]
