"""What docs/deploying offers for systemd and for Docker: settings that Trivet takes, and files that fit together."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.settings.loading import load, load_name_server
from broker.settings.tables import Settings

DEPLOYING = Path(__file__).parent.parent.parent / "docs" / "deploying"
UNITS = ("trivet-namesrv.service", "trivet-broker@.service")


def unit(name: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read(DEPLOYING / "systemd" / name)
    return parsed


def loaded(tmp_path: Path, name: str, text: str) -> Settings:
    path = tmp_path / name
    path.write_text(text)
    path.chmod(0o600)
    return load(path)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_the_units(tmp_path: Path, name: str) -> None:
    text = (DEPLOYING / "systemd" / name).read_text()
    (tmp_path / name).write_text(text.replace("/opt/trivet/bin/trivet", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
    )
    complaints = [line for line in done.stderr.splitlines() if "trivet" in line]
    assert complaints == []


def test_a_broker_has_the_time_that_it_lingers() -> None:
    settings = load(DEPLOYING / "systemd" / "n0.toml")
    service = unit(UNITS[1])["Service"]
    assert int(service["TimeoutStopSec"]) > settings.node.linger_s + 30
    assert int(service["LimitNOFILE"]) > settings.limits.max_connections + 768


def test_units_name_the_settings_that_are_beside_them() -> None:
    for name, settings in zip(UNITS, ("namesrv.toml", "%i.toml"), strict=True):
        assert unit(name)["Service"]["ExecStart"].endswith(f"--config /etc/trivet/{settings}")
        assert unit(name)["Service"]["User"] == "trivet"
    name_server = load_name_server(DEPLOYING / "systemd" / "namesrv.toml")
    broker = load(DEPLOYING / "systemd" / "n0.toml")
    assert name_server.registration_secret == broker.node.registration_secret
    assert broker.raft.peers.keys() == {"n0", "n1", "n2"}


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOYING / "docker" / "compose.yaml").read_text())
    return found


def test_the_compose_file_starts_a_group_that_this_machine_reaches(tmp_path: Path) -> None:
    services, configs = compose()["services"], compose()["configs"]
    assert set(services) == {"namesrv", "n0", "n1", "n2"}
    for node in ("n0", "n1", "n2"):
        settings = loaded(tmp_path, f"{node}.toml", configs[node]["content"])
        port = settings.node.listen.rpartition(":")[2]
        assert settings.node.id == node
        assert settings.node.advertise == "127.0.0.1"
        assert services[node]["ports"] == [f"127.0.0.1:{port}:{port}"], "published where clients are told"
        assert settings.raft.peers == {other: f"{other}:40911" for other in ("n0", "n1", "n2")}
        assert settings.node.name_servers == ("namesrv:9876",)
        assert f"http://{settings.observe.metrics}/readyz" in str(services[node]["healthcheck"]["test"])
        assert {item["source"] for item in services[node]["configs"]} == {node}
    text = configs["namesrv"]["content"]
    (tmp_path / "namesrv.toml").write_text(text)
    listen = load_name_server(tmp_path / "namesrv.toml").listen
    assert listen == "0.0.0.0:9876"
    assert tomllib.loads(text)["metrics"] in str(services["namesrv"]["healthcheck"]["test"])


def test_the_image_is_built_of_what_is_here() -> None:
    """Whatever the build copies is not ignored, and its versions are those of the lock file."""
    dockerfile = (DEPLOYING / "docker" / "Dockerfile").read_text()
    ignored = (DEPLOYING / "docker" / "Dockerfile.dockerignore").read_text().split()
    root = DEPLOYING.parent.parent
    for needed in ("requirements.lock", "pyproject.toml", "README.md", "broker", "log", "raft", "trivet.py"):
        assert (root / needed).exists()
        assert needed not in ignored
    assert "--constraint /constraints.txt" in dockerfile
    assert dockerfile.rindex("USER 10911") < dockerfile.rindex("ENTRYPOINT")
