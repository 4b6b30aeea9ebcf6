"""The Java that the analysis starts."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from broker.trace import TraceHeader, TraceWriter
from spark_analysis.session import LARGE_JVM, SMALL_JVM, java_major_version, quiet_interrupts


@pytest.mark.spark
@pytest.mark.skipif(java_major_version() is None, reason="needs Java")
@pytest.mark.parametrize("options", [LARGE_JVM, SMALL_JVM])
def test_warnings_of_java_stay_out_of_standard_output(options: str) -> None:
    too_large = ["-Xmx64m", "-Xmn128m"]  # a young generation larger than the heap: Java warns and goes on
    completed = subprocess.run(
        ["java", *options.split(), *too_large, "-version"], capture_output=True, text=True, check=True
    )
    assert "[warning]" in completed.stderr
    assert completed.stdout == ""


def test_an_interrupt_is_not_told_by_those_whom_it_meets(caplog: pytest.LogCaptureFixture) -> None:
    """PySpark's handler would ask Java to cancel jobs, and py4j logs every call that an interrupt ends."""
    before = signal.signal(signal.SIGINT, lambda *_: pytest.fail("PySpark's handler"))
    try:
        with quiet_interrupts():
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            logging.error("KeyboardInterrupt while sending command.")  # as py4j does
            logging.error("another thing")
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert [record.message for record in caplog.records] == ["another thing"]


_AHEAD = """
import sys, threading
from pathlib import Path
from spark_analysis import session
from spark_analysis.main import Asked, analyze

thread = threading.Thread(target=session.start_ahead)
thread.start()
thread.join()
ahead = session._ahead
assert ahead is not None
assert not session.has_session(), "what was started ahead is the analysis's own"
assert analyze(Asked([Path(sys.argv[1])])) == 0
assert ahead.sparkContext._jsc is None, "the analysis has used it, and has stopped it as its own"
assert session._ahead is None
"""


@pytest.mark.spark
@pytest.mark.skipif(java_major_version() is None, reason="needs Java")
def test_an_analysis_uses_the_session_that_another_thread_has_started_ahead(tmp_path: Path) -> None:
    history = tmp_path / "one.trace"
    with history.open("wb") as file:
        writer = TraceWriter(file.write, TraceHeader("client", "one", "c", 0))
        writer.ok_append(2000, writer.invoke_append(1000, "producer", "orders/2", ["u-1"]), 0)
        writer.flush()
    done = subprocess.run(
        [sys.executable, "-c", _AHEAD, str(history)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "LINEARIZABLE" in done.stdout


_NEVER_READY = """#!/bin/sh
sleep 120 &
echo $$ $! > "$PIDS.tmp"
mv "$PIDS.tmp" "$PIDS"
wait
"""
_STARTS = """
import sys
from pathlib import Path
from spark_analysis.main import Asked, analyze

analyze(Asked([Path(sys.argv[1])], format="jsonl", spark_wanted=True))
"""


@pytest.mark.spark
@pytest.mark.skipif(java_major_version() is None, reason="needs Java")
def test_an_interrupt_while_java_starts_ends_java(tmp_path: Path) -> None:
    """Java ran on for ten minutes, and whoever read the output waited for its end."""
    history, pids, script = tmp_path / "one.jsonl", tmp_path / "pids", tmp_path / "bin" / "spark-submit"
    history.write_text('{"process": "a", "type": "invoke", "f": "tail", "key": "q", "time": 1}\n')
    script.parent.mkdir()
    script.write_text(_NEVER_READY)
    script.chmod(0o755)
    environment = os.environ | {"SPARK_HOME": str(tmp_path), "PIDS": str(pids)}
    starts = subprocess.Popen(
        [sys.executable, "-c", _STARTS, str(history)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
    )
    try:
        deadline = time.monotonic() + 60
        while not pids.exists():
            assert time.monotonic() < deadline, "Spark was not started"
            time.sleep(0.05)
        starts.send_signal(signal.SIGINT)
        said, _ = starts.communicate(timeout=30)  # up to its end: nobody who could write has been left
        assert b"KeyboardInterrupt" in said
    finally:
        starts.kill()
        for pid in pids.read_text().split() if pids.exists() else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
