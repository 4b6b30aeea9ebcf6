"""A start tells of each file with a secret that others may read."""

from __future__ import annotations

from pathlib import Path

import structlog.testing

from broker.settings.tables import AclSettings, NameServerSettings, RaftSettings, Settings, TlsSettings
from broker.shell.secret_files import warn_of_readable_secrets


def told(settings: Settings | NameServerSettings, file: Path) -> list[tuple[str, str, str]]:
    with structlog.testing.capture_logs() as logs:
        warn_of_readable_secrets(settings, file)
    assert all(entry["log_level"] == "warning" for entry in logs)
    return [(Path(entry["file"]).name, entry["mode"], entry["secret"]) for entry in logs]


def test_secrets_that_others_may_read_are_told(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("broker.toml", "accounts.toml", "n0.key")}
    for file in files.values():
        file.write_text("x")
        file.chmod(0o640)
    tls = TlsSettings(certificate="n0.pem", key=str(files["n0.key"]))
    settings = Settings(
        raft=RaftSettings(peer_secret="a secret of the group"),
        acl=AclSettings(file=str(files["accounts.toml"])),
        tls=tls,
    )
    assert told(settings, files["broker.toml"]) == [
        ("accounts.toml", "0640", "the keys of accounts"),
        ("n0.key", "0640", "the TLS key"),
        ("broker.toml", "0640", "raft.peer_secret"),
    ]
    assert told(NameServerSettings(tls_certificate="n0.pem", tls_key=tls.key), files["broker.toml"]) == [
        ("n0.key", "0640", "the TLS key")
    ]
    name_server = NameServerSettings(
        registration_secret="a secret of brokers", acl_file=str(files["accounts.toml"])
    )
    assert told(name_server, files["broker.toml"]) == [
        ("accounts.toml", "0640", "the keys of accounts"),
        ("broker.toml", "0640", "registration_secret"),
    ]
    for file in files.values():
        file.chmod(0o600)
    assert told(settings, files["broker.toml"]) == []


def test_a_file_without_a_secret_may_be_read(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("x")
    file.chmod(0o644)
    assert told(Settings(), file) == []
