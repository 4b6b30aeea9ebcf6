"""Options of the whole test suite, and what a failed test of it shows of the processes that it started."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, settings

from tests.evidence import log_ends

# How long an example takes says how busy the machine is. What Hypothesis sets by itself, as in CI, holds beside it.
settings.register_profile(
    "trivet", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("trivet")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-scenarios",
        action="store_true",
        help="write what the scenarios cause into their files instead of comparing it",
    )


ROOMS_TOGETHER = (
    "tests/spark_analysis/",
    "tests/broker/spark_source/",
    "tests/broker/console/test_browser.py",
    "tests/cluster/",
    "tests/monitoring/",
    "tests/interop/",
    "tests/wheel/",
)
"""Tests that are expensive to begin, or start real processes: of each of these rooms, one process runs all."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Shares the tests among the processes one by one, but for the rooms that stay together."""
    from xdist.scheduler import LoadScopeScheduling

    class RoomScheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            room = next((room for room in ROOMS_TOGETHER if nodeid.startswith(room)), nodeid)
            return "spark" if "spark" in room.split("::")[0] else room

    return RoomScheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test runs on the clock that any of its fixtures asks for: pytest-trio looks at the test's own arguments."""
    clock = getattr(item, "funcargs", {}).get("autojump_clock")
    if clock is not None:

        def run(main: Any, **options: Any) -> Any:
            return trio.run(main, **{**options, "clock": clock})

        item.add_marker(pytest.mark.trio(run=run), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and isinstance(folder, Path):
        report.sections.extend(log_ends(folder))
    return report
