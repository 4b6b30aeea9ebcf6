"""The properties of a batch's messages as columns: producers give all of them the same names, and values as long.

Then what holds of the first message's properties holds of all, except for the values that differ; nothing has to be
looked through message by message. What does not fit into that is told, and is for those who look at each.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_LARGEST_SEPARATOR = 2


class PropertyColumns(NamedTuple):
    """Properties that differ in values only, none of which is empty."""

    first: bytes
    rows: NDArray[np.uint8]
    """The bytes of all, shape (messages, len(first))."""
    values: dict[bytes, slice]
    """The places of the values, by name, in the order in which they come."""
    differing: NDArray[np.bool_]
    """The columns in which not all are the same."""

    def differ_in(self, name: bytes) -> bool:
        """Not all have the same value of this property."""
        return name in self.values and bool(self.differing[self.values[name]].any())


def value_places(raw: bytes, begin: int = 0) -> dict[bytes, slice] | None:
    """Returns the places of all values in the properties that stand behind `begin`; None if they are not plain.

    Plain ones are told alike by every reader: names and values are not empty, and no name comes twice.
    """
    found: dict[bytes, slice] = {}
    items = raw[begin:].split(b"\x02")
    if not items[-1]:
        items.pop()
    at = begin
    for item in items:
        name, _, value = item.partition(b"\x01")
        if not name or not value or b"\x01" in value or name in found:
            return None
        end = at + len(item)
        found[name] = slice(end - len(value), end)
        at = end + 1
    return found


def property_columns(properties: Sequence[bytes]) -> PropertyColumns | None:
    """Returns the properties of all messages as columns; None if they differ in more than their values."""
    first = properties[0]
    joined = b"".join(properties)
    if len(joined) != len(first) * len(properties) or set(map(len, properties)) != {len(first)}:
        return None
    values = value_places(first)
    if not values:
        return None
    rows = np.frombuffer(joined, np.uint8).reshape(len(properties), len(first))
    differing = (rows != rows[0]).any(axis=0)
    fixed = np.ones(len(first), np.bool_)
    for columns in values.values():
        fixed[columns] = False
    # Names and separators must be the same in all. A value may differ, but must not bring a separator of its own, which
    # would end it early: then the places found in the first message are not those of the others.
    changing = rows[:, np.flatnonzero(differing)]
    if (differing & fixed).any() or (changing <= _LARGEST_SEPARATOR).any():
        return None
    return PropertyColumns(first, rows, values, differing)
