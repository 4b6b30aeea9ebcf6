"""Porcupine as its authors publish it: fetched by Go when it is needed, never a part of this repository.

Its version and sum stand in benchmarks/porcupine/go.mod and go.sum. The module holds the histories that its own tests
judge, and those tests say what each must come to.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROGRAM: Final = Path(__file__).parent / "porcupine"
_MODULE: Final = "github.com/anishathalye/porcupine"
_USUAL_PLACE: Final = "/usr/local/go/bin"  # where Go's own instructions put it
_FETCH_SECONDS: Final = 120
_VERDICTS: Final = {"true": "linearizable", "false": "violated"}


class GoUnavailableError(RuntimeError):
    """Go is not installed, or cannot fetch the module; the message is one line."""


@dataclass(frozen=True, slots=True)
class Published:
    """Histories of one format of ``trivet analyze`` with their published verdicts."""

    format: str
    verdicts: dict[Path, str]


def go() -> str:
    """The Go program. Raises :class:`GoUnavailableError`."""
    found = shutil.which("go", path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{_USUAL_PLACE}")
    if found is None:
        raise GoUnavailableError("Go is not installed (https://go.dev/doc/install)")
    return found


def build(target: Path) -> None:
    """Compile benchmarks/porcupine. Raises :class:`GoUnavailableError` or :class:`subprocess.CalledProcessError`."""
    subprocess.run([go(), "build", "-o", str(target.resolve()), "."], cwd=_PROGRAM, check=True)


def module_directory() -> Path:
    """The directory of the module's files; Go fetches them if they are not there. Raises
    :class:`GoUnavailableError`."""
    command = [go(), "mod", "download", "-json", _MODULE]
    try:
        done = subprocess.run(
            command, cwd=_PROGRAM, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise GoUnavailableError(f"Go did not fetch {_MODULE} within {_FETCH_SECONDS} s") from None
    if done.returncode:
        raise GoUnavailableError(f"Go cannot fetch {_MODULE}: {(done.stdout or done.stderr).strip():.200}")
    return Path(json.loads(done.stdout)["Dir"])


def published() -> tuple[Published, Published]:
    """The logs of etcd registers and the key-value histories. Raises :class:`GoUnavailableError`."""
    directory = module_directory()
    tests = (directory / "porcupine_test.go").read_text()
    etcd = {
        directory / "test_data" / "jepsen" / f"etcd_{int(number):03d}.log": _VERDICTS[correct]
        for number, correct in re.findall(r"checkJepsen\(t, (\d+), (true|false)\)", tests)
    }
    key_value = {
        directory / "test_data" / "kv" / f"{name}.txt": _VERDICTS[correct]
        for name, correct in re.findall(r'checkKv\(t, "([\w-]+)", (true|false), \w+\)', tests)
    }
    return Published("jepsen-etcd", etcd), Published("porcupine-kv", key_value)
