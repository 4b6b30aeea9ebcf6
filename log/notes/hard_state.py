"""Term and vote of a Raft node, in DLedger's file `currterm`.

Raft (figure 2) requires both on stable storage before any answer: `write` returns after the fsync, and
an error of it must stop the node. A file that fails its check is an error too: a term guessed too low, or
a forgotten vote, elects two leaders.
"""

from dataclasses import dataclass
from typing import Final

from log.errors import DamagedStateError
from log.files.disk import Disk
from log.files.small_files import integer, read_values, write_values

_FOUNDING: Final = "founding"
_ADVICE: Final = (
    "a vote is never guessed; where the group has other nodes, move this node's whole store away and start it with an "
    "empty one: it is recovering until it holds everything again (docs/operations.md)"
)


@dataclass(frozen=True, slots=True)
class StoredHardState:
    """`raft.HardState` as it is kept: `vote` is the candidate voted for in `term`, empty for none.

    `founding` says that there is neither yet: the store was made from a backup, and `term` is that of its last entry.
    Such a node has promised nothing to anybody, as one with an empty disk. The first term that it enters ends that.
    """

    term: int = 0
    vote: str = ""
    founding: bool = False


@dataclass(slots=True, eq=False)
class HardStateFile:
    """The file that holds a node's StoredHardState; read at start, written before every answer that relies on
    it."""

    _disk: Disk
    _path: str

    def read(self) -> StoredHardState | None:
        """Returns term and vote, None if the file was never written. Raises DamagedStateError, DiskError."""
        try:
            values = read_values(self._disk, self._path, ("currTerm", "voteLeader"))
            if values is None:
                return None
            founding = values.get(_FOUNDING) == "true"
            return StoredHardState(integer(values, "currTerm", self._path), values["voteLeader"], founding)
        except DamagedStateError as error:
            raise DamagedStateError(error.file, error.offset, f"{error.reason}; {_ADVICE}") from error

    def write(self, state: StoredHardState) -> None:
        """Worker. Writes term and vote, durably. Raises DiskError, FlushError: stop the node."""
        values: dict[str, int | str] = {"currTerm": state.term, "voteLeader": state.vote}
        if state.founding:
            values[_FOUNDING] = "true"
        write_values(self._disk, self._path, values)
