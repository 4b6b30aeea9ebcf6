"""Options of the whole test suite, and what a failed test of it shows of the processes that it started."""

import gc
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, settings

from tests.evidence import log_ends
from tests.turns import TURNS, OneTurn

# How long an example takes says how busy the machine is. What Hypothesis sets by itself, as in CI, holds beside it.
settings.register_profile(
    "trivet", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("between edits", settings.get_profile("trivet"), max_examples=20)
settings.load_profile("trivet")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-scenarios",
        action="store_true",
        help="write what the scenarios cause into their files instead of comparing it",
    )
    parser.addoption(
        "--turn",
        type=int,
        metavar="N",
        help="of the tests that are run in turns only those of turn N; "
        f"{max(TURNS.values())} turns that follow each other run all",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.turn is not None:
        config.pluginmanager.register(OneTurn(config.option.turn))


ROOMS_FIRST = (
    "tests/spark_analysis/",
    "tests/broker/spark_source/",
    "tests/interop/",
    "tests/cluster/",
    "tests/wheel/",
    "tests/broker/console/test_browser",
    "tests/monitoring/",
)
"""Tests that are expensive to begin, or start real processes. They come first, those that take longest before others,
so that no process is left with one of them when the others are done; and Spark, which keeps a core busy, runs beside
those that mostly wait for other processes.
"""

BY_FILE = "tests/cluster/"
"""Of each of the other rooms one process runs all, for what its tests share. Here each begins with its own ones."""

TESTS_APART = ("tests/simulation/", "tests/raft/test_planted_bugs.py")
"""Single tests of these take seconds, and are shared out one by one, behind the rooms. Of all else a process runs a
file at a time: many tests are quicker than word of them.
"""


def rank(nodeid: str) -> int:
    """Returns which tests are run first: the rooms in their order, then long tests, then all others."""
    for number, room in enumerate((*ROOMS_FIRST, *TESTS_APART)):
        if nodeid.startswith(room):
            return number
    return len(ROOMS_FIRST) + len(TESTS_APART)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Every other process imports the files from the last to the first: what two compile anew they share so."""
    report = yield
    backwards = os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579"
    if backwards and isinstance(collector, pytest.Directory):
        report.result = report.result[::-1]
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (rank(item.nodeid), item.nodeid.split("::")[0]))  # the same in all processes


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports make millions of objects, and hardly one goes: garbage is looked for behind them, and no more in them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One process more than cores where all tests run: two of them mostly wait, for Spark and for real servers."""
    return len(os.sched_getaffinity(0)) + (not config.option.markexpr)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Shares the tests among the processes in the order of `rank`."""
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # by the number of tests, of which some take a millisecond

    class RoomScheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(TESTS_APART):
                return nodeid
            file = nodeid.split("::")[0]
            rooms = (room for room in ROOMS_FIRST if nodeid.startswith(room) and room != BY_FILE)
            room = next(rooms, file)
            return "spark" if "spark" in room else room

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
