"""What a supervisor starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from broker.tools.cluster.child import Child
from tests.broker.shell.servers import LIMIT_S


async def test_a_module_in_the_working_directory_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can write there, as all can in /tmp, had his own code run by who began a cluster there."""
    (tmp_path / "trivet.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    child = Child("n0", ["--version"], tmp_path / "log")
    with trio.fail_after(LIMIT_S):
        await child.watch()
    assert child.return_code == 0
