"""Who the clients of a report are: a client's identity is a number that nobody knows, its process has a name.

A client is called by the process that recorded it, with a number where that recorded several of those shown. One that
several processes recorded keeps its identity.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from spark_analysis.history import History
from spark_analysis.report.tables import ReportData, Window
from spark_analysis.verdict import Anomaly, Verdict

NAMED_MAX: Final = 500


def names_of(history: History, anomalies: Iterable[Anomaly], windows: Iterable[Window]) -> dict[str, str]:
    """Identity -> name of the clients that a report shows; one query."""
    from pyspark.sql import functions as sf

    operations = [one for anomaly in anomalies for one in anomaly.proof]
    operations += [one for window in windows for one in window.operations]
    clients = sorted({str(one["client"]) for one in operations if one.get("client") is not None})
    if history.recorders is None or not clients:
        return {}
    rows = (
        history.recorders.where(sf.col("client").isin(clients))
        .groupBy("client", "recorder")
        .agg(sf.min("invoke_ns").alias("begin"))
        .orderBy("begin", "client", "recorder")
        .limit(NAMED_MAX)
        .collect()
    )
    return names_from((row["client"], row["recorder"]) for row in rows)


def names_from(pairs: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Identity -> name, from (client, recorder) in the order in which they appeared."""
    recorders, clients = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for client, recorder in pairs:
        if recorder:
            recorders[client].append(recorder)
            clients[recorder].append(client)
    names = {}
    for client, (recorder, *others) in recorders.items():
        if not others:
            same = clients[recorder]
            names[client] = recorder if len(same) == 1 else f"{recorder} #{same.index(client) + 1}"
    return names


def with_names(verdict: Verdict, data: ReportData) -> tuple[Verdict, ReportData]:
    """The same with ``client`` being a name where there is one; its ``identity`` stands beside it."""
    if not data.names:
        return verdict, data

    def named(operation: dict[str, Any]) -> dict[str, Any]:
        name = data.names.get(operation.get("client", ""))
        return operation if name is None else operation | {"client": name, "identity": operation["client"]}

    anomalies = tuple(replace(one, proof=tuple(map(named, one.proof))) for one in verdict.anomalies)
    windows = {
        place: replace(window, operations=tuple(map(named, window.operations)))
        for place, window in data.windows.items()
    }
    return replace(verdict, anomalies=anomalies), replace(data, windows=windows)


def identities(operations: Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
    """(name, identity) of those that have both, in the order of their names."""
    return sorted({(one["client"], one["identity"]) for one in operations if "identity" in one})
