"""The file of accounts is read when it changes, and again where it could not be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.access.accounts import Accounts
from broker.shell.access_file import AccessFile


def accounts(*names: str) -> str:
    return "".join(f'[[accounts]]\naccess_key = "{name}"\nsecret_key = "secret-of-it"\n' for name in names)


def test_a_file_that_could_not_be_read_for_a_moment_is_read_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node was out of descriptors, or the file's mode was wrong: neither changes when the file was written. An
    account that was taken away stayed good until the file changed once more."""
    path = tmp_path / "accounts.toml"
    path.write_text(accounts("the-first", "another"))
    used: list[list[str]] = []

    def use(accounts: Accounts) -> None:
        used.append([*accounts.by_access_key])

    file = AccessFile(str(path), use)
    path.write_text(accounts("the-first"))
    with capture_logs() as lines, monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", _too_many_open_files)
        for _ in range(3):
            file.look()
        assert [line["log_level"] for line in lines] == ["warning"], "told once, however often it is tried"
        file.reload()
    assert used == [["the-first", "another"]]
    assert len(lines) == 2, "whoever asks is told again"
    file.look()
    assert used == [["the-first", "another"], ["the-first"]]
    file.look()
    assert len(used) == 2


def _too_many_open_files(*_args: object, **_options: object) -> str:
    raise OSError(24, "Too many open files")
