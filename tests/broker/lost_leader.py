"""A leader that is lost while requests wait at it, and that tells these so one by one: some before it knows of the next
leader, and the others behind."""

from __future__ import annotations

import pytest

from broker.peers.protocol import Forward, Frame, RaftFrame
from broker.remoting.command import RemotingCommand
from broker.remoting.frame import whole_commands
from broker.replica import leadership
from broker.replica.inner_limits import InnerLimits
from raft.messages import AppendRequest
from tests.broker.harness import Client, Group


class LostLeader:
    """A group with topic T, of whose leader `client` is a client."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(leadership, "_TOLD_A_TURN", 1)
        self.group = group = Group(3, start=False)
        group.limits = InnerLimits(held_at_once=1)
        for name in group.members:
            group.start(name)
        self.old = group.elect()
        self.client: Client = group.connect()
        self.client.create_topic("T")
        self.client.heartbeat("g")
        group.converge()

        self._forwarded: list[int] = []
        self._knows_the_next = False
        group.lose = self._is_lost

    def _is_lost(self, source: str, target: str, frame: Frame) -> bool:
        if isinstance(frame, Forward):
            self._forwarded.extend(command.opaque for command in whole_commands(bytes(frame.body)))
        is_of_leader = isinstance(frame, RaftFrame) and isinstance(frame.message, AppendRequest)
        return target == self.old and is_of_leader and not self._knows_the_next

    def lose(self) -> None:
        """Loses the leader, and goes on until it has told five of those that wait there so."""
        group, there = self.group, self.group.node(self.old)
        group.stop(self.old)
        group.advance(5)
        group.go_on(self.old)
        for _ in range(1000):
            if there.held_count == 5:
                return
            group.now_ns = max(group.now_ns, group.next_due_ns())
            group.step_at_random(group.random)
        raise AssertionError(f"{there.held_count} are held")

    def answers(self, asked: list[int]) -> list[RemotingCommand]:
        """Lets the former leader hear of the next one; returns the client's answers."""
        self._knows_the_next = True
        return [self.client.wait(opaque) for opaque in asked]

    def order_of(self, asked: list[int]) -> list[int]:
        """Returns the opaques of these requests in the order in which the next leader got them."""
        return [opaque for opaque in self._forwarded if opaque in asked]
