"""A bounded set: when it is full and one more comes, the oldest member goes of the address that has most members.

A connection takes a place before it has shown who it is, and places are few. To refuse those that come when all are
taken would leave the places to whoever took them first: one sender could keep everybody else out by saying nothing. But
that sender has few addresses, so that it is its own connections that go.
"""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

Member = TypeVar("Member")


class Crowd(Generic[Member]):
    """Members, each with what its address counts as (`share_of`). It is iterated over in the order of `add`."""

    def __init__(self) -> None:
        self._shares: Final[dict[Member, str]] = {}
        self._by_share: Final[dict[str, dict[Member, None]]] = {}
        """The members by what they count as."""
        self._of_size: Final[dict[int, dict[str, None]]] = {}
        """The shares by the number of their members: so the largest are found without going over all shares."""

    def __len__(self) -> int:
        return len(self._shares)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._shares)

    def add(self, member: Member, share: str) -> None:
        """Adds a member under this share. One that is here already counts as added last."""
        self._shares.pop(member, None)
        self._shares[member] = share
        members = self._by_share.setdefault(share, {})
        before = len(members)
        # To stand last in its share, too.
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
        """If there are `most` members, takes out the first to go and returns it, so that one more has room. Otherwise
        returns None.
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
