"""What a judge of a stream knows, on disk, so that its query goes on in another process (docs/checker.md, "A history
that grows").

A file of SQLite: what a batch has changed is written by one transaction, which is there whole or not at all, and the
file is one judge's as long as it is open. Beside the newest state, which is plain data in JSON, stand the words of
settled offsets, 256 to a row. All that is read is checked before it is believed: rows have checksums, and the state has
its types.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar
from zlib import crc32

import msgspec

from spark_analysis.api import HistoryError

FILE: Final = "judge.sqlite"
_APPLICATION: Final = 0x5472764A
_VERSION: Final = 1
_WORD: Final = 8
_CHUNK_BITS: Final = 8
_CHUNKS_MAX: Final = 4096
"""As many unchanged rows of words are kept in memory, 8 MiB, once they are written."""
_DAMAGE: Final = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_TABLES: Final = (
    "CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 0), crc INTEGER NOT NULL, body BLOB NOT NULL)",
    (
        "CREATE TABLE words (queue INTEGER, chunk INTEGER, crc INTEGER NOT NULL, body BLOB NOT NULL, "
        "PRIMARY KEY (queue, chunk))"
    ),
)


State = TypeVar("State")


class StateError(HistoryError):
    """The state of a judge cannot be used, or not be written. The message names the file, and says what to do."""


class JudgeState:
    """The file in a directory, made if there is none; also the words of its judge (:class:`SettledWords` for one
    process). All methods raise :class:`StateError`."""

    def __init__(self, directory: str | Path) -> None:
        self.path = Path(directory) / FILE
        self._chunks: dict[tuple[int, int], bytearray] = {}
        self._changed: set[tuple[int, int]] = set()
        with self._errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Spark calls from whichever thread; never from two at once.
            self._file = sqlite3.connect(
                self.path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=16
            )
            try:
                self._begin()
            except BaseException:
                self._file.close()
                raise

    def _begin(self) -> None:
        for setting in ("trusted_schema = OFF", "locking_mode = EXCLUSIVE", "synchronous = FULL"):
            self._file.execute(f"PRAGMA {setting}")
        self._file.execute("BEGIN EXCLUSIVE")
        found = [
            self._file.execute(f"PRAGMA {one}").fetchone()[0] for one in ("application_id", "user_version")
        ]
        if found == [0, 0] and not self._file.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            for statement in _TABLES:
                self._file.execute(statement)
            self._file.execute(f"PRAGMA application_id = {_APPLICATION}")
            self._file.execute(f"PRAGMA user_version = {_VERSION}")
        elif found[0] != _APPLICATION:
            raise StateError(f"{self.path} is no state of a judge: name another directory")
        elif found[1] != _VERSION:
            raise StateError(
                f"{self.path} has format {found[1]}, and this release reads {_VERSION}: go on with the release that "
                "wrote it, or name an empty directory and begin with a new checkpoint"
            )
        self._file.execute("COMMIT")
        # Of a row of words that is not found, nobody could tell that it should be there.
        self._file.execute("SELECT queue, chunk, crc, body FROM words LIMIT 1")
        (found,) = self._file.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise self._damaged(found)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StateError(f"{self.path} cannot be used: {error}") from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in _DAMAGE:
                raise self._damaged(str(error)) from error
            hint = " (a judge has it open: another process, or one of this that has not finished)"
            is_busy = code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            raise StateError(f"{self.path} cannot be used: {error}{hint if is_busy else ''}") from error

    def _damaged(self, what: str) -> StateError:
        return StateError(
            f"{self.path} is damaged ({what}), and what the judge knew is lost: name an empty directory and begin "
            "with a new checkpoint, or take back both from a copy of one moment"
        )

    def load(self, kind: type[State]) -> State | None:
        """The newest state, checked against its type; None if there is none yet."""
        with self._errors():
            row = self._file.execute("SELECT crc, body FROM state").fetchone()
        if row is None:
            return None
        crc, body = row
        if not isinstance(body, bytes) or crc32(body) != crc:
            raise self._damaged("the checksum of the state does not match")
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.MsgspecError as error:
            raise self._damaged(str(error)) from error

    def save(self, state: object) -> None:
        """Replace the state that was saved last, together with the words that were written since: all of it or nothing.
        It survives a loss of power."""
        body = msgspec.json.encode(state)
        with self._errors():
            self._file.execute("BEGIN")
            try:
                for queue, chunk in self._changed:
                    words = bytes(self._chunks[queue, chunk])
                    row = (queue, chunk, _crc(queue, chunk, words), words)
                    self._file.execute("INSERT OR REPLACE INTO words VALUES (?, ?, ?, ?)", row)
                self._file.execute("INSERT OR REPLACE INTO state VALUES (0, ?, ?)", (crc32(body), body))
                self._file.execute("COMMIT")
            except BaseException:
                if self._file.in_transaction:
                    self._file.execute("ROLLBACK")
                raise
        self._changed.clear()
        if len(self._chunks) > _CHUNKS_MAX:
            self._chunks.clear()

    def write(self, queue: int, offset: int, word: int) -> None:
        """Remember a word; it is on disk with the next state."""
        words, at = self._words(queue, offset)
        words[at : at + _WORD] = word.to_bytes(_WORD, "little")
        self._changed.add((queue, offset >> _CHUNK_BITS))

    def read(self, queue: int, offset: int) -> int:
        """The word of an offset; 0 where none was written."""
        words, at = self._words(queue, offset)
        return int.from_bytes(words[at : at + _WORD], "little")

    def close(self) -> None:
        """Release the file, with what was saved last, for another judge."""
        self._file.close()

    def _words(self, queue: int, offset: int) -> tuple[bytearray, int]:
        """The words around an offset, and the place of its own among their bytes."""
        place = (queue, offset >> _CHUNK_BITS)
        words = self._chunks.get(place)
        if words is None:
            with self._errors():
                row = self._file.execute(
                    "SELECT crc, body FROM words WHERE queue = ? AND chunk = ?", place
                ).fetchone()
            if row is not None:
                crc, body = row
                if not isinstance(body, bytes) or _crc(*place, body) != crc:
                    raise self._damaged(f"the checksum of offset {offset} of queue {queue} does not match")
            words = self._chunks[place] = bytearray(_WORD << _CHUNK_BITS if row is None else row[1])
        return words, (offset & (1 << _CHUNK_BITS) - 1) * _WORD


def _crc(queue: int, chunk: int, words: bytes) -> int:
    return crc32(words, crc32(f"{queue}/{chunk}".encode()))
