"""``from trivet.analysis import check``: is a history linearizable, in which order, and what contradicts what
(docs/analysis.md)."""

from spark_analysis.api import HistoryError, Judgement, Operation, check
from spark_analysis.judge_state import StateError
from spark_analysis.streaming import StreamJudge

__all__ = ["HistoryError", "Judgement", "Operation", "StateError", "StreamJudge", "check"]
