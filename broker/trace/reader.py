"""Reading: whole traces or ranges of them, past damage and up to a cut."""

import io
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import IO, Any

import cbor2

from broker.trace.events import MAX_INTEGER, MIN_TIME_NS, Damage, TraceEvent, brief, parse_event
from broker.trace.format import (
    FORMAT_NAME,
    FORMAT_VERSION,
    SELF_DESCRIBED_CBOR,
    SOURCES,
    TraceFormatError,
    TraceHeader,
)


def read_items(
    stream: IO[bytes],
    name: str = "<trace>",
    *,
    start: int = 0,
    stop: int | None = None,
    chunk_bytes: int = 1 << 20,
) -> Iterator[tuple[int, TraceHeader | list[Any] | Damage]]:
    """Yield ``(byte offset, header | undecoded record | damage)`` for a part of a trace.

    The stream must be seekable. With ``start`` > 0 the part begins at the first header at or after ``start``,
    and it ends before the first header at or after ``stop``: ranges that cover a file cover every record
    once. After damage the reader goes on at the next header. Raises :class:`TraceFormatError` if the file
    does not begin with a header of a version that this module knows.
    """
    stream.seek(0)
    header, mark = first_header(stream.read(chunk_bytes), name)
    position = 0 if start == 0 else find_mark(stream, mark, start)
    while position is not None and (stop is None or position < stop):
        yield position, header
        # A run is that of the range in which its header stands, however far behind `stop` its records go.
        end = None if stop is None else find_mark(stream, mark, max(stop, position + 1))
        damage = yield from read_run(stream, name, position + len(mark), end, chunk_bytes, mark, header)
        if damage is None:
            return
        # Only a header says where records begin again: without another one nothing behind the damage can be read.
        following = find_mark(stream, mark, damage.offset)
        if following is not None:
            damage = Damage(name, damage.offset, f"{damage.reason}; skipped to byte {following}")
        elif not damage.cut:
            reason = f"{damage.reason}; nothing behind it was read"
            damage = Damage(name, damage.offset, reason, unread=True)
        yield damage.offset, damage
        position = following


def first_header(prefix: bytes, name: str) -> tuple[TraceHeader, bytes]:
    """Return the header at the beginning of a file, and its bytes, with which each run of the file begins.

    ``prefix`` is the file's beginning, ``name`` what errors call the file. Raises TraceFormatError.
    """
    if not prefix:
        raise TraceFormatError(f"{name}: the file is empty")
    buffer = io.BytesIO(prefix)
    try:
        item = cbor2.CBORDecoder(buffer).decode()
    except Exception as error:  # whatever the decoder finds wrong, the file is not a trace
        raise TraceFormatError(f"{name}: no trace header at its beginning") from error
    mark = prefix[: buffer.tell()]
    return _parse_header(item, name), mark


def _parse_header(item: object, name: str) -> TraceHeader:
    if isinstance(item, cbor2.CBORTag) and item.tag == SELF_DESCRIBED_CBOR:
        item = item.value
    if not isinstance(item, Mapping) or item.get("format") != FORMAT_NAME:
        raise TraceFormatError(f"{name}: no trace header at its beginning")
    if item.get("version") != FORMAT_VERSION:
        raise TraceFormatError(
            f"{name}: trace version {item.get('version')!r}; this reader knows version {FORMAT_VERSION}"
        )
    # By `type`: to `isinstance` true is an int, too.
    attributes = item.get("attributes", {})
    source, process, clock = item.get("source"), item.get("process"), item.get("clock")
    zero_wall_ns, clock_error_ns = item.get("zero_wall_ns"), item.get("clock_error_ns", 0)
    if (
        source not in SOURCES
        or type(process) is not str
        or type(clock) is not str
        or type(zero_wall_ns) is not int
        or type(clock_error_ns) is not int
        or not MIN_TIME_NS <= zero_wall_ns <= MAX_INTEGER
        or not 0 <= clock_error_ns <= MAX_INTEGER
        or not isinstance(attributes, Mapping)
    ):
        raise TraceFormatError(f"{name}: a trace header with missing or wrong fields: {brief(item, 300)}")
    pairs = tuple((str(key), str(value)) for key, value in attributes.items())
    return TraceHeader(source, process, clock, zero_wall_ns, clock_error_ns, pairs)


def _is_header(item: object) -> bool:
    value = item.value if isinstance(item, cbor2.CBORTag) and item.tag == SELF_DESCRIBED_CBOR else item
    return isinstance(value, Mapping) and value.get("format") == FORMAT_NAME


def _continues(item: object, name: str, header: TraceHeader) -> bool:
    """True if a header that is not the file's own has its recorder and clock: the records behind it belong here."""
    try:
        other = _parse_header(item, name)
    except TraceFormatError:
        return False
    return (other.source, other.process, other.clock) == (header.source, header.process, header.clock)


def find_mark(stream: IO[bytes], mark: bytes, start: int) -> int | None:
    """Returns the position of the first repeated header at or after ``start``, None if there is none."""
    position, carried = start, b""
    stream.seek(start)
    while chunk := stream.read(1 << 20):
        window = carried + chunk
        found = window.find(mark)
        if found >= 0:
            return position - len(carried) + found
        position += len(chunk)
        carried = window[-(len(mark) - 1) :]
    return None


def read_run(
    stream: IO[bytes],
    name: str,
    position: int,
    end: int | None,
    chunk_bytes: int,
    mark: bytes,
    header: TraceHeader,
) -> Generator[tuple[int, TraceHeader | list[Any] | Damage], None, Damage | None]:
    """Yield records from ``position`` to ``end``; return the damage that ended it, None at a regular end."""
    pending = b""
    want = chunk_bytes
    while True:
        stream.seek(position + len(pending))
        limit = want if end is None else min(want, end - position - len(pending))
        chunk = stream.read(limit) if limit > 0 else b""
        pending += chunk
        last_chunk = len(chunk) < want
        buffer = io.BytesIO(pending)
        decode = cbor2.CBORDecoder(buffer).decode
        consumed = 0
        while consumed < len(pending):
            try:
                item = decode()
            except (cbor2.CBORDecodeEOF, EOFError):
                break
            except Exception as error:  # any complaint of the decoder is damage at this place
                return Damage(name, position + consumed, f"not CBOR: {error}")
            swallowed = pending.find(mark, consumed + 1, buffer.tell())
            if swallowed >= 0:
                # A record that was cut takes the next items for its own: a header is never inside of a record.
                return Damage(name, position + consumed, "cut by the header behind it")
            if type(item) is list and item and type(item[0]) is int:
                yield position + consumed, item
            elif pending.startswith(mark, consumed):
                yield position + consumed, header
            elif _is_header(item) and not _continues(item, name, header):
                # Another recorder wrote from here on, or the same one by another clock: its times do not go with those
                # before.
                return Damage(
                    name, position + consumed, "the header of another recorder, or of another clock"
                )
            else:
                problem = f"neither a record nor this file's header: {brief(item, 100)}"
                yield position + consumed, Damage(name, position + consumed, problem)
            consumed = buffer.tell()
        if last_chunk:
            if consumed == len(pending):
                return None
            reason = f"the trace was cut inside a record ({len(pending) - consumed} bytes left)"
            return Damage(name, position + consumed, reason, cut=True)
        # A record larger than a chunk: read further ahead until it fits.
        want = chunk_bytes if consumed else want * 2
        pending = pending[consumed:]
        position += consumed


def read_trace(
    stream: IO[bytes], name: str = "<trace>", *, on_damage: Callable[[Damage], None] | None = None
) -> Iterator[TraceHeader | TraceEvent]:
    """Yield the header (again wherever it is repeated) and every event as a frozen object.

    A bad record or a cut tail goes to ``on_damage``; without it a bad record raises :class:`TraceFormatError`
    with file and byte offset, and a cut tail just ends the iteration (a crash of the recorder is part of its
    job).
    """
    for offset, item in read_items(stream, name):
        if isinstance(item, list):
            try:
                event = parse_event(item)
            except TraceFormatError as error:
                item = Damage(name, offset, str(error))
            else:
                if event is not None:
                    yield event
                continue
        if isinstance(item, TraceHeader):
            yield item
        elif on_damage is not None:
            on_damage(item)
        elif not item.cut:
            raise TraceFormatError(str(item))
