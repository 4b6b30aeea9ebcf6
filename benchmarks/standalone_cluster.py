"""Spark's own standalone cluster on this machine: a master and workers, each a process, with executors beside them.

    python -m benchmarks.standalone_cluster trivet analyze --master MASTER --format parquet HISTORY

runs a command with the word MASTER replaced by the master's URL, and ends the cluster with it. What the command prints
and its exit code are passed on. A cluster of several machines is started with the same two programs of Spark, and the
command is the same.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

WORKERS: Final = 2
START_SECONDS: Final = 600.0
MASTER: Final = "MASTER"


class ClusterError(RuntimeError):
    """The master or a worker did not start; the message is its log."""


@contextmanager
def standalone_cluster(
    directory: Path, environment: Mapping[str, str], *, workers: int = WORKERS, memory: str = "1g"
) -> Iterator[str]:
    """Start a master and workers of one core each on the loopback interface; gives the master's URL.

    Logs go to ``directory``. ``memory`` is what each worker may give to executors. Raises :class:`ClusterError`.
    """
    import pyspark

    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    started: list[subprocess.Popen[bytes]] = []

    def start(role: str, name: str, pattern: str, *arguments: str) -> str:
        log = directory / f"{name}.log"
        command = [str(program), f"org.apache.spark.deploy.{role}", *arguments]
        with log.open("wb") as output:
            started.append(
                subprocess.Popen(command, env=dict(environment), stdout=output, stderr=subprocess.STDOUT)
            )
        deadline = time.monotonic() + START_SECONDS
        while (found := re.search(pattern, log.read_text())) is None:
            if started[-1].poll() is not None or time.monotonic() > deadline:
                raise ClusterError(log.read_text())
            time.sleep(0.05)  # Spark says that it is ready in its log and nowhere else
        return found[1]

    address = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    try:
        master = start("master.Master", "master", r"Starting Spark master at (spark://\S+)", *address)
        for number in range(workers):
            given = ("--cores", "1", "--memory", memory, master)
            registered = r"(Successfully registered with master)"
            start("worker.Worker", f"worker-{number}", registered, *address, *given)
        yield master
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", help="the command to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    options = parser.parse_args()
    command = [options.program, *options.arguments]
    with tempfile.TemporaryDirectory(prefix="standalone-") as directory:
        environment = {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": directory,
            "SPARK_DAEMON_MEMORY": "256m",
            **os.environ,
        }
        with standalone_cluster(Path(directory), environment, memory="16g") as master:
            words = [master if word == MASTER else word for word in command]
            return subprocess.run(words, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
