"""The wheel, built and installed as users do it, and a directory whose files have the names of Trivet's rooms."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from broker.tools.wheel import ROOMS

ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and a directory of hostile names in which all is run."""

    environment: Path
    hostile: Path

    @property
    def python(self) -> str:
        return str(self.environment / "bin" / "python")

    @property
    def packages(self) -> Path:
        """Where the wheel is installed."""
        (found,) = self.environment.glob("lib/python3*/site-packages")
        return found

    @property
    def variables(self) -> dict[str, str]:
        """Of this process's variables none: PYTHONPATH may lead to the checkout."""
        return {"PATH": f"{self.environment / 'bin'}:{os.environ['PATH']}"}

    def run(self, *command: str, code: int = 0, **variables: str) -> str:
        """Run a command there; returns its standard output. It must end with that exit code."""
        done = subprocess.run(
            command,
            cwd=self.hostile,
            env={**self.variables, **variables},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    def program(self, text: str, *arguments: str, **variables: Any) -> str:
        """Run a program of the user's, which lies among the hostile names; returns what it prints."""
        file = self.hostile / "program.py"
        file.write_text(text)
        return self.run(self.python, str(file), *arguments, **variables)


def environment(directory: Path) -> Path:
    """Make an environment with the packages of this one, and without Trivet."""
    venv.create(directory, with_pip=False, symlinks=True)
    (packages,) = directory.glob("lib/python3*/site-packages")
    mine = [
        path for path in sys.path if path.endswith("-packages")
    ]  # files *.pth in there, as Trivet's, are not read
    (packages / "dependencies.pth").write_text("\n".join(mine))
    return directory


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = directory.glob("*.whl")
    made = environment(directory / "environment")
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel)]
    python = str(made / "bin" / "python")
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True)
    hostile = directory / "hostile"
    hostile.mkdir()
    for room in ROOMS:
        (hostile / f"{room}.py").write_text(f"raise SystemExit('the user has a {room}, too')\n")
    for room in ("broker", "testing"):
        (hostile / room).mkdir()
        (hostile / room / "__init__.py").write_text(f"raise SystemExit('the user has a {room}, too')\n")
    return Installed(made, hostile)


@pytest.fixture(scope="module")
def name_server(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster that ``trivet cluster`` runs among hostile names; gives its name server's address."""
    directory = tmp_path_factory.mktemp("cluster")
    ports = ("--namesrv-port", "0", "--port", "0")
    process = subprocess.Popen(
        [
            installed.environment / "bin" / "trivet",
            "cluster",
            "--dir",
            directory / "c",
            "--nodes",
            "1",
            *ports,
        ],
        cwd=installed.hostile,
        env=installed.variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith("READY ")), None)
        assert line is not None, "the cluster was never ready"
        report: dict[str, Any] = json.loads(line.removeprefix("READY "))
        yield report["namesrv"]
    finally:
        process.terminate()
        process.wait(LIMIT_S)
