"""One small Spark session for all tests that need it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_analysis.session import AnalysisUnavailableError, require_environment, start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks each test of this room that needs the session, as starting one costs more than most of them."""
    room = Path(__file__).parent
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and item.path.is_relative_to(room):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    try:
        require_environment()
    except AnalysisUnavailableError as error:
        pytest.skip(str(error))
    session = start_session("local[2]", driver_memory="1g", shuffle_partitions=2, small=True)
    yield session
    session.stop()
