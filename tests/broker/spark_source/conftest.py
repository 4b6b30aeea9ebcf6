"""The client's fake network, and one small Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_analysis.session import AnalysisUnavailableError, require_environment, start_session
from tests.broker.client.conftest import broker, world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["broker", "world"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    try:
        require_environment()
    except AnalysisUnavailableError as error:
        pytest.skip(str(error))
    from broker.spark_source import register

    session = start_session("local[2]", driver_memory="1g", shuffle_partitions=2, small=True)
    register(session)
    yield session
    session.stop()
