"""``spark.read.format("trivet")`` and ``spark.readStream.format("trivet")``: topics as DataFrames (docs/spark.md).

    from trivet.spark import register
    register(spark)
    spark.read.format("trivet").option("nameServers", "127.0.0.1:9876").option("subscribe", "orders").load()

This room belongs to the broker, since it is a user of the client; the analysis must not know the broker. It is the only
room of ``broker/`` that imports PySpark, which stays optional (``trivet[analysis]``).

`options.py` and `offsets.py` are pure functions: they check what the user wrote, and compute offsets from it.
`topic_reader.py` asks brokers and pulls, with the client's calls. `rows.py` turns messages into Arrow. `source.py` has
the classes that Spark calls. `shipping.py` brings the code to executors.
"""

from broker.spark_source.source import TrivetDataSource, register

__all__ = ["TrivetDataSource", "register"]
