"""What waits is counted with its header, and freed as it was counted."""

from __future__ import annotations

import contextlib

import pytest

from broker.remoting.codes import RequestCode
from broker.remoting.command import JSON, ROCKETMQ, RemotingCommand, encode, request
from broker.remoting.frame import whole_commands
from broker.requests.budget import Budget
from broker.requests.connection import Connection, Outgoing
from broker.requests.errors import OverloadedError


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_headers_count_and_are_freed_whatever_becomes_of_them(serialization: int) -> None:
    budget, client = Budget("something", bytes_max=1_600_000), Connection(Outgoing(), "10.0.0.1:1")
    one = request(
        RequestCode.SEND_MESSAGE, {"properties": "x" * 200_000}, b"x" * 100, serialization=serialization
    )
    commands = whole_commands(encode(one) * 5)
    for _ in range(3):
        for command in commands[:4]:
            budget.take(client, command)
        with pytest.raises(OverloadedError):
            budget.take(client, commands[4])
        for command in commands[:4]:
            assert command.fields, "which makes another header of it"
            budget.free(client, command)


@pytest.mark.parametrize("bound", ["requests", "bytes"])
def test_one_address_that_takes_all_leaves_room_to_another(bound: str) -> None:
    """Whoever filled a budget kept everybody else out."""
    most = {"requests_max": 20} if bound == "requests" else {"bytes_max": 20 * 1512}
    budget = Budget("something", **most)
    greedy = [Connection(Outgoing(), f"10.0.0.1:{port}") for port in range(3)]
    other = Connection(Outgoing(), "10.0.0.2:1")
    commands = [request(RequestCode.SEND_MESSAGE, None, bytes(1000)) for _ in range(30)]
    taken: list[tuple[Connection, RemotingCommand]] = []
    for number, command in enumerate(commands):
        try:
            budget.take(greedy[number % 3], command)
        except OverloadedError:
            continue
        taken.append((greedy[number % 3], command))
    assert len(taken) == 10, "alone an address has half, whatever number of connections it has"
    for command in commands[:3]:
        budget.take(other, command)
    with pytest.raises(OverloadedError):
        budget.take(other, commands[3])
    for connection, command in (*taken, *((other, command) for command in commands[:3])):
        budget.free(connection, command)
    for command in commands[:10]:
        budget.take(other, command)


def test_all_addresses_of_a_network_are_one_that_takes_all() -> None:
    budget = Budget("something", 20)
    other = Connection(Outgoing(), "2001:db8:0:2::1:1")
    commands = [request(RequestCode.SEND_MESSAGE) for _ in range(33)]
    taken = 0
    for number, command in enumerate(commands[:30]):
        with contextlib.suppress(OverloadedError):
            budget.take(Connection(Outgoing(), f"2001:db8:0:1::{number}:1"), command)
            taken += 1
    assert taken == 10
    for command in commands[30:]:
        budget.take(other, command)
