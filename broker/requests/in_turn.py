"""Work that waits for a later turn: addresses take turns at it, and the work of each stays in its order.

So an address with much work keeps another one waiting for one piece of it at a time.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class InTurn(Generic[Item]):
    """Items by what their addresses count as (`Connection.share`)."""

    __slots__ = ("by_share",)

    def __init__(self) -> None:
        self.by_share: OrderedDict[str, deque[Item]] = OrderedDict()
        """None is empty. The first of the first is next. To be looked at only."""

    def __bool__(self) -> bool:
        return bool(self.by_share)

    def __len__(self) -> int:
        return sum(map(len, self.by_share.values()))

    def add(self, share: str, item: Item) -> None:
        """Adds an item behind the others of its share."""
        self.by_share.setdefault(share, deque()).append(item)

    def add_before(self, share: str, item: Item, *, is_next: bool) -> None:
        """Adds an item before the others of its share, or before all."""
        self.by_share.setdefault(share, deque()).appendleft(item)
        if is_next:
            self.by_share.move_to_end(share, last=False)

    def take_of(self, share: str) -> Item:
        """Removes and returns the first item of a share that has any; the share keeps its place."""
        items = self.by_share[share]
        item = items.popleft()
        if not items:
            del self.by_share[share]
        return item

    def take(self) -> Item:
        """Removes and returns what is next; there must be something. Its share goes behind all others."""
        share, items = self.by_share.popitem(last=False)
        item = items.popleft()
        # Behind all others, by being put in anew.
        if items:
            self.by_share[share] = items
        return item

    def take_if(self, is_wanted: Callable[[Item], bool]) -> list[Item]:
        """Removes and returns some of the items."""
        taken: list[Item] = []
        for share, items in list(self.by_share.items()):
            left: deque[Item] = deque()
            for item in items:
                (taken if is_wanted(item) else left).append(item)
            if left:
                self.by_share[share] = left
            else:
                del self.by_share[share]
        return taken
