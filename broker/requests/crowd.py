"""A crowd, of which one goes for one that comes: the oldest of the address that has most.

Whoever has shown nothing of himself yet takes a place all the same, and there are so many places. Refusing those that
come when all are taken would leave the places to who took them first, and one sender could keep everybody else out by
saying nothing. He has few addresses, though, and so it is his own that go.
"""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

Member = TypeVar("Member")


class Crowd(Generic[Member]):
    """Members, each with what its address counts as (`share_of`). It is iterated over in the order of `add`."""

    def __init__(self) -> None:
        self._shares: Final[dict[Member, str]] = {}
        self._by_share: Final[dict[str, dict[Member, None]]] = {}
        """The same members by their shares."""
        self._of_size: Final[dict[int, dict[str, None]]] = {}
        """The same shares by the number of their members: so the largest are found without a look at all."""

    def __len__(self) -> int:
        return len(self._shares)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._shares)

    def add(self, member: Member, share: str) -> None:
        """Takes in a member, or has one that is here, with this share, count as added last."""
        self._shares.pop(member, None)
        self._shares[member] = share
        members = self._by_share.setdefault(share, {})
        before = len(members)
        members.pop(member, None)
        members[member] = None
        self._resized(share, before, len(members))

    def discard(self, member: Member) -> None:
        """Takes out a member, if it is here."""
        share = self._shares.pop(member, None)
        if share is None:
            return
        members = self._by_share[share]
        del members[member]
        self._resized(share, len(members) + 1, len(members))
        if not members:
            del self._by_share[share]

    def make_room(self, most: int) -> Member | None:
        """Takes out the first to go if there are `most` members, and returns it: it has to give way to one that comes.
        Returns None where there is room.
        """
        if len(self) < most:
            return None
        goes = self.first_to_go()
        self.discard(goes)
        return goes

    def first_to_go(self) -> Member:
        """Returns the oldest member of a share that has most."""
        assert self._by_share, "there is somebody"
        # Few sizes can differ: all of them add up to no more than the members.
        share = next(iter(self._of_size[max(self._of_size)]))
        return next(iter(self._by_share[share]))

    def _resized(self, share: str, before: int, after: int) -> None:
        if before == after:
            return
        if before:
            same = self._of_size[before]
            del same[share]
            if not same:
                del self._of_size[before]
        if after:
            self._of_size.setdefault(after, {})[share] = None
