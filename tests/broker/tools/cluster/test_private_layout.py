"""What `trivet cluster` writes is for its user alone: settings may hold a secret, stores and traces hold messages."""

from __future__ import annotations

import os
from pathlib import Path

from broker.tools.cluster.layout import Layout, LocalClusterOptions
from broker.tools.cluster.recording import Recording


def test_a_clusters_files_are_private(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    before = os.umask(0)
    try:
        layout = Layout(
            LocalClusterOptions(directory=directory, nodes=3, trace_directory=directory / "traces")
        )
        try:
            with Recording(directory / "traces"):
                pass
        finally:
            layout.release()
    finally:
        os.umask(before)
    paths = [directory, *directory.rglob("*")]
    assert {path.name for path in paths} >= {"broker.toml", "namesrv.toml", "n2", "driver.trace"}
    assert [path for path in paths if path.stat().st_mode & 0o077] == []
