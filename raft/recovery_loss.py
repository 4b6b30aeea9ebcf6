"""The promises that a node may have lost; recovery.py says what follows from each kind of loss."""

from enum import Enum


class Loss(Enum):
    """The part of its promises that a node no longer has."""

    ENTRIES = "entries"
    """The end of the log or all of it; term and vote are intact."""
    VOTE = "vote"
    """A new disk whose node has learned its group's term, and does not know which votes it gave."""
    ALL = "all"
    """An empty disk, or a log made from a backup: the group is new, or the disk is new in an old group."""
