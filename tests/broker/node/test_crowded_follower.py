"""Pulls of one client, which the leader holds, and sends of another, through the same follower."""

from __future__ import annotations

import pytest

from broker.remoting.codes import ResponseCode
from broker.replica.inner_limits import InnerLimits
from tests.broker.harness import Group


def test_pulls_that_wait_take_no_place_of_a_send_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """An account that may read one topic could keep all others from a node for a minute at a time."""
    monkeypatch.setattr(Group, "limits", InnerLimits(forwarded_max=20))
    group = Group.elected(3)
    setup = group.connect()
    setup.create_topic("T")
    setup.heartbeat("g")
    group.converge()
    crowd = [group.connect(group.follower, host="10.0.0.1") for _ in range(3)]
    opaques = [
        (client, client.start_pull("T", "g", 0, suspend_ms=60_000)) for client in crowd for _ in range(20)
    ]
    group.settle()
    refused = [client.answers[opaque] for client, opaque in opaques if opaque in client.answers]
    assert len(refused) == 50
    assert {answer.code for answer in refused} == {ResponseCode.SYSTEM_BUSY}
    sender = group.connect(group.follower, host="10.0.0.2")
    assert sender.send("T", b"here", 0).queue_offset == 0
