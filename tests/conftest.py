"""Options of the whole test suite."""

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is. What Hypothesis sets by itself, as in CI, holds beside it.
settings.register_profile(
    "trivet", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("trivet")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-scenarios",
        action="store_true",
        help="write what the consensus scenarios do into their files instead of comparing it",
    )
