"""The public answer: ``check(history)`` puts the checkers' findings together into one verdict with proofs.

A history that one task holds is judged there (:mod:`spark_analysis.checking.small`), any other by the DataFrames of
:mod:`spark_analysis.checking.distributed`; both fill a :class:`spark_analysis.checking.proofs.Gathered`, so the answer
is the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spark_analysis.checking.distributed import check_distributed
from spark_analysis.checking.small import check_in_one_task

if TYPE_CHECKING:
    from spark_analysis.checking.verdict import Verdict
    from spark_analysis.importing.history import History


def check(history: History, *, drained: bool = False, sparse: bool = False) -> Verdict:
    """Judge a history against the log model, the registers of committed offsets, and Raft's invariants.

    ``drained``: at the end readers have read every queue to its end, so that a value that nobody saw is lost.
    ``sparse``: offsets may hold what no client sees, as Kafka's do with transactions or compaction. The verdict's
    ``facts`` say ``judged_by`` how many tasks.
    """
    verdict, judged_by = check_in_one_task(history, drained=drained, sparse=sparse), "one task"
    if verdict is None:
        verdict, judged_by = check_distributed(history, drained=drained, sparse=sparse), "many tasks"
    return replace(verdict, facts=verdict.facts | {"judged_by": judged_by})
