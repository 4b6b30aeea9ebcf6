"""Spark's side: topics (``register``) and traces (``TraceDataSource``) as data sources (docs/spark.md)."""

from broker.spark_source import TrivetDataSource, register
from spark_analysis.source import TraceDataSource

__all__ = ["TraceDataSource", "TrivetDataSource", "register"]
