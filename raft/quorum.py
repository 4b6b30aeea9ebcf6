"""Majorities."""

from collections.abc import Sequence

__all__ = ["VoteTally", "agreed"]


def agreed(values: Sequence[int]) -> int:
    """The greatest value that a majority of the voters, one value each, has reached (5.3, 5.4)."""
    return sorted(values)[(len(values) - 1) // 2]


class VoteTally:
    """The votes of one campaign; only those of its voters count, each once."""

    __slots__ = ("_needed", "_votes")

    def __init__(self, voters: Sequence[str]) -> None:
        self._votes: dict[str, bool | None] = dict.fromkeys(voters)
        self._needed = len(voters) // 2 + 1

    def record(self, voter: str, granted: bool) -> None:
        """A voter's first answer stands, except that one taken for lost may still grant its vote."""
        if voter in self._votes and not self._votes[voter]:
            self._votes[voter] = granted

    @property
    def won(self) -> bool:
        return sum(vote is True for vote in self._votes.values()) >= self._needed

    @property
    def lost(self) -> bool:
        """Whether no majority can come together any more."""
        return sum(vote is not False for vote in self._votes.values()) < self._needed
