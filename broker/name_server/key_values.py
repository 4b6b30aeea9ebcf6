"""Key-value configuration of a name server: the only thing it keeps over a restart.

A change is in force only once the storage has taken it, so an acknowledged change survives a restart and a
failed write leaves everything as it was.

Every change writes all of it. So how much is written is bounded over time: whoever may change it could have a name
server write for ever otherwise.
"""

from typing import Protocol

import msgspec

from broker.remoting.bodies import KeyValueTable
from broker.remoting.errors import BodyError
from broker.remoting.json_body import decode_body, encode_body

ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""Namespace of the order configuration: topic to ``broker:queues;...``."""


NAME_LENGTH_MAX = 255
VALUE_LENGTH_MAX = 1_048_576
VALUES_LENGTH_MAX = 8_388_608
"""Characters of a name, of a value, and of all values together."""
NAMESPACE_BYTES_MAX = 8_388_608
"""The bytes of a namespace as it is told: brokers get one of them whole with every registration, and a frame has 16
MiB."""

WRITTEN_BYTES_MAX = 67_108_864
"""Changes write at most so many bytes at a stretch,"""
WRITTEN_BYTES_PER_SECOND = 1_048_576
"""and so many in a second in the long run."""
WRITTEN_BYTES_LEAST = 4096
"""A change counts as so many at least."""


class KeyValueStorage(Protocol):
    """The place that keeps the configuration; the shell gives one on a file, tests one in memory."""

    def load(self) -> bytes | None:
        """Returns what was saved last, None if nothing was."""

    def save(self, data: bytes) -> None:
        """Keep ``data`` durably, wholly or not at all; raises OSError when that fails."""


class KeyValueError(Exception):
    """The stored configuration cannot be read; a person must repair or remove the file, a retry does not
    help.
    """


class TooManyKeysError(Exception):
    """A key or value that is not taken; the text says why. The client's fault, a retry does not help."""


class TooManyWritesError(Exception):
    """Too much was changed lately; nothing of this change was made. A retry helps, some time later."""


class _Stored(msgspec.Struct, rename="camel"):
    """kvConfig.json, as `KVConfigSerializeWrapper` writes it."""

    config_table: dict[str, dict[str, str]] = {}


class KeyValues:
    """Namespaces of keys and values, saved at every change."""

    def __init__(self, storage: KeyValueStorage | None = None, keys_max: int = 20_000) -> None:
        """Load what the storage holds; without one, memory only. Raises KeyValueError and what ``load``
        raises.
        """
        self._storage = storage
        self._keys_max = keys_max
        self._table: dict[str, dict[str, str]] = {}
        self._written_bytes = 0.0
        """The bytes that changes have written, less those that were forgiven since."""
        self._forgiven_ns = 0
        data = storage.load() if storage is not None else None
        self._size = len(data or b"")
        """The bytes that the last change has written."""
        if data:
            try:
                self._table = decode_body(data, _Stored).config_table
            except BodyError as error:
                raise KeyValueError(f"the key-value configuration cannot be read: {error}") from error

    def get(self, namespace: str, key: str) -> str | None:
        """The value, None if there is none."""
        return self._table.get(namespace, {}).get(key)

    @property
    def count(self) -> int:
        """The number of keys, in all namespaces."""
        return sum(map(len, self._table.values()))

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Every key and value of a namespace, None if it has none."""
        table = self._table.get(namespace)
        return dict(table) if table else None

    def put(self, namespace: str, key: str, value: str, now_ns: int) -> None:
        """Set a value; raises TooManyKeysError, TooManyWritesError and what the storage's ``save`` raises, and then
        changes nothing.
        """
        if self.get(namespace, key) == value:
            return
        for what, text, longest in (
            ("namespace", namespace, NAME_LENGTH_MAX),
            ("key", key, NAME_LENGTH_MAX),
            ("value", value, VALUE_LENGTH_MAX),
        ):
            if len(text) > longest:
                raise TooManyKeysError(
                    f"the {what} has {len(text)} characters, at most {longest} are allowed"
                )
        count = self.count
        if count >= self._keys_max and key not in self._table.get(namespace, {}):
            raise TooManyKeysError(
                f"there are {count} keys, at most {self._keys_max} are allowed (max_key_values)"
            )
        # Each change encodes and writes all values: so they are bounded together.
        size = len(value) - len(self.get(namespace, key) or "")
        size += sum(len(other) for table in self._table.values() for other in table.values())
        if size > VALUES_LENGTH_MAX:
            raise TooManyKeysError(
                f"all values would have {size} characters, at most {VALUES_LENGTH_MAX} are allowed"
            )
        self._check_rate(now_ns)
        # A table of its own, which takes the place of this one when it is saved: a failure changes nothing.
        changed = dict(self._table)
        changed[namespace] = {**self._table.get(namespace, {}), key: value}
        size = len(encode_body(KeyValueTable(changed[namespace])))
        if size > NAMESPACE_BYTES_MAX:
            raise TooManyKeysError(
                f"namespace {namespace} would have {size} bytes, at most {NAMESPACE_BYTES_MAX} are allowed"
            )
        self._change(changed)

    def delete(self, namespace: str, key: str, now_ns: int) -> None:
        """Remove a key if it is there; raises as `put` does."""
        if key not in self._table.get(namespace, {}):
            return
        self._check_rate(now_ns)
        changed = dict(self._table)
        remaining = {name: value for name, value in self._table[namespace].items() if name != key}
        if remaining:
            changed[namespace] = remaining
        else:
            del changed[namespace]
        self._change(changed)

    def _check_rate(self, now_ns: int) -> None:
        if self._storage is None:
            return
        forgiven = (now_ns - self._forgiven_ns) * WRITTEN_BYTES_PER_SECOND / 1e9
        self._written_bytes, self._forgiven_ns = max(0.0, self._written_bytes - forgiven), now_ns
        # A configuration of more, which an earlier release may have left, can be changed once all is forgiven.
        if self._written_bytes + min(self._size, WRITTEN_BYTES_MAX) > WRITTEN_BYTES_MAX:
            wait_s = self._size / WRITTEN_BYTES_PER_SECOND
            raise TooManyWritesError(
                f"each change writes all of the key-value configuration, {self._size} bytes, and many were made: "
                f"try again in {wait_s:.1f} s"
            )

    def _change(self, table: dict[str, dict[str, str]]) -> None:
        if self._storage is not None:
            data = msgspec.json.format(msgspec.json.encode(_Stored(table)), indent=2)
            self._size = max(len(data), WRITTEN_BYTES_LEAST)
            self._written_bytes += self._size  # whether that succeeds or not
            self._storage.save(data)
        self._table = table
