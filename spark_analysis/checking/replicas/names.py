"""The names of replicas. A node's name is its own within its group: where several groups recorded, the group's name
stands before it, broker-b/n0, in findings, counts and drawings alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def replica_name(group: str | None, node: str, groups: Sequence[str]) -> str:
    """The name of a group's node in a history in which ``groups`` recorded; "" is that of replicas that name none."""
    return f"{group}/{node}" if group and len(groups) > 1 else node


def groups_of(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """The groups of replicas that recorded."""
    return sorted({one["group"] or "" for one in events if one["kind"] not in ("fault", "note")})


def named_rows(events: Iterable[Mapping[str, Any]], groups: Sequence[str]) -> list[dict[str, Any]]:
    """The events with the names of their replicas as ``node``."""
    return [{**one, "node": replica_name(one["group"], one["node"], groups)} for one in events]


def named_events(events: DataFrame, groups: Sequence[str]) -> DataFrame:
    """As :func:`named_rows`."""
    from pyspark.sql import functions as sf

    if len(groups) < 2:
        return events
    return events.withColumn("node", sf.concat_ws("/", sf.nullif("group", sf.lit("")), "node"))


def group_before(name: str, groups: Sequence[str]) -> str:
    """What stands before the node in a replica's name: "broker-b/", or nothing where names have no group."""
    return next((f"{one}/" for one in groups if len(groups) > 1 and name.startswith(f"{one}/")), "")
