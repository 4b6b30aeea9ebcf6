"""A failed test shows its processes' logs, which are needed when nobody can run the test again."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.evidence import LINES_OF_A_FILE, log_ends, telling_lines
from tests.interop.processes import Child, evidence

DRIVER = """
import json, pathlib, sys
pathlib.Path("logs").mkdir()
log = pathlib.Path("logs/7_client.log.0")
log.write_text("connected\\n" * 100 + "GetTransport: timeout\\n" + "sent\\n" * 100)
print("no event")
for index in range(30):
    print(json.dumps({"event": "sent" if index else "failed", "index": index}))
print("Traceback", file=sys.stderr)
sys.exit(3)
"""


def test_processes_and_their_logs_are_shown(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", DRIVER], log=tmp_path / "0-send.log", cwd=tmp_path)
    assert child.wait_for_end(60) == 3

    shown = dict(evidence())
    account = shown[f"process {tmp_path.name}/0-send"].splitlines()
    assert account[0] == "ended with status 3; {'failed': 1, 'sent': 29}"
    assert '{"event": "failed", "index": 0}' in account
    assert account[-2:] == ['{"event": "sent", "index": 29}', "no event"]
    assert shown[f"{tmp_path.name}/0-send.log"] == "Traceback"
    log = shown[f"{tmp_path.name}/logs/7_client.log.0"].splitlines()
    assert log[0] == f"({LINES_OF_A_FILE} of 201 lines)"
    assert log[1] == "GetTransport: timeout"
    assert log[2:] == ["sent"] * (LINES_OF_A_FILE - 1)


def test_a_report_stays_short(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}.log").write_text("failed " * 1000 + "\n" + "x" * 10_000)
    assert sum(len(text) for _, text in log_ends(tmp_path)) < 10_000
    assert telling_lines(["a", "b"]) == ["a", "b"]
