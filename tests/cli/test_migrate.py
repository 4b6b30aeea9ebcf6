"""`trivet migrate` and what follows it, as an operator types it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tests.broker.migration.rocketmq_store import RocketMQStore
from tests.cli.conftest import CommandLine

FILE_BYTES = 1 << 20


def store(root: Path) -> Path:
    made = RocketMQStore(root, file_bytes=FILE_BYTES)
    made.topics = {"orders": 1, "%bad name": 1}
    for number in range(20):
        made.send("orders", b"%d" % number)
    made.positions = {"orders@g": {0: 7}}
    return made.save()


def test_a_store_is_looked_at_made_a_backup_and_a_node(
    trivet: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, backup = store(tmp_path / "s"), tmp_path / "b"
    looked = trivet("migrate", "--from", str(root))
    assert looked.exit_code == 0
    assert "checked only" in looked.out
    assert "topic '%bad name': the specified topic" in looked.out

    config = tmp_path / "n0.toml"
    config.write_text(
        f'[node]\nid = "n0"\ngroup = "RaftNode00"\nlisten = "127.0.0.1:10911"\n'
        f'[storage]\npath = "{tmp_path / "n0"}"\ndata_file_bytes = {FILE_BYTES}\nmax_message_bytes = 65536\n'
    )
    made = trivet("migrate", "--from", str(root), "--to", str(backup), "--config", str(config), "--json")
    assert made.exit_code == 0, made.err
    report = json.loads(made.out)
    assert (report["messages"], report["positions"], report["is_complete"]) == (20, 1, True)
    assert [topic["topic"] for topic in report["topics"]] == ["broker-a", "orders"]
    assert trivet("backup", "verify", str(backup)).exit_code == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    unasked = trivet("restore", str(backup), "--config", str(config))
    assert (unasked.exit_code, unasked.out) == (2, "")
    assert unasked.complaint.endswith("? There is no terminal to ask at: say so with --yes")
    assert not (tmp_path / "n0").exists()
    restored = trivet("restore", str(backup), "--config", str(config), "--yes")
    assert restored.exit_code == 0, restored.err
    assert (tmp_path / "n0" / "consumequeue" / "orders" / "0").is_dir()


def test_what_cannot_be_is_said_in_one_line(trivet: CommandLine, tmp_path: Path) -> None:
    root = store(tmp_path / "s")
    unnamed = trivet("migrate", "--from", str(root), "--to", str(tmp_path / "b"))
    assert unnamed.exit_code == 2
    assert "--to needs --group NAME" in unnamed.complaint
    (root / "config" / "topics.json").write_bytes(b"[]")
    broken = trivet("migrate", "--from", str(root), "--to", str(tmp_path / "b"), "--group", "a")
    assert broken.exit_code == 1
    assert "topics.json at byte 0" in broken.complaint


def test_a_cluster_is_told_by_its_address(trivet: CommandLine, tmp_path: Path) -> None:
    away = trivet("migrate", "--from", "127.0.0.1:1", "--group", "a", "--to", str(tmp_path / "b"), "--follow")
    assert away.exit_code == 1
    assert "127.0.0.1:1" in away.complaint
    for_stores = trivet("migrate", "--from", "127.0.0.1:1", "--node", "n0")
    assert for_stores.exit_code == 2
    assert "--node" in for_stores.complaint
    named = tmp_path / "store:1"
    assert "is no directory" not in trivet("migrate", "--from", str(store(named))).err
