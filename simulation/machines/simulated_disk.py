"""A disk with the promises of `log.files.disk` and not one more: what was not flushed may be lost, page by page.

A file is a bytearray that its mappings show, the page cache, beside a second one that holds what a power failure
leaves. Writers store into the mapping at full speed; the two images are compared, 4,096 bytes at a time, only when a
flush or a power failure asks. So the model costs the code under test nothing where that code is hot.

What a power failure does to a page that differs: it is lost, or it was written back although nobody asked, or it is
torn, some of its 512-byte sectors new and some old. Which of these is likely is drawn anew for each failure, so that
"all was written back but one page" and "all was lost" both come up. Names are treated alike: a file created or
removed since its directory was synced may exist or not.

Jobs that run in worker threads are taken apart: `begin_job` runs one at once and keeps aside what its last flush
covered, or the file that it wrote durably last; `end_job` makes that durable. In between the process goes on writing,
and a power failure leaves any part of the flush, and the old file or the new one.

A flush that fails leaves the pages that it did not write marked clean, as Linux does (Rebello et al., "Can
Applications Recover from fsync Failures?", 2020): they read as written until the cache drops them, and a later flush
that succeeds does not write them, unless somebody has stored into them or asked for `rewrite` in between. Stores are
seen by their effect only, so this holds for the files of the log; ConsumeQueue and index files are stored into again,
with the same bytes, at each start.

Faults are armed from outside: a countdown to a power failure inside any durable operation, failing flushes, reading
errors, no space left, no descriptors, bits that rot and pages that were written to the wrong place while the host was
down.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from log.errors import DiskError, DiskFullError, FlushError, StoreLockedError
from log.files.disk import DiskUsage, StoreLock
from simulation.machines.inode import PAGE_BYTES, Inode
from simulation.machines.medium import Medium
from simulation.randomness import Random

_TOTAL_BYTES = 1 << 40


@dataclass(slots=True, eq=False)
class JobUnderWay:
    """The writes that are durable when a worker's job ends."""

    pages: list[tuple[Inode, int, bytes]] = field(default_factory=list)
    """(file, place in it, the bytes that it is to have from there on)."""
    names: dict[str, Inode] = field(default_factory=dict)
    """The files that have taken the place of others."""


class PowerFailure(BaseException):
    """Raised inside a disk operation when the armed countdown ends: the host goes dark at this very point."""


class SimulatedFile:
    """`log.files.disk.MappedFile` over an inode."""

    __slots__ = ("_disk", "_inode", "buffer", "path", "size")

    def __init__(self, disk: "SimulatedDisk", path: str, inode: Inode, *, buffered: bool = False) -> None:
        self._disk = disk
        self._inode = inode
        self.path = path
        self.size = len(inode.cached)
        self.buffer = memoryview(bytearray(self.size)) if buffered else inode.view

    def prepare(self, begin: int, end: int, *, touch: bool = True) -> None:
        """Checks that the disk is not full: there is nothing to allocate."""
        assert begin >= 0, "an offset"
        if begin < min(end, self.size):
            self._disk.check_space(self.path)

    def read(self, begin: int, end: int) -> bytes:
        """Returns what is in the page cache."""
        return bytes(self._inode.view[begin:end])

    def stored_until(self, begin: int) -> int:
        """Returns the end of the file: this file system knows no holes."""
        return self.size

    def load(self, begin: int, end: int) -> None:
        """Does nothing: all is in memory."""

    def cool(self, begin: int, end: int) -> None:
        """Does nothing: memory is never short here."""

    def write_back(self, begin: int, end: int) -> None:
        """Copies from the write buffer into the page cache."""
        if self.buffer is not self._inode.view:
            self._inode.view[begin:end] = self.buffer[begin:end]

    def flush(self, begin: int, end: int) -> None:
        """Makes the pages of [begin, end) durable, or fails."""
        self._disk.flush_pages(self.path, self._inode, begin, end)

    def rewrite(self, begin: int, end: int) -> None:
        """Marks pages that the next flush is to write, even if they look clean."""
        self._inode.dirty(begin, end)

    def erase(self, begin: int) -> None:
        """Zeroes from `begin` on, durably."""
        # Zeros are stored into these pages, so that they do not look clean any more.
        self._inode.dirty(begin, self.size)
        self._disk.step("erase", self.path)
        zeros = bytes(self.size - begin)
        self._inode.cached[begin:] = zeros
        self._inode.durable[begin:] = zeros
        self._inode.durable_size = self.size

    def close(self) -> None:
        """Closes the file; the views stay, as they must."""


class _Lock:
    __slots__ = ("_disk",)

    def __init__(self, disk: "SimulatedDisk") -> None:
        self._disk = disk

    def release(self) -> None:
        self._disk.locked = False


class SimulatedDisk:
    """`log.files.disk.Disk` for one host; outlives the processes on it."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._names: dict[str, Inode] = {}
        """The files as processes see them."""
        self._durable_names: dict[str, Inode] = {}
        """The files as a power failure leaves them: those of a directory when it was synced last."""
        self.medium = Medium(self._names, random)
        self._removed_trees: list[str] = []
        self._discarded_files = 0
        """The number of removed files that still take up space, which nobody can read any more."""
        self._job: JobUnderWay | None = None
        self._jobs_under_way: list[JobUnderWay] = []
        self._countdown = 0
        self.locked = False
        self.full = False
        self.fillings = 0
        """The number of times that it was filled."""
        """No space is left."""
        self.used_by_others = 0.0
        """The share of the disk that is taken; a node that sees too much of it deletes the head of its log."""
        self.failing_flushes = 0
        """The number of the next flushes that fail."""
        self.failing_reads = 0
        """The number of the next whole-file reads and openings that fail."""
        self.lacks_descriptors: Callable[[], object] | None = None
        """While set no file or directory can be opened; called each time that somebody wants to."""
        self.operations = 0
        """Durable operations so far: the points at which a power failure can be armed."""
        self.fired: Callable[[str], object] = lambda kind: None
        """Called with the kind of each fault that takes effect."""

    # ---- faults --------------------------------------------------------------------------------------

    def arm_power_failure(self, operations: int) -> None:
        """Raise `PowerFailure` inside the `operations`-th durable operation from now; 0 disarms."""
        self._countdown = operations

    def step(self, operation: str, path: str) -> None:
        """Begins a durable operation. Raises PowerFailure if that is armed for it."""
        self.operations += 1
        if self._countdown:
            self._countdown -= 1
            if not self._countdown:
                raise PowerFailure(f"{operation} of {path}")

    def fill(self) -> None:
        """Leaves no space for anything new, until `full` is False again."""
        self.full = True
        self.fillings += 1

    def check_space(self, path: str) -> None:
        """Raises DiskFullError while the disk is full."""
        if self.full:
            self.fired("full disk")
            raise DiskFullError(path, "allocation", "no space left on the device")

    def _take_descriptor(self, path: str, operation: str, kind: type[DiskError] = DiskError) -> None:
        """Raises DiskError while there are no descriptors; what is mapped stays so."""
        if self.lacks_descriptors is not None:
            self.lacks_descriptors()
            raise kind(path, operation, "too many open files")

    def lose_power(self) -> None:
        """Loses power: what was not flushed survives in part or not at all. Earlier mappings are void."""
        random = self._random
        self._countdown = 0
        self.locked = False
        # Of a flush that is under way any pages may be on the disk. Nobody was told that any is.
        for job in self._jobs_under_way:
            for inode, begin, data in job.pages:
                if random.random() < 0.5:
                    inode.durable[begin : begin + len(data)] = data
        self._jobs_under_way.clear()
        self._job = None
        written_back = random.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        names: dict[str, Inode] = {}
        # A name is as it was when its directory was synced, or as it became since then: a file system may write back
        # one and not the next, whatever their order was.
        for path in sorted(self._names.keys() | self._durable_names.keys()):
            before, after = self._durable_names.get(path), self._names.get(path)
            survivor = before if before is after or random.random() >= written_back else after
            if survivor is not None:
                names[path] = survivor
        self._removed_trees.clear()
        self._names.clear()
        for path, inode in names.items():
            self._names[path] = inode.after_power_failure(written_back, random, self.fired)
        self._durable_names = dict(self._names)

    def lose_process(self) -> None:
        """Notes that the process has ended; the page cache has everything it wrote."""
        self._countdown = 0
        self.locked = False
        for job in self._jobs_under_way:
            # Whether the kernel had finished makes no difference to whoever reads through the page cache.
            self._finish(job)
        self._jobs_under_way.clear()
        self._job = None
        for path in sorted(self._names):
            self._names[path].evict(self._random)

    @property
    def may_evict(self) -> bool:
        """True if pages that a failed flush did not write may leave the cache with the process."""
        return any(inode.dropped for inode in self._names.values())

    @property
    def is_empty(self) -> bool:
        """True if nothing was ever written to it."""
        return not self._names and not self._durable_names

    def wipe(self) -> None:
        """Becomes an empty disk."""
        self.locked = False
        self._names.clear()
        self._durable_names.clear()
        self._removed_trees.clear()
        self._discarded_files = 0
        self._jobs_under_way.clear()

    # ---- worker jobs ---------------------------------------------------------------------------------

    def begin_job(self, run: Callable[[], object]) -> JobUnderWay:
        """Runs a worker's job: what it flushes last is durable at `end_job`. Whatever `run` raises passes through."""
        assert self._job is None, "jobs do not nest"
        job = self._job = JobUnderWay()
        try:
            run()
        except DiskError:
            self._finish(job)  # all that came before what failed
            raise
        finally:
            self._job = None
        self._jobs_under_way.append(job)
        return job

    def end_job(self, job: JobUnderWay) -> None:
        """Ends a job: what it flushed has reached the disk."""
        if job not in self._jobs_under_way:
            return  # power or process was lost meanwhile
        number = self._jobs_under_way.index(job)
        del self._jobs_under_way[number]
        # What another job has begun to flush earlier, and has not ended, was older: see `_overtake`.
        for page in job.pages:
            self._overtake(self._jobs_under_way[:number], *page)
        self._finish(job)

    def flush_pages(self, path: str, inode: Inode, begin: int, end: int) -> None:
        """See `SimulatedFile.flush`."""
        self.step("flush", path)
        begin -= begin % PAGE_BYTES
        end = min(len(inode.cached), end + -end % PAGE_BYTES)
        if self.failing_flushes:
            self.failing_flushes -= 1
            self.fired("flush failure")
            # Queue and index files are stored into again at each start: no page of theirs looks clean for long.
            if path.startswith("dledger"):
                inode.fail_flush(begin, end, self._random, self.fired)
            raise FlushError(path, "flush", "input/output error")
        inode.durable_size = len(inode.cached)
        if begin >= end:
            return
        for run_begin, data in inode.written_runs(begin, end):
            if self._job is not None:
                self._job.pages.append((inode, run_begin, data))
                continue
            inode.durable[run_begin : run_begin + len(data)] = data
            self._overtake(self._jobs_under_way, inode, run_begin, data)

    @staticmethod
    def _overtake(earlier: Iterable[JobUnderWay], inode: Inode, begin: int, data: bytes) -> None:
        """Has flushes that are under way write what a later one has just written to the same pages.

        A system writes a page for one flush at a time: what the later one wrote does not go back to what the earlier
        one had found there.
        """
        for job in earlier:
            for number, (other, other_begin, older) in enumerate(job.pages):
                low, high = max(begin, other_begin), min(begin + len(data), other_begin + len(older))
                if other is inode and low < high:
                    newer = data[low - begin : high - begin]
                    both = older[: low - other_begin] + newer + older[high - other_begin :]
                    job.pages[number] = (inode, other_begin, both)

    def _finish_flushes(self) -> None:
        """Ends the flushes under way: a job goes on only when its flush has returned."""
        if self._job is not None:
            self._finish(self._job)

    def _finish(self, job: JobUnderWay) -> None:
        for inode, begin, data in job.pages:
            inode.durable[begin : begin + len(data)] = data
        for path, inode in job.names.items():
            if self._names.get(path) is inode:  # nobody has put another one there, or removed it
                self._durable_names[path] = inode
        job.pages.clear()
        job.names.clear()

    @contextmanager
    def reads_succeed(self) -> Iterator[None]:
        """Lets reads succeed within the block: for checks, which must not use up a fault that is meant for the node."""
        failing, self.failing_reads = self.failing_reads, 0
        lacking, self.lacks_descriptors = self.lacks_descriptors, None
        try:
            yield
        finally:
            self.failing_reads, self.lacks_descriptors = failing, lacking

    def durable_bytes(self, path: str) -> bytes | bytearray:
        """Returns what a power failure now would leave of a file at worst; empty if there is none. For checks."""
        inode = self._durable_names.get(path)
        return b"" if inode is None else inode.durable

    @property
    def file_count(self) -> int:
        """The number of files. For checks."""
        return len(self._names)

    @property
    def file_bytes(self) -> int:
        """The length of all files together. For checks."""
        return sum(len(inode.cached) for inode in self._names.values())

    def cached_bytes(self, path: str) -> bytes:
        """Returns a file as the page cache has it; empty if there is none. For checks."""
        inode = self._names.get(path)
        return b"" if inode is None else bytes(inode.cached)

    # ---- log.files.disk.Disk -------------------------------------------------------------------------------

    def open(self, path: str, size: int, *, create: bool, buffered: bool = False) -> SimulatedFile:
        """See `log.files.disk.Disk.open`."""
        self._take_descriptor(path, "opening")
        self._check_readable(path)
        inode = self._names.get(path)
        if inode is None:
            if not create:
                raise DiskError(path, "opening", "no such file")
            self.check_space(path)
            self.step("creation", path)
            inode = self._names[path] = Inode(size)
        if len(inode.cached) > size:
            raise DiskError(path, "opening", f"it has {len(inode.cached)} bytes, not {size}")
        if len(inode.cached) < size:
            self.check_space(path)
            inode.extend(size)
        return SimulatedFile(self, path, inode, buffered=buffered)

    def list(self, directory: str) -> "list[str]":
        """See `log.files.disk.Disk.list`."""
        self._take_descriptor(directory, "listing")
        prefix = "" if directory == "." else f"{directory}/"
        start = len(prefix)
        names = {path[start:].partition("/")[0] for path in self._names if path.startswith(prefix)}
        return sorted(names)

    def exists(self, path: str) -> bool:
        """True if there is such a file or directory."""
        return path in self._names or any(name.startswith(f"{path}/") for name in self._names)

    def size(self, path: str) -> int:
        """See `log.files.disk.Disk.size`."""
        inode = self._names.get(path)
        if inode is None:
            raise DiskError(path, "examination", "no such file")
        return len(inode.cached)

    def read(self, path: str) -> bytes:
        """See `log.files.disk.Disk.read`."""
        self._take_descriptor(path, "reading")
        self._check_readable(path)
        inode = self._names.get(path)
        if inode is None:
            raise DiskError(path, "reading", "no such file")
        return bytes(inode.cached)

    def write_durably(self, path: str, *data: bytes | memoryview) -> None:
        """See `log.files.disk.Disk.write_durably`; power may fail before it or right after, and in a job until that
        ends."""
        self._finish_flushes()
        self._take_descriptor(path, "writing")
        self.check_space(path)
        self.step("writing", path)
        if self.failing_flushes:
            self.failing_flushes -= 1
            self.fired("flush failure")
            raise FlushError(path, "flush", "input/output error")
        # A file of its own takes the name: readers and power failures see the old one or this one, and no mixture.
        whole = b"".join(data)
        inode = Inode(len(whole))
        inode.cached[:] = whole
        inode.durable[:] = whole
        inode.durable_size = len(whole)
        # What makes the new name durable makes durable all that has happened to other names beside it.
        directory = path.rpartition("/")[0] or "."
        self._sync_names(directory)
        self._names[path] = inode
        if self._job is None:
            self._durable_names[path] = inode
        else:
            self._job.names[path] = inode
        self.step("flush of the directory", directory)

    def flush_file(self, path: str) -> None:
        """See `log.files.disk.Disk.flush_file`."""
        inode = self._names.get(path)
        if inode is not None:
            self._take_descriptor(path, "flush", FlushError)
            self.flush_pages(path, inode, 0, len(inode.cached))

    def remove(self, path: str) -> None:
        """See `log.files.disk.Disk.remove`."""
        self._names.pop(path, None)

    def rename(self, path: str, new_path: str) -> None:
        """See `log.files.disk.Disk.rename`."""
        if path not in self._names:
            raise DiskError(path, "renaming", "no such file")
        self._names[new_path] = self._names.pop(path)

    def discard(self, path: str) -> None:
        """See `log.files.disk.Disk.discard`."""
        for name in [name for name in self._names if name == path or name.startswith(f"{path}/")]:
            del self._names[name]
            self._discarded_files += 1
        self._removed_trees.append(path)

    @property
    def discarded(self) -> bool:
        """See `log.files.disk.Disk.discarded`."""
        return self._discarded_files > 0

    @property
    def frees_space(self) -> bool:
        """See `log.files.disk.Disk.frees_space`."""
        return self._discarded_files > 0

    def remove_discarded(self, files_max: int, bytes_max: int) -> None:
        """See `log.files.disk.Disk.remove_discarded`."""
        self._take_descriptor("trash", "removal")
        self._discarded_files = max(0, self._discarded_files - files_max)

    def sync_directory(self, directory: str) -> None:
        """See `log.files.disk.Disk.sync_directory`."""
        self._finish_flushes()
        self._take_descriptor(directory, "flush of the directory", FlushError)
        self.step("flush of the directory", directory)
        self._sync_names(directory)

    def _sync_names(self, directory: str) -> None:
        """Makes the names in a directory durable as they are."""
        parent = "" if directory == "." else directory
        for tree in [tree for tree in self._removed_trees if tree.rpartition("/")[0] == parent]:
            self._removed_trees.remove(tree)
            for path in [path for path in self._durable_names if path.startswith(f"{tree}/")]:
                # The tree's name may have been given to another file since, which stays.
                if self._names.get(path) is not self._durable_names[path]:
                    del self._durable_names[path]
        for path in [path for path in self._durable_names if path.rpartition("/")[0] == parent]:
            if path not in self._names:
                del self._durable_names[path]
        for path, inode in self._names.items():
            if path.rpartition("/")[0] == parent:
                self._durable_names[path] = inode

    def usage(self) -> DiskUsage:
        """Returns the usage of a large disk, nearly empty but for what `used_by_others` says."""
        used = 1.0 if self.full else self.used_by_others
        return DiskUsage(_TOTAL_BYTES, int(_TOTAL_BYTES * (1 - used)))

    def lock(self) -> StoreLock:
        """See `log.files.disk.Disk.lock`."""
        self._take_descriptor("lock", "locking")
        if self.locked:
            raise StoreLockedError("lock", "locking", "another process uses it")
        self.locked = True
        return _Lock(self)

    def _check_readable(self, path: str) -> None:
        if self.failing_reads:
            self.failing_reads -= 1
            self.fired("read failure")
            raise DiskError(path, "reading", "input/output error")
