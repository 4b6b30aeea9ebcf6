"""One small Spark session for all tests that need it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_analysis.session import AnalysisUnavailableError, require_environment, start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    try:
        require_environment()
    except AnalysisUnavailableError as error:
        pytest.skip(str(error))
    session = start_session("local[2]", driver_memory="1g", shuffle_partitions=2, small=True)
    yield session
    session.stop()
