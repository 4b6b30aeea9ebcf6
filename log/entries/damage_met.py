"""Damage that readers of a log have met, noted for the log's owner, who has it repaired."""

from collections.abc import Callable
from dataclasses import dataclass, field

from log.errors import DamagedEntryError


@dataclass(slots=True, eq=False)
class DamageMet:
    """The notes of one log: whoever meets damage writes them, the owner takes them out."""

    entries: dict[int, DamagedEntryError] = field(default_factory=dict)
    """The entries that were found damaged, by position."""
    units_doubted: bool = False
    """A unit of a queue or of the index has led a reader astray, or nowhere: all of them are to be looked at."""
    tell: Callable[[], None] | None = None
    """Called when something was noted; None where nobody repairs it."""

    def note(self, error: DamagedEntryError) -> DamagedEntryError:
        """Notes an entry that is damaged; returns the error, to be raised."""
        self.entries[error.position] = error
        if self.tell is not None:
            self.tell()
        return error

    def doubt_units(self) -> None:
        """Notes that a unit is wrong, and nobody knows which others are."""
        self.units_doubted = True
        if self.tell is not None:
            self.tell()
