"""The analysis of short histories in this process: the same verdicts and pages as Spark's, without the seconds that
Java and Spark take to start."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_analysis.checking.keyed import judge_file_here
from spark_analysis.checking.small import MOST_ROWS_SETTING, check_rows
from spark_analysis.checking.verdict import Verdict, corrected_for_gaps
from spark_analysis.importing.history_rows import HistoryRows, json_line_rows, trace_rows

if TYPE_CHECKING:
    from spark_analysis.checking.search import Budget

MOST_ROWS: Final = 150_000
MOST_VALUES: Final = 500_000
"""Beyond these many rows and values a history goes to Spark, whose tasks share it."""
JUDGED_BY: Final = "this process"


def judge_log(
    path: Path, format: str, *, drained: bool = False, sparse: bool = False, until_ns: int | None = None
) -> tuple[Verdict, HistoryRows] | None:
    """Judge a history of a log; returns the verdict, and the rows for its page. None if it is too long for this.

    ``until_ns``: only what happened up to then is judged."""
    history = (trace_rows if format == "trace" else json_line_rows)(str(path.resolve()))
    most = int(os.environ.get(MOST_ROWS_SETTING, MOST_ROWS))
    if history is None or history.values > MOST_VALUES:
        return None
    if len(history.operations) + len(history.events) + len(history.damage) > most:
        return None
    whole = history
    if until_ns is not None:
        history = whole.until(until_ns)
    verdict = check_rows(str(path), list(history.records()), drained=drained, sparse=sparse)
    if until_ns is not None:
        verdict = verdict.judged_until(until_ns, len(whole.operations) - len(history.operations))
    verdict = replace(verdict, facts=verdict.facts | {"judged_by": JUDGED_BY})
    return corrected_for_gaps(verdict), replace(history, path=str(path))


def judge_keyed(path: Path, format: str, model: str, budget: Budget | None) -> Verdict:
    """Judge a history of another model."""
    verdict = judge_file_here(str(path.resolve()), format, model, budget)
    verdict = replace(verdict, path=str(path), facts=verdict.facts | {"judged_by": JUDGED_BY})
    return corrected_for_gaps(verdict)
