"""The interface between the log and the operating system.

Everything in log/ reads and writes through these two protocols, so that the simulator can put a modelled
disk (page cache, torn and lost pages, full disk, failed fsync) behind the same code. `log.files.mmap_disk` is the
real one.

Promises that the code above relies on, and a modelled disk must keep:

* Bytes stored into `MappedFile.buffer` are seen at once by every other mapping of the same path and by
  `Disk.read`, survive a crash of the process, and survive a crash of the machine only after
  `flush`/`flush_file`. Until then pages may reach the disk in any order, or not at all, 4096 bytes at a
  time. (All this from `write_back` on where the file was opened with `buffered`.)
* After a flush that failed, nothing is known of the pages that it was to write: another flush may succeed without
  writing them (Rebello et al., "Can Applications Recover from fsync Failures?", 2020). `rewrite` makes it write.
* `write_durably` replaces a file as a whole: after a crash at any moment the old or the new content is there.
* A file that was created, renamed, removed or discarded is so after a crash of the machine, too, once `sync_directory`
  of its directory came behind that. Before, each name may be there or not, whatever became of the others.
* Paths are relative to the store root, with "/"; missing parent directories are created.

Methods marked "worker" may be called in a worker thread while the owner goes on using the mapping;
everything else belongs to the one thread that owns the store.
"""

from typing import NamedTuple, Protocol


class DiskUsage(NamedTuple):
    """The size of the file system that holds the store, as `df` counts it (used and available), and its free part."""

    total_bytes: int
    free_bytes: int


class StoreLock(Protocol):
    """The exclusive lock of a store root."""

    def release(self) -> None: ...


class MappedFile(Protocol):
    """A file of fixed size, mapped for reading and writing. Forgetting the last reference closes it; a large one is
    unmapped by `Disk.remove_discarded`."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def buffer(self) -> memoryview:
        """All bytes of the file, writable, format "B". Slices stay valid after `close`."""

    def prepare(self, begin: int, end: int, *, touch: bool = True) -> None:
        """Worker. Allocates the blocks of [begin, end), so that a full disk is an error here and not a
        fatal signal at the store instruction, and with `touch` also brings the pages in. Content is
        unchanged.

        Raises DiskFullError, DiskError.
        """

    def write_back(self, begin: int, end: int) -> None:
        """Hands the bytes stored into [begin, end) to the kernel: others see them now, and they survive a crash of the
        process. Does nothing for a file that was not opened with `buffered`. Raises DiskError."""

    def flush(self, begin: int, end: int) -> None:
        """Worker. Makes durable what was stored into [begin, end), and written back, before the call.

        Raises FlushError.
        """

    def rewrite(self, begin: int, end: int) -> None:
        """Makes the next flush write [begin, end) even if the page cache takes it for clean; content is unchanged.

        A failed flush may leave pages that look clean and never reached the disk; a process that finds them after a
        restart must not take a later flush for a promise about them.
        """

    def read(self, begin: int, end: int) -> bytes:
        """Returns the bytes [begin, end) of the file, for parts that may never have been stored to.

        To read such a page in `buffer` takes one where the file system is in memory, and ends the process if that is
        full. Raises DiskError.
        """

    def stored_until(self, begin: int) -> int:
        """Returns the end of the part from `begin` on that has been stored to, as far as the file system tells."""

    def load(self, begin: int, end: int) -> None:
        """Worker. Brings [begin, end) into memory, as far as that is possible; content is unchanged."""

    def cool(self, begin: int, end: int) -> None:
        """Worker. Tells the kernel to take memory from [begin, end) first when it needs some."""

    def erase(self, begin: int) -> None:
        """Makes everything from `begin` to the end zero, durably, and frees its space. For recovery only: no other
        thread may use the mapping meanwhile. Raises DiskError."""

    def close(self) -> None:
        """Gives up the file. Slices of `buffer` that others still hold stay valid; the last one unmaps it."""


class Disk(Protocol):
    """A directory tree below one store root."""

    @property
    def discarded(self) -> bool:
        """True if something was discarded, by this process or an earlier one, and takes up space still; or memory, as
        large mappings do that were given up."""

    @property
    def frees_space(self) -> bool:
        """True while files that were discarded take up space, and their removal has not failed."""

    def open(self, path: str, size: int, *, create: bool, buffered: bool = False) -> MappedFile:
        """Worker. Maps the file. With `create` a missing file is made (sparse, all zero). A shorter file is
        extended with zeros to `size`; a longer one is a DiskError.

        With `buffered`, for a file of zeros, `buffer` is memory of the process's own, in which stores stay
        until `write_back`.

        Raises DiskError (missing and not `create`; too long; too many mappings), DiskFullError.
        """

    def list(self, directory: str) -> "list[str]":
        """Sorted names in the directory, but for what the system keeps there; empty if there is no such directory."""

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """Returns the file's size in bytes. Raises DiskError if there is no such file."""

    def read(self, path: str) -> bytes:
        """Worker. Returns the whole file. Raises DiskError."""

    def write_durably(self, path: str, *data: bytes | memoryview) -> None:
        """Worker. Replaces the file as a whole, by the pieces of `data`: temporary file, fsync, rename, fsync of the
        directory.

        Raises DiskFullError, FlushError, DiskError.
        """

    def flush_file(self, path: str) -> None:
        """Worker. Makes durable all that was written to the file; one that is missing was deleted meanwhile, and is
        passed by. Raises FlushError."""

    def remove(self, path: str) -> None:
        """Removes a file; a missing one is fine. Mappings of it stay valid. Raises DiskError."""

    def rename(self, path: str, new_path: str) -> None:
        """Gives a file another name, in place of the file that has it: at any moment one of the two does.

        Raises DiskError.
        """

    def discard(self, path: str) -> None:
        """Removes a file, or a directory with all in it, in a step that is short however much that is; a missing one is
        fine. Mappings stay valid. Raises DiskError."""

    def remove_discarded(self, files_max: int, bytes_max: int) -> None:
        """Worker. Unmaps what was given up, and frees the space of what was discarded, at most so many files that have
        so many bytes together, or one that is larger. Raises DiskError; what is left can be tried again.
        """

    def sync_directory(self, directory: str) -> None:
        """Worker. Makes creations and removals in the directory durable, and its own creation. Raises FlushError."""

    def usage(self) -> DiskUsage: ...

    def lock(self) -> StoreLock:
        """Takes the store's lock. Raises StoreLockedError if another process (or this one) holds it, DiskError."""
