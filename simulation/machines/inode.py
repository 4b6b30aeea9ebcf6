"""A file's content twice: as the page cache has it, and as a power failure leaves it."""

from collections.abc import Callable, Iterator

from simulation.randomness import Random

PAGE_BYTES = 4096
SECTOR_BYTES = 512


class Inode:
    """A file's content, whatever its names are."""

    __slots__ = ("cached", "dropped", "durable", "durable_size", "view")

    def __init__(self, size: int) -> None:
        self.cached = bytearray(size)
        self.durable = bytearray(size)
        """As long as `cached`. The next flush writes the pages in which they differ, unless these are `dropped`."""
        self.durable_size = 0
        """The length that a power failure leaves; flushing makes it the whole."""
        self.view = memoryview(self.cached)
        self.dropped: dict[int, bytes] = {}
        """Pages (by their first byte) that look clean and never reached the disk, as they were when a flush failed."""

    def extend(self, size: int) -> None:
        """Makes the file longer by a new pair of images: the old views keep showing the old ones."""
        missing = size - len(self.cached)
        self.cached = self.cached + bytes(missing)
        self.durable = self.durable + bytes(missing)
        self.view = memoryview(self.cached)

    def dirty(self, begin: int, end: int) -> None:
        """Notes that what a failed flush left in [begin, end) is to be written again."""
        for page in [page for page in self.dropped if begin < page + PAGE_BYTES and page < end]:
            del self.dropped[page]

    def written_runs(self, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Returns what a flush of [begin, end) writes: all but pages that look clean and were not stored into since."""
        at = begin
        for page in sorted(self.dropped):
            if begin <= page < end:
                if self.cached[page : page + PAGE_BYTES] != self.dropped[page]:
                    del self.dropped[page]  # stored into since: dirty again
                    continue
                if at < page:
                    yield at, bytes(self.view[at:page])
                at = page + PAGE_BYTES
        if at < end:
            yield at, bytes(self.view[at:end])

    def fail_flush(self, begin: int, end: int, random: Random, fired: Callable[[str], object]) -> None:
        """A flush of [begin, end) fails: some of its pages were written, the others look clean from now on."""
        for page in range(begin, end, PAGE_BYTES):
            content = bytes(self.view[page : page + PAGE_BYTES])
            if content != self.durable[page : page + PAGE_BYTES]:
                if random.random() < 0.5:
                    self.durable[page : page + len(content)] = content
                else:
                    fired("page marked clean")
                    self.dropped[page] = content

    def evict(self, random: Random) -> None:
        """Pages that look clean may leave the cache when nobody maps them; whoever reads next reads the disk."""
        for page in sorted(self.dropped):
            if random.random() < 0.5:
                # One that was stored into since is dirty, and dirty pages stay in the cache.
                if self.cached[page : page + PAGE_BYTES] == self.dropped[page]:
                    self.cached[page : page + PAGE_BYTES] = self.durable[page : page + PAGE_BYTES]
                del self.dropped[page]

    def after_power_failure(
        self, written_back: float, random: Random, fired: Callable[[str], object]
    ) -> "Inode":
        """Returns what is left of the file: a share `written_back` of the pages that nobody has flushed, some of them
        torn.
        """
        cached, durable = self.cached, self.durable
        if cached != durable:
            for begin in range(0, len(cached), PAGE_BYTES):
                page = cached[begin : begin + PAGE_BYTES]
                if page != durable[begin : begin + PAGE_BYTES] and random.random() < written_back:
                    # A disk writes sectors whole; the sectors of a page it writes in any order.
                    if random.random() < 0.2:
                        fired("torn page")
                        for sector in range(begin, begin + len(page), SECTOR_BYTES):
                            if random.random() < 0.5:
                                durable[sector : sector + SECTOR_BYTES] = cached[
                                    sector : sector + SECTOR_BYTES
                                ]
                    else:
                        durable[begin : begin + PAGE_BYTES] = page
                elif page != durable[begin : begin + PAGE_BYTES]:
                    fired("lost page")
        # The length is metadata, which is written back by itself: a file that was made longer may be found as short as
        # before, as long as nothing of its content has reached the disk either.
        size = len(durable)
        if self.durable_size < size and not any(durable) and random.random() < 0.5:
            size = self.durable_size
        survivor = Inode(size)
        survivor.cached[:] = durable[:size]
        survivor.durable[:] = durable[:size]
        survivor.durable_size = size
        return survivor
