"""Retention decides which data files may go, as a pure function (`DLedgerMmapFileStore`, `DefaultMessageStore`).

Those before the group's head go, and those that the policy names. The last file never goes, nor an entry that the
metadata snapshot does not cover: a follower that needs it could be served by nothing else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The operator's limits. Ratios are the used part of the whole file system, 0..1."""

    reserved_ms: int = 72 * 3600 * 1000
    delete_ratio: float = 0.75
    """Above it expired files are deleted at any hour."""
    force_ratio: float = 0.85
    """Above it files are deleted whatever their age."""
    files_per_pass: int = 10


def nothing_waits() -> int | None:
    """Returns None: there is no message that nobody could get yet."""
    return None


@dataclass(frozen=True, slots=True)
class HeadLook:
    """One look at the head of a log, at `now_ms` by the group's time: what may go, and what is needed still.

    No entry goes from `needed_from_index` on, and none because of its age from the position on that `find_waiting`
    returns, None for no such position. It is dear, and asked only when something would go.
    """

    policy: RetentionPolicy
    now_ms: int
    is_delete_hour: bool
    needed_from_index: int | None = None
    find_waiting: Callable[[], int | None] = nothing_waits

    def may_delete(self, used_ratio: float) -> bool:
        """True if the hour or the state of the disk allows to delete anything at all."""
        policy = self.policy
        return self.is_delete_hour or used_ratio > min(policy.delete_ratio, policy.force_ratio)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file: `newest_ms` is the store time of its last record, or close to it; `next_index` is the first entry of
    the file behind it, which begins at `next_position`."""

    newest_ms: int
    next_index: int
    next_position: int


def files_to_delete(
    files: Sequence[DataFile],
    look: HeadLook,
    *,
    used_ratio: float,
    covered_index: int,
    waiting_position: int | None = None,
    head_position: int = 0,
) -> int:
    """Returns the number of `files` (oldest first, without the last file of the log) to delete now.

    Those that end at `head_position` or before it go whatever the policy says.

    `covered_index` is the last entry that nobody needs from the log any more. From `waiting_position` on there are
    messages that are still to be delivered: age does not delete them, only a disk that is nearly full.
    """
    policy = look.policy
    may = look.may_delete(used_ratio)
    forced = used_ratio > policy.force_ratio
    count = 0
    for file in files[: policy.files_per_pass]:
        # Clients are told of nothing before the group's head: nobody reads it there, however young. What is behind it
        # goes by the rules of `DefaultMessageStore.CleanCommitLogService`, and one more: that a message is old does
        # not matter as long as it waits to be delivered. What a snapshot does not cover stays in any case.
        told = file.next_position > head_position
        expired = look.now_ms - file.newest_ms > policy.reserved_ms
        waits = waiting_position is not None and file.next_position > waiting_position
        if file.next_index - 1 > covered_index or (
            told and not (may and (forced or (expired and not waits)))
        ):
            break
        count += 1
    return count
