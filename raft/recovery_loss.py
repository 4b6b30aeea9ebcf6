"""What a node may have lost of its promises; recovery.py says what follows from each."""

from enum import Enum

__all__ = ["Loss"]


class Loss(Enum):
    """What a node had promised and no longer has."""

    ENTRIES = "entries"
    """The end of the log or all of it; term and vote are intact."""
    VOTE = "vote"
    """A new disk whose node has learned its group's term; its former votes are unknown."""
    ALL = "all"
    """Nothing is there: a new group, or a new disk in an old one."""
