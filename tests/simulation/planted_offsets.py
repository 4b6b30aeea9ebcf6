"""Mistakes about consumer offsets as replicated state, each put into the real code by a patch.

`planted_bugs` lists them.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.offsets.commits import OffsetCommits
from broker.replica.committed_entries import CommittedEntries
from broker.state.commands import CommitOffsets
from broker.state.metadata import Metadata
from broker.state.stored_offsets import StoredOffsets
from tests.simulation.planting import planted


@planted("offset rewind after failover", "RocketMQ #3210, #1934: offsets acknowledged from memory")
def offsets_acknowledged_from_memory(patch: pytest.MonkeyPatch) -> None:
    def commit(
        self: OffsetCommits, group: str, topic: str, queue_id: int, offset: int, done: Any, lost: Any
    ) -> None:
        self.stage(group, topic, queue_id, offset)
        done(None)

    patch.setattr(OffsetCommits, "commit", commit)


@planted("offsets applied by the leader only", "metadata outside the log")
def offsets_applied_by_the_leader_only(patch: pytest.MonkeyPatch) -> None:
    original = CommittedEntries.apply_and_answer

    def apply_and_answer(self: CommittedEntries, upto: int) -> None:
        metadata = self._applied.metadata
        offsets = metadata.offsets
        if not self._leadership.serving:
            metadata.offsets = StoredOffsets()
        original(self, upto)
        metadata.offsets = offsets

    patch.setattr(CommittedEntries, "apply_and_answer", apply_and_answer)


@planted("offsets rewound", "what is stored is not what was asked")
def offsets_rewound(patch: pytest.MonkeyPatch) -> None:
    original = Metadata.apply

    def apply(self: Metadata, command: Any) -> Any:
        if isinstance(command, CommitOffsets):
            rewound = tuple((g, t, q, max(0, offset - 5)) for g, t, q, offset in command.offsets)
            command = CommitOffsets(rewound)
        return original(self, command)

    patch.setattr(Metadata, "apply", apply)
