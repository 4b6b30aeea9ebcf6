"""Other projects' clients and servers, fetched by their ordinary package managers into git-ignored folders.

Nothing here is a dependency of Trivet. Python wheels come by pip with the hash in ``requirements.lock``, Java
artifacts by Maven with the versions below, Go modules by go with the hashes in ``go_client/go.sum``. All use the
machine's own configuration, so no address is written anywhere. What cannot be had raises
``ArtifactUnavailableError`` with one line that says why, which a test turns into a skip (or a failure where the
artifact is required).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

INTEROP = Path(__file__).resolve().parent
JAVA = INTEROP / "java"
BUILD = INTEROP.parent.parent / "build" / "interop"

REFERENCE_VERSION = "4.9.7"
"""Version of the reference servers: the last of 4.9.x whose name server and broker are published."""

REFERENCE_VERSION_5 = "5.3.3"
"""Version of the reference servers for what only 5.x answers: managed pull (361) and topic configuration (351)."""

JAVA_CLIENT_VERSIONS = ("4.9.8", "5.3.1")
"""Versions of the Java client and mqadmin. 5.3.1 is the last 5.3.x whose tools are published."""

CPP_CLIENT_VERSION = "0.4.4"

GO_CLIENT_VERSION = "2.1.2"
"""As in ``go_client/go.mod``."""

INSTALL_LIMIT_S = 300

# RocketMQ 4.9 unmaps its files through members that newer Java runtimes close off.
JAVA_OPENS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)


class ArtifactUnavailableError(Exception):
    """An artifact of another project cannot be had on this machine; the message says which and why."""


def cpp_client_path() -> Path:
    """A folder to put on PYTHONPATH, holding the unmodified ``rocketmq`` wheel with its shared library."""
    if sys.platform != "linux":
        raise ArtifactUnavailableError("the C++ client's wheel exists for Linux x86-64 only")
    folder = BUILD / f"cpp-client-{CPP_CLIENT_VERSION}"
    with _exclusive("cpp-client"):
        if not (folder / "rocketmq" / "librocketmq.so").exists():
            shutil.rmtree(folder, ignore_errors=True)
            lock_file = INTEROP / "requirements.lock"
            pip = [sys.executable, "-m", "pip", "--quiet", "install", "--no-deps", "--require-hashes"]
            _run([*pip, "--target", str(folder), "--requirement", str(lock_file)], "the C++ client")
    return folder


def go_client() -> Path:
    """The program of ``go_client/`` with the Go client in it."""
    go = shutil.which("go")
    if go is None:
        raise ArtifactUnavailableError("no go on the PATH: install Go 1.22 or later (Debian: golang-go)")
    program = BUILD / f"go-client-{GO_CLIENT_VERSION}"
    with _exclusive("go-client"):
        _run([go, "build", "-C", str(INTEROP / "go_client"), "-o", str(program), "."], "the Go client")
    return program


def java_client_classpath(version: str) -> str:
    """Class path with the interoperability program, the Java client and mqadmin of ``version``."""
    return _classpath(version, "client", "src", "lib")


def reference_classpath(version: str) -> str:
    """Class path with the reference's name server and broker, and a program that opens its store."""
    return _classpath(version, "reference", "store", "reference-lib")


def _classpath(version: str, profile: str, sources: str, library: str) -> str:
    target = JAVA / "target" / version
    with _exclusive(f"java-{version}"):
        stamp = target / ".built"
        newest = max(path.stat().st_mtime for path in [JAVA / "pom.xml", *(JAVA / sources).rglob("*.java")])
        if not stamp.exists() or stamp.stat().st_mtime < newest:
            _maven(version, profile, target / library, "compile")
            stamp.touch()
    return f"{target / 'classes'}{os.pathsep}{target / library}/*"


def java() -> str:
    """The Java launcher, 11 or later."""
    launcher = shutil.which("java")
    if launcher is None:
        raise ArtifactUnavailableError(
            "no java on the PATH: install a JDK 17 (Debian: openjdk-17-jdk-headless)"
        )
    return launcher


def _maven(version: str, profile: str, library: Path, *goals: str) -> None:
    java()
    maven = shutil.which("mvn")
    if maven is None:
        raise ArtifactUnavailableError("no mvn on the PATH: install Maven (Debian: maven)")
    if _maven_failures:
        raise _maven_failures[0]
    argv = [maven, "--quiet", "--batch-mode", "--file", str(JAVA / "pom.xml"), "--activate-profiles", profile]
    argv += [f"-Drocketmq.version={version}", *goals, "dependency:copy-dependencies"]
    try:
        _run([*argv, f"-DoutputDirectory={library}"], f"RocketMQ {version} ({profile})")
    except ArtifactUnavailableError as error:
        _maven_failures.append(error)
        raise


_maven_failures: list[ArtifactUnavailableError] = []
"""The first failure of Maven stands for the rest of this process: a repository that is out of reach makes it wait."""


def _run(argv: list[str], what: str) -> None:
    try:
        subprocess.run(argv, check=True, capture_output=True, text=True, timeout=INSTALL_LIMIT_S)
    except subprocess.CalledProcessError as error:
        output = (error.stdout + error.stderr).strip().splitlines()
        errors = [line for line in output if "ERROR" in line] or output or ["no output"]
        raise ArtifactUnavailableError(f"{what} cannot be had: {errors[0][:500]}") from error
    except subprocess.TimeoutExpired as error:
        raise ArtifactUnavailableError(f"{what} cannot be had: nothing within {INSTALL_LIMIT_S} s") from error


@contextmanager
def _exclusive(name: str) -> Iterator[None]:
    """One installer at a time: two test runs may share a checkout."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
