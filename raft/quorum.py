"""Majorities."""

from collections.abc import Sequence


def agreed(values: Sequence[int]) -> int:
    """The greatest value that a majority of the voters, one value each, has reached (5.3, 5.4)."""
    # In ascending order more than half of the values stand at that place or behind it.
    return sorted(values)[(len(values) - 1) // 2]


class VoteTally:
    """The votes of one campaign; only those of its voters count, each once.

    Votes of recovering voters, marked ones, count only in a unanimous election; see recovery.py.
    """

    __slots__ = ("_marked", "_needed", "_votes")

    def __init__(self, voters: Sequence[str]) -> None:
        # True: granted; False: refused, or taken for lost; None: not heard yet.
        self._votes: dict[str, bool | None] = dict.fromkeys(voters)
        # The voters whose votes are granted and marked.
        self._marked: dict[str, None] = {}
        self._needed = len(voters) // 2 + 1

    def record(self, voter: str, granted: bool, *, marked: bool = False) -> None:
        """A voter's first answer stands, except that one taken for lost may still grant its vote."""
        if voter in self._votes and not self._votes[voter]:
            self._votes[voter] = granted
            if granted and marked:
                self._marked[voter] = None

    @property
    def granted(self) -> tuple[str, ...]:
        """The voters that have granted their votes, marked or not."""
        return tuple(voter for voter, vote in self._votes.items() if vote)

    @property
    def won(self) -> bool:
        """True when a majority has granted unmarked votes, or all voters have granted theirs (5.2, recovery.py)."""
        granted = sum(vote is True for vote in self._votes.values())
        return granted - len(self._marked) >= self._needed or granted == len(self._votes)

    @property
    def lost(self) -> bool:
        """True when the campaign cannot be won any more."""
        refused = sum(vote is False for vote in self._votes.values())
        return refused > 0 and len(self._votes) - refused - len(self._marked) < self._needed
