"""Mistakes that are planted in Raft's core both below its own tests and in the simulator (planted_replication.py)."""

import pytest

from raft.follower import Follower
from raft.messages import AppendRequest


def truncation_by_any_request(patch: pytest.MonkeyPatch) -> None:
    """A log is cut to the end of every request, also of one that arrives late (5.3)."""
    original = Follower._accept

    def accept(self: Follower, request: AppendRequest, last_index: int) -> None:
        original(self, request, last_index)
        if self._state.commit_index <= last_index < self._state.log.last_index:
            self._state.truncate(last_index)

    patch.setattr(Follower, "_accept", accept)
