"""What waits is counted with its header, and given back as it was counted."""

from __future__ import annotations

import pytest

from broker.remoting.codes import RequestCode
from broker.remoting.command import JSON, ROCKETMQ, encode, request
from broker.remoting.frame import whole_commands
from broker.requests.budget import Budget
from broker.requests.errors import OverloadedError


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_headers_count_and_are_given_back_whatever_becomes_of_them(serialization: int) -> None:
    budget = Budget("something", bytes_max=1_000_000)
    one = request(
        RequestCode.SEND_MESSAGE, {"properties": "x" * 200_000}, b"x" * 100, serialization=serialization
    )
    commands = whole_commands(encode(one) * 5)
    for _ in range(3):
        for command in commands[:4]:
            budget.take(command)
        with pytest.raises(OverloadedError):
            budget.take(commands[4])
        for command in commands[:4]:
            assert command.fields, "which makes another header of it"
            budget.give_back(command)
