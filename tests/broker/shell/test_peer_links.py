"""Links follow the members of the group."""

from __future__ import annotations

import trio

from broker.shell.peer_links import PeerLinks
from tests.broker.harness import Group


async def test_a_task_that_runs_on_after_its_peer_has_gone_ends(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Found by chaos: its sleep was over in the moment in which the peer was removed, and the node fell."""
    links = PeerLinks(Group(3).node("n0"), {}, lambda: None, lambda: None)
    with trio.fail_after(60):
        await links._keep_link("n7")
