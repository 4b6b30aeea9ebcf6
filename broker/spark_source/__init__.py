"""``spark.read.format("trivet")`` and ``spark.readStream.format("trivet")``: topics as DataFrames (docs/spark.md).

    from broker.spark_source import register
    register(spark)
    spark.read.format("trivet").option("nameServers", "127.0.0.1:9876").option("subscribe", "orders").load()

This room belongs to the broker and not to the analysis, which must not know the broker: it is a user of the client as
any other, and the only place under ``broker/`` that imports PySpark, which stays optional (``trivet[analysis]``).

`options.py` and `offsets.py` are pure: what the user wrote, and which offsets follow from it. `topic_reader.py` asks
brokers and pulls, one attempt after the other, on the client's calls. `rows.py` makes Arrow of messages. `source.py`
is what Spark sees.
"""

from broker.spark_source.source import TrivetDataSource, register

__all__ = ["TrivetDataSource", "register"]
