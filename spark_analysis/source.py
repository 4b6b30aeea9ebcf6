"""``spark.read.format("trivet_trace")``, and ``readStream``: traces as one table, with the columns of
docs/trace-schema.md."""

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from spark_analysis.importing import schema as tables
from spark_analysis.importing.trace_reader import TraceReader
from spark_analysis.importing.trace_stream import TraceStreamReader


class TraceDataSource(DataSource):
    """Options: ``path`` (from ``load``: a file, a directory of ``*.trace``, or a glob), ``splitBytes``; of streams
    ``maxBytesPerTrigger`` and ``settleSeconds``."""

    @classmethod
    def name(cls) -> str:
        return "trivet_trace"

    def schema(self) -> str:
        return tables.RECORDS

    def reader(self, schema: StructType) -> DataSourceReader:
        return TraceReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return TraceStreamReader(self.options)
