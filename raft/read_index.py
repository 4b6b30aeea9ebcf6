"""Linearizable reads without a log entry (dissertation 6.4).

A read may be served at the commit index of its arrival once it is certain that no other leader had committed more by
then: a majority must answer a heartbeat round that began after the read arrived. Reads that arrive while a round is
under way wait for the next one and share it, so their number does not raise the number of messages.
"""

from dataclasses import dataclass, field

from raft.effects import Effect, ReadLost, ReadReady


@dataclass(slots=True, eq=False)
class ReadQueue:
    """Tokens of reads, in the order of their arrival: those without a round yet, and those of the open round."""

    waiting: list[object] = field(default_factory=list)
    """Reads that wait for a round which has not begun; to be looked at only."""
    # The round that is open, the reads that wait for it, and the commit index when it began: step 2 of 6.4. Reads
    # wait in `_open` only while a round is open.
    _open: list[object] = field(default_factory=list)
    _open_index: int = -1
    open_round: int | None = None

    def add(self, token: object) -> None:
        """Adds a read, which waits for the next round."""
        self.waiting.append(token)

    @property
    def wants_round(self) -> bool:
        """True when reads wait and no round is open that they must let pass first."""
        return self.open_round is None and bool(self.waiting)

    def begin_round(self, round_number: int, commit_index: int) -> None:
        """Has all reads wait for the heartbeat round that begins.

        The reads of an open round, which may have lost its answers, wait for it, too: it proves no less for them.
        """
        if self.open_round is None and not self.waiting:
            return
        assert self.open_round is None or (
            round_number > self.open_round and commit_index >= self._open_index
        ), f"round {round_number} at {commit_index} follows round {self.open_round} at {self._open_index}"
        # Those that were open wait for a later index than they must, and see no less.
        self._open += self.waiting
        self.waiting = []
        self._open_index = commit_index
        self.open_round = round_number

    def confirm(self) -> list[Effect]:
        """Returns the answers to the reads of the open round, which a majority has seen."""
        ready: list[Effect] = [ReadReady(token, self._open_index) for token in self._open]
        self._open = []
        self.open_round = None
        return ready

    def abandon(self) -> list[Effect]:
        """Returns the refusals of all reads: the leadership is over."""
        lost: list[Effect] = [ReadLost(token) for token in self._open + self.waiting]
        self._open, self.waiting, self.open_round = [], [], None
        return lost
