"""Trivet's commands for topics on a broker of RocketMQ 4.9, which knows no question for one topic's settings. Part of
``make interop``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.interop.artifacts import REFERENCE_VERSION
from tests.interop.configured import TRIVET
from tests.interop.conftest import available
from tests.interop.reference import ReferenceCluster

pytestmark = [pytest.mark.trivet_only, pytest.mark.slow, pytest.mark.in_turn]


def test_topics_are_created_and_told_and_there_is_no_status(tmp_path: Path) -> None:
    with available():
        reference = ReferenceCluster(tmp_path, 1, version=REFERENCE_VERSION)

    def trivet(*words: str, exit_code: int = 0) -> str:
        done = subprocess.run(
            [TRIVET, *words, "--namesrv", reference.name_server],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == exit_code, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    try:
        trivet("topic", "create", "orders", "--queues", "3")
        trivet("topic", "alter", "orders", "--queues", "5", "--yes")
        (broker,) = json.loads(trivet("topic", "stats", "orders", "--json"))["brokers"]
        assert (broker["read_queues"], len(broker["queues"])) == (5, 5)
        (node,) = json.loads(trivet("status", "--json", exit_code=1))["nodes"]
        assert "mqadmin clusterList" in node["error"]
        assert "90001" in trivet("doctor", exit_code=1)
    finally:
        reference.stop()
