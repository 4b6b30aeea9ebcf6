"""Mistakes about consumer offsets as replicated state, each put into the real code by a patch.

`planted_bugs` lists them.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.offsets.commits import OffsetCommits
from broker.replica.replica import Replica
from broker.state.commands import CommitOffsets
from broker.state.metadata import Metadata


def offsets_acknowledged_from_memory(patch: pytest.MonkeyPatch) -> None:
    def commit(
        self: OffsetCommits, group: str, topic: str, queue_id: int, offset: int, done: Any, lost: Any
    ) -> None:
        self.stage(group, topic, queue_id, offset)
        done(None)

    patch.setattr(OffsetCommits, "commit", commit)


def offsets_applied_by_the_leader_only(patch: pytest.MonkeyPatch) -> None:
    original = Replica._apply_internal

    def apply_internal(self: Replica, index: int, record: memoryview) -> None:
        offsets = self.metadata.offsets
        if not self.serving:
            self.metadata.offsets = {}
        original(self, index, record)
        self.metadata.offsets = offsets

    patch.setattr(Replica, "_apply_internal", apply_internal)


def offsets_rewound(patch: pytest.MonkeyPatch) -> None:
    original = Metadata.apply

    def apply(self: Metadata, command: Any) -> Any:
        if isinstance(command, CommitOffsets):
            rewound = tuple((g, t, q, max(0, offset - 5)) for g, t, q, offset in command.offsets)
            command = CommitOffsets(rewound)
        return original(self, command)

    patch.setattr(Metadata, "apply", apply)
