"""Majorities."""

from collections.abc import Callable, Collection, Sequence


def agreed(values: Sequence[int]) -> int:
    """Returns the greatest value that a majority of the voters, one value each, has reached (5.3, 5.4)."""
    # In ascending order more than half of the values stand at that place or behind it.
    return sorted(values)[(len(values) - 1) // 2]


class VoteTally:
    """The votes of one campaign; only those of its voters count, each once.

    Votes of recovering voters, marked ones, count only in a unanimous election, for which `others` must agree, too, who
    are no voters of the candidate's configuration (recovery.py, *Unanimity*).
    """

    __slots__ = ("_marked", "_needed", "_others", "_votes")

    def __init__(self, voters: Sequence[str], others: Sequence[str] = ()) -> None:
        # True: granted; False: refused, or taken for lost; None: not heard yet.
        self._votes: dict[str, bool | None] = dict.fromkeys((*voters, *others))
        # The voters whose votes are granted and marked.
        self._marked: dict[str, None] = {}
        self._needed = len(voters) // 2 + 1
        # Who must agree, too, and is no voter: no part of a majority.
        self._others = tuple(node for node in others if node not in voters)

    def record(self, voter: str, granted: bool, *, marked: bool = False) -> None:
        """A voter's first answer stands, except that one taken for lost may still grant its vote."""
        if voter in self._votes and not self._votes[voter]:
            self._votes[voter] = granted
            if granted and marked:
                self._marked[voter] = None

    def needs(self, others: Sequence[str]) -> list[str]:
        """Has `others` agree, too, in a unanimous election; returns those among them that are not asked yet."""
        asked = [node for node in others if node not in self._votes]
        self._votes.update(dict.fromkeys(asked))
        self._others = (*self._others, *asked)
        return asked

    @property
    def asked(self) -> Collection[str]:
        """All whose votes may be needed."""
        return self._votes.keys()

    @property
    def granted(self) -> tuple[str, ...]:
        """The voters that have granted their votes, marked or not."""
        return tuple(voter for voter, vote in self._votes.items() if vote)

    @property
    def won(self) -> bool:
        """True when a majority has granted unmarked votes, or all have granted theirs (5.2, recovery.py)."""
        return self._count(lambda vote: vote is True) >= self._needed or all(self._votes.values())

    @property
    def lost(self) -> bool:
        """True when the campaign cannot be won any more."""
        is_unanimous = all(vote is not False for vote in self._votes.values())
        return not is_unanimous and self._count(lambda vote: vote is not False) < self._needed

    def _count(self, counts: Callable[[bool | None], bool]) -> int:
        """Counts the unmarked voters for whose vote (None: not yet given) `counts` is true."""
        return sum(
            counts(vote)
            for voter, vote in self._votes.items()
            if voter not in self._marked and voter not in self._others
        )
