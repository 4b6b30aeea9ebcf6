"""Constants and the header item of the trace format (docs/trace-format.md)."""

from dataclasses import dataclass
from typing import Final, Literal

import cbor2

FORMAT_NAME: Final = "trivet-trace"
FORMAT_VERSION: Final = 1
SELF_DESCRIBED_CBOR: Final = 55799
"""The tag of RFC 8949, section 3.4.6: a file(1) magic number, and a rare start for the search."""
TRACE_SUFFIX: Final = ".trace"

# Record kinds (the first element of each record). 64 and above are free for others and skipped by readers.
INVOKE, OK, FAIL, INFO = 1, 2, 3, 4
START, STOP, ROLE, APPEND, TRUNCATE, COMMIT, DIGEST, RESET, DISPATCH = 16, 17, 18, 19, 20, 21, 22, 23, 24
FAULT, NOTE = 32, 33
FIRST_FOREIGN_KIND: Final = 64

# Functions of client operations.
F_APPEND, F_READ, F_TAIL, F_HEAD, F_COMMIT_OFFSET, F_FETCH_OFFSET = 1, 2, 3, 4, 5, 6
FUNCTION_NAMES: Final = {
    F_APPEND: "append",
    F_READ: "read",
    F_TAIL: "tail",
    F_HEAD: "head",
    F_COMMIT_OFFSET: "commit_offset",
    F_FETCH_OFFSET: "fetch_offset",
}

Source = Literal["client", "replica", "driver"]
SOURCES: Final = ("client", "replica", "driver")


class TraceFormatError(ValueError):
    """Bytes that are not a trace of this format: the recorder's fault, and reading again does not help."""


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """The recorder, and the clock of its times, which says how they compare with those of other recorders.

    ``clock`` identifies the monotonic clock: recorders with the same non-empty text share one time axis
    exactly (on Linux the machine's boot id; in a simulation its seed). ``zero_wall_ns`` is the wall clock, in
    nanoseconds since 1970, when that clock was zero; ``clock_error_ns`` bounds the error of that figure and
    is used only to compare recorders of different clocks.
    """

    source: Source
    process: str
    clock: str
    zero_wall_ns: int
    clock_error_ns: int = 0
    attributes: tuple[tuple[str, str], ...] = ()

    def encode(self) -> bytes:
        """Returns the header item, which is repeated unchanged as the file's synchronisation mark."""
        return cbor2.dumps(
            cbor2.CBORTag(
                SELF_DESCRIBED_CBOR,
                {
                    "format": FORMAT_NAME,
                    "version": FORMAT_VERSION,
                    "source": self.source,
                    "process": self.process,
                    "clock": self.clock,
                    "zero_wall_ns": self.zero_wall_ns,
                    "clock_error_ns": self.clock_error_ns,
                    "attributes": dict(self.attributes),
                },
            )
        )
