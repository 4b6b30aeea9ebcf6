"""Changes of a file of accounts, as text and on the disk.

A person has written the file, with remarks and in an order of his own: only the account that changes is written anew,
in the place where it stands, and all else stays as it is, byte by byte. What comes out is read as a server reads it and
must have exactly the change that was wanted; a file whose form does not allow that is refused.

The new file replaces the old one at once, and keeps its owner and what its owner and group may do with it; others may
do nothing with it. Servers see the change by themselves.
"""

import contextlib
import fcntl
import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from broker.access.accounts import AccountEntry, AccountsError, parse, parse_entries
from log.files.private_files import FILE_MODE
from log.files.replacement import put_in_place

_BEGIN: Final = re.compile(r"\s*\[\[\s*(accounts|\"accounts\"|'accounts')\s*\]\]")
_OTHER_TABLE: Final = re.compile(r"\s*\[(?!\s*(accounts|\"accounts\"|'accounts')\s*\.)")


def with_account(text: str, file: str, entry: AccountEntry) -> str:
    """Return the text with this account, in the place of the one with its access key, else at the end.

    Raises AccountsError for a text that no server takes, before or after, and for one that has to be edited by hand.
    """
    lines, place = _found(text, file, entry.access_key)
    block = [f"{line}\n" for line in ("[[accounts]]", *_written(entry))]
    if place is None:
        if lines and lines[-1].strip():
            block.insert(0, "\n")
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        lines += block
    else:
        lines[place] = block
    # The text was changed by its lines: read as a server reads it, it must be what it was but for this account.
    changed = "".join(lines)
    _check(changed, file, _by_key(text, file) | {entry.access_key: entry})
    return changed


def without_account(text: str, file: str, access_key: str) -> str:
    """Return the text without an account, which it has. Raises AccountsError as `with_account` does."""
    lines, place = _found(text, file, access_key)
    assert place is not None, "the caller has looked"
    del lines[place]
    changed = "".join(lines)
    expected = _by_key(text, file)
    del expected[access_key]
    _check(changed, file, expected)
    return changed


def edit(path: Path, change: Callable[[str], str]) -> None:
    """Replace a file's text, at once and durably; nobody else edits it meanwhile. Raises AccountsError, OSError.

    A file that is not there counts as an empty one. A link stays one: what it leads to is replaced.
    """
    path = path.resolve()
    with _only_one(path.parent):
        state = path.stat() if path.exists() else None
        try:
            text = "" if state is None else path.read_bytes().decode()
        except UnicodeDecodeError as error:
            raise AccountsError(f"{path}: byte {error.start} is not UTF-8 text") from None
        _replace(path, change(text), state)


def _replace(path: Path, text: str, state: os.stat_result | None) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # for its owner alone
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            if state is not None:
                if (state.st_uid, state.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(descriptor, state.st_uid, state.st_gid)  # before the group may read anything
                os.fchmod(descriptor, stat.S_IMODE(state.st_mode) & ~stat.S_IRWXO)
            else:
                os.fchmod(descriptor, FILE_MODE)
            put_in_place(file, Path(name), path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _only_one(directory: Path) -> Iterator[None]:
    """Hold a lock on the directory while the block lasts; one on the file would go when the file is replaced."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _found(text: str, file: str, access_key: str) -> tuple[list[str], slice | None]:
    """Return the text's lines and which of them are the account's; None without such an account."""
    lines = text.splitlines(keepends=True)
    begins = [number for number, line in enumerate(lines) if _BEGIN.match(line)]
    for begin in begins:
        end = next(
            (number for number in range(begin + 1, len(lines)) if _OTHER_TABLE.match(lines[number])),
            len(lines),
        )
        while end > begin + 1 and _is_before_the_next(lines[end - 1]):
            end -= 1
        if _access_key("".join(lines[begin:end])) == access_key:
            return lines, slice(begin, end)
    # TOML has other ways to write an account, such as an inline table. They are read, and not edited.
    if access_key in _by_key(text, file):
        raise AccountsError(
            f"{file}: account {access_key} is not written as a table [[accounts]] of its own: edit the file by hand"
        )
    return lines, None


def _is_before_the_next(line: str) -> bool:
    """Tell whether a line behind an account's keys belongs to the next account: an empty one, or a remark."""
    return not line.strip() or line.lstrip().startswith("#")


def _access_key(block: str) -> str | None:
    try:
        found = tomllib.loads(block)["accounts"][0].get("access_key")
    except (ValueError, RecursionError):  # whoever reads the whole file says so (`accounts.parse`)
        return None
    return found if isinstance(found, str) else None


def _written(entry: AccountEntry) -> Iterator[str]:
    """Return the lines of an account; defaults but for permissions are left out."""
    yield f"access_key = {_quoted(entry.access_key)}"
    yield f"secret_key = {_quoted(entry.secret_key)}"
    if entry.white_remote_address:
        yield f"white_remote_address = {_quoted(entry.white_remote_address)}"
    if entry.admin:
        yield "admin = true"
    yield f"default_topic_permission = {_quoted(entry.default_topic_permission)}"
    yield f"default_group_permission = {_quoted(entry.default_group_permission)}"
    for name, granted in (
        ("topic_permissions", entry.topic_permissions),
        ("group_permissions", entry.group_permissions),
    ):
        if granted:
            inner = ", ".join(f"{_quoted(key)} = {_quoted(value)}" for key, value in granted.items())
            yield f"{name} = {{ {inner} }}"


def _quoted(text: str) -> str:
    """Return a basic string of TOML, whose escapes are JSON's but for one character."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")


def _by_key(text: str, file: str) -> dict[str, AccountEntry]:
    return {entry.access_key: entry for entry in parse_entries(text, file)}


def _check(changed: str, file: str, expected: dict[str, AccountEntry]) -> None:
    parse(changed, file)
    if _by_key(changed, file) != expected:
        raise AccountsError(f"{file}: has a form in which this account can only be changed by hand")
