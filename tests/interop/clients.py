"""Other projects' clients as subjects: how each is started as a driver process.

All drivers take the same subcommands and options and report the same events (``cpp_client/common.py`` lists them), so
a test is written once and runs with every client that has the subcommand.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.interop.artifacts import (
    CPP_CLIENT_VERSION,
    GO_CLIENT_VERSION,
    INTEROP,
    JAVA_CLIENT_VERSIONS,
    JAVA_OPENS,
    cpp_client_path,
    go_client,
    java,
    java_client_classpath,
)
from tests.interop.processes import Child

ROOT = INTEROP.parent.parent

CPP = f"cpp-{CPP_CLIENT_VERSION}"
JAVA = tuple(f"java-{version}" for version in JAVA_CLIENT_VERSIONS)
ALL_CLIENTS = (CPP, *JAVA)
GO = f"go-{GO_CLIENT_VERSION}"
"""Has tests of its own (test_go_client.py): its driver does not know all that the others do."""

BINARY = "-binary"
"""Ends the name of a Java client that writes ROCKETMQ headers; without it headers are JSON."""

CLOCKS_APART_MS = 50
"""Store times are of the group's time (broker/replica/group_clock.py), which may be so far behind a client's clock."""

Option = str | int | bool


def java_version(name: str) -> str:
    """The RocketMQ version of the Java client ``name``."""
    return name.removeprefix("java-").removesuffix(BINARY)


@dataclass(slots=True)
class Client:
    """Starts drivers of one client against one name server, their logs and home below ``folder``."""

    name: str
    name_server: str
    folder: Path
    jvm: Sequence[str] = ()
    """More options for the Java virtual machine."""
    running: list[Child] = field(default_factory=list)
    _serial: itertools.count[int] = field(default_factory=itertools.count)

    def start(self, subcommand: str, **options: Option) -> Child:
        """Runs ``subcommand``; options by their names, ``True`` for a switch. Stopped by ``stop_all`` at the latest."""
        argv, env = self._command(subcommand)
        argv += ["--namesrv", self.name_server]
        for name, value in options.items():
            flag = "--" + name.replace("_", "-")
            if value is True:
                argv.append(flag)
            elif value is not False:
                # An option's value may begin with a dash or be empty: never a separate word.
                argv += [flag, str(value)]
        log = self.folder / f"{next(self._serial)}-{subcommand}.log"
        child = Child(argv, log=log, env=env, cwd=self.folder)
        self.running.append(child)
        return child

    def stop_all(self) -> None:
        for child in self.running:
            child.stop()
        self.running.clear()

    def _command(self, subcommand: str) -> tuple[list[str], dict[str, str]]:
        if self.name == CPP:
            # Its log files go to HOME. The drivers are those of this checkout, whichever is installed.
            path = os.pathsep.join([str(cpp_client_path()), str(ROOT)])
            env = {"PYTHONPATH": path, "HOME": str(self.folder)}
            return [sys.executable, "-m", f"tests.interop.cpp_client.{subcommand}"], env
        if self.name == GO:
            return [str(go_client()), subcommand], {"HOME": str(self.folder)}
        classpath = java_client_classpath(java_version(self.name))
        argv = [
            java(),
            "-Xmx192m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            *JAVA_OPENS,
            f"-Duser.home={self.folder}",
            f"-Djava.io.tmpdir={self.folder}",
            f"-Drocketmq.home.dir={self.folder}",
            f"-Drocketmq.serialize.type={'ROCKETMQ' if self.name.endswith(BINARY) else 'JSON'}",
            *self.jvm,
        ]
        argv += [f"-Drocketmq.client.logRoot={self.folder}/logs", "-cp", classpath, "trivet.interop.Interop"]
        return [*argv, subcommand], {}
