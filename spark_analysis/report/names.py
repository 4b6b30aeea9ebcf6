"""Who the clients of a report are: a client's identity is a number that nobody knows, its process has a name.

A process that recorded one client names it. Where one recorded several, or several one, identities stay.
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
        .distinct()
        .orderBy("client", "recorder")
        .limit(NAMED_MAX)
        .collect()
    )
    return one_to_one((row["client"], row["recorder"]) for row in rows)


def one_to_one(pairs: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Of (client, recorder) those in which both stand once."""
    recorders, clients = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for client, recorder in pairs:
        if recorder:
            recorders[client].add(recorder)
            clients[recorder].add(client)
    return {
        client: recorder
        for client, (recorder, *others) in recorders.items()
        if not others and len(clients[recorder]) == 1
    }


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
