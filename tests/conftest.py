"""Options of the whole test suite, and what a failed test of it shows of the processes that it started."""

from collections.abc import Generator
from pathlib import Path

import pytest
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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps tests that share something expensive in one worker.

    So there is one Spark session, and not two groups of real processes of the same kind compete for the processors.
    """
    for item in items:
        for kind in ("spark", "interop", "cluster"):
            if item.get_closest_marker(kind) or kind in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(kind))
                break


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and isinstance(folder, Path):
        report.sections.extend(log_ends(folder))
    return report
