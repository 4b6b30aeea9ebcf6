"""The small tables on the driver that a report is made of: :mod:`.data` fills them, the rest is functions of them."""

from dataclasses import dataclass, field
from typing import Any

from spark_analysis.telling.report.run_figure import Panel


@dataclass(frozen=True, slots=True)
class TracedEvent:
    """A record of a replica or a driver, at ``time_ns``; the columns of schema.EVENT_TABLE that a report shows.

    ``node`` is the replica's name in the history (:mod:`spark_analysis.checking.replicas.names`)."""

    node: str
    kind: str
    time_ns: int
    role: str | None = None
    term: int | None = None
    first_index: int | None = None
    last_index: int | None = None
    digest: int | None = None
    detail: str | None = None
    targets: tuple[str, ...] = ()
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """The operations of a proof, between ``begin_ns`` and ``end_ns``, and those on the same queue around it."""

    begin_ns: int
    end_ns: int
    low_ns: int
    high_ns: int
    proof: tuple[int, ...] = ()
    """The operations (``op``) that prove the finding."""
    operations: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class ReportData:
    """``windows`` and ``evidence`` are by the finding's place in ``Verdict.anomalies``; ``names`` by client."""

    events: tuple[TracedEvent, ...] = ()
    panels: tuple[Panel, ...] = ()
    windows: dict[int, Window] = field(default_factory=dict)
    evidence: dict[int, tuple[TracedEvent, ...]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
