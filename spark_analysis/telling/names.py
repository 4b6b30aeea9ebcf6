"""Names of clients, on a terminal as in a report: a client's identity is a number that nobody knows, its process has a
name.

A client is called by the process that recorded it. If that recorded several, a number follows: its place among them by
the time of its first operation, whatever else is shown. A client that several processes recorded keeps its identity.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from spark_analysis.checking.verdict import Anomaly, Verdict
from spark_analysis.importing.history import History

NAMED_MAX: Final = 500


def names_of(history: History, operations: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Ask for the names of the clients of ``operations``; returns identity -> name. One query."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    clients = sorted({str(one["client"]) for one in operations if one.get("client") is not None})
    if history.recorders is None or not clients:
        return {}
    # The places are counted over all clients of a process before those that are shown are chosen: a client keeps its
    # name whatever else a page shows.
    of_recorder = Window.partitionBy("recorder")
    return names_from(
        history.recorders.groupBy("client", "recorder")
        .agg(sf.min("invoke_ns").alias("begin"))
        .withColumn("place", sf.row_number().over(of_recorder.orderBy("begin", "client")))
        .withColumn("clients", sf.count(sf.lit(1)).over(of_recorder))
        .where(sf.col("client").isin(clients))
        .orderBy("client", "recorder")
        .limit(NAMED_MAX)
        .collect()
    )


def names_from(found: Iterable[Any]) -> dict[str, str]:
    """Choose the names; returns identity -> name. Of each row, ``recorder`` recorded ``client``, as number ``place``
    (from 1) of its ``clients``."""
    by_client: dict[str, list[Any]] = {}
    for one in found:
        if one.recorder:
            by_client.setdefault(one.client, []).append(one)
    return {
        client: f"{one.recorder} #{one.place}" if one.clients > 1 else str(one.recorder)
        for client, (one, *others) in by_client.items()
        if not others
    }


def operations_of(anomalies: Iterable[Anomaly]) -> list[dict[str, Any]]:
    """The operations that prove the anomalies."""
    return [operation for one in anomalies for operation in one.proof]


def named(operation: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the operation with its client's name as ``client``, if it has one, and the client's ``identity`` beside
    it."""
    name = names.get(operation.get("client", ""))
    return operation if name is None else operation | {"client": name, "identity": operation["client"]}


def with_names(verdict: Verdict, names: Mapping[str, str]) -> Verdict:
    """Return the verdict with named clients in all proofs."""
    anomalies = (
        replace(one, proof=tuple(named(operation, names) for operation in one.proof))
        for one in verdict.anomalies
    )
    return replace(verdict, anomalies=tuple(anomalies)) if names else verdict


def identities(operations: Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
    """(name, identity) of those that have both, in the order of their names."""
    return sorted({(one["client"], one["identity"]) for one in operations if "identity" in one})
