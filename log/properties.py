"""The property string of a record (storage.md 1.3): name \\x01 value \\x02, repeated.

Readers are tolerant, because 4.9 clients leave out the last \\x02: entries without \\x01, without a name or
without a value are skipped, and of several entries of one name the last counts. Single properties are
looked up in the raw bytes, because building a dictionary per message costs more than all else on the hot
path together.
"""

from collections.abc import Mapping

from log.errors import RecordError

TAGS = b"TAGS"
KEYS = b"KEYS"
UNIQ_KEY = b"UNIQ_KEY"
TIMER_OUT_MS = b"TIMER_OUT_MS"


def parse_properties(raw: bytes) -> dict[str, str]:
    """All properties by name. Malformed UTF-8 becomes U+FFFD, as it does in a Java reader."""
    found: dict[str, str] = {}
    for item in raw.decode("utf-8", "replace").split("\x02"):
        name, _, value = item.partition("\x01")
        if name and value:
            found[name] = value
    return found


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The property string, ending with \\x02. Empty values are left out: no reader would see them.

    Raises RecordError if a name or value contains a separator, or a name is empty.
    """
    parts = []
    for name, value in properties.items():
        if not name or "\x01" in name or "\x02" in name or "\x01" in value or "\x02" in value:
            raise RecordError(f"property {name!r} = {value!r} contains a separator or has no name")
        if value:
            parts.append(f"{name}\x01{value}\x02")
    return "".join(parts).encode()


def get_property(raw: bytes, name: bytes) -> bytes | None:
    """The value of one property without parsing the others; None if absent or empty."""
    needle = name + b"\x01"
    begin = raw.find(needle)
    if begin < 0:
        return None
    start = begin + len(needle)
    end = raw.find(b"\x02", start)
    # Once, with a value, and really a name: nearly always.
    if end > start and (not begin or raw[begin - 1] == 2) and raw.find(needle, end) < 0:
        return raw[start:end]
    found = None
    for item in raw.split(b"\x02"):
        if len(item) > len(needle) and item.startswith(needle):
            found = item[len(needle) :]
    return found


def terminated(raw: bytes) -> bytes:
    """The same properties with the \\x02 at the end that older clients leave out."""
    return raw + b"\x02" if raw and raw[-1] != 2 else raw


def with_property(raw: bytes, name: bytes, value: bytes) -> bytes:
    """The string with one more entry at the end, where it wins over earlier ones of that name."""
    return b"%s%s\x01%s\x02" % (terminated(raw), name, value)


def without_property(raw: bytes, name: bytes) -> bytes:
    """The string without any entry of that name."""
    needle = name + b"\x01"
    if needle not in raw:
        return raw
    return b"".join([item + b"\x02" for item in raw.split(b"\x02") if item and not item.startswith(needle)])
