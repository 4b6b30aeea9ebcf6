"""``from trivet.analysis import StreamJudge``: the queues of a history that Spark streams (docs/checker.md, "A history
that grows").

Reading is Spark's, spread over executors; judging is one :class:`FollowedLog`, in the process that runs the query.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_analysis.api import HistoryError, Judgement, check_columns, check_operation
from spark_analysis.checking.proofs import DAMAGES_LISTED, damage_facts
from spark_analysis.checking.queues.following import JUDGED, FollowedLog, KeptLog
from spark_analysis.checking.small import operation_of
from spark_analysis.checking.verdict import (
    LINEARIZABLE,
    MISSING_MAY_EXPLAIN,
    UNDECIDED,
    VIOLATED,
    Anomaly,
    Verdict,
    corrected_for_gaps,
    unsure_place,
)
from spark_analysis.importing import schema
from spark_analysis.importing.halves import Halves, KeptHalves
from spark_analysis.judge_state import JudgeState, StateError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_analysis.checking.queues.unknown_appends import Finding

_SECOND_NS: Final = 10**9
_NOT_JUDGED: Final = tuple(one for one in schema.FUNCTIONS if one not in JUDGED)
_WANTED: Final = {"record", "file", "position", "time_ns", "kind", "detail", *schema.OPERATION_NAMES} - {
    "group"
}


@dataclass(frozen=True, slots=True)
class KeptJudge:
    """A judge between two batches: plain data, to be written down (:mod:`spark_analysis.judge_state`)."""

    settings: dict[str, bool | float | None]
    query: str | None
    next_batch: int
    read_to_ns: int | None
    latest_ns: int | None
    operations: int
    answered: int
    findings: list[Anomaly]
    untold: list[Anomaly]
    damage: list[str]
    damages: dict[str, int]
    halves: KeptHalves
    log: KeptLog


class StreamJudge:
    """Judges one stream, to be given to ``writeStream.foreachBatch``; ``told`` is called with each violation at once.

    The stream has the rows of ``readStream.format("trivet_trace")``, which say up to which moment all has been read; or
    operations from anywhere (columns of docs/trace-schema.md), and ``delay_s`` is a promise: what comes later began no
    more than that before the latest invocation or completion that has come. ``sparse`` is for offsets that hold what no
    client sees. An operation that is open for ``patience_s`` is taken for one of unknown outcome.

    What is known is in memory: a query that begins at a checkpoint of another judge is refused with
    :class:`HistoryError`, one that failed and is started again with this one goes on. With ``state``, a directory on a
    disk of the driver's, it is also written down there with each batch: another judge with the same settings takes it
    up, and the query goes on with its checkpoint. Raises :class:`StateError` if it cannot.
    """

    def __init__(
        self,
        told: Callable[[Anomaly], object] | None = None,
        *,
        sparse: bool = False,
        delay_s: float | None = None,
        patience_s: float = 60.0,
        state: str | Path | None = None,
    ) -> None:
        self.read_to_ns: int | None = None
        """Everything that happened before is judged, on the history's clock."""
        self._tell = told or (lambda one: None)
        self._delay_ns = None if delay_s is None else int(delay_s * _SECOND_NS)
        self._patience_ns = int(patience_s * _SECOND_NS)
        self._settings = {"sparse": sparse, "delay_s": delay_s, "patience_s": patience_s}
        self._state = None if state is None else JudgeState(state)
        self._log = FollowedLog(sparse=sparse, words=self._state)
        self._halves = Halves()
        self._findings: dict[Anomaly, None] = {}
        self._damage: list[str] = []
        self._damages: Counter[str] = Counter()
        self._untold: list[Anomaly] = []
        self._operations = self._answered = 0
        self._latest_ns: int | None = None
        self._query: str | None = None
        self._next_batch = 0
        self._is_inside = self._is_unsaved = False
        if self._state is not None:
            self._take_up(self._state)

    @property
    def findings(self) -> tuple[Anomaly, ...]:
        """All that was told: queue (``key``), ``kind``, ``position`` and ``explanation`` of each."""
        return tuple(self._findings)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Judge a batch of the query. Raises :class:`HistoryError`."""
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if self._is_due(query, batch_id):
            if self._delay_ns is None and "record" not in batch.columns:
                raise HistoryError("nothing in the stream says how far it has come: delay_s has to")
            # Spark asks for the next batch only when all of the one before was told.
            self._untold.clear()
            parts = _to_judge(batch).toArrow().to_batches()
            self._untold += self.take(chain.from_iterable(part.to_pylist() for part in parts))
            self._query, self._next_batch, self._is_unsaved = query, batch_id + 1, True
        if self._state is not None and self._is_unsaved:
            self._state.save(self._known())
            self._is_unsaved = False
        # Findings of a call that failed are told when Spark repeats the batch.
        while self._untold:
            self._tell(self._untold[0])
            del self._untold[0]

    def _is_due(self, query: str | None, batch_id: int) -> bool:
        """False for a batch that was taken already, which Spark repeats if it could not note that down."""
        if self._query not in (None, query):
            raise HistoryError(
                f"this judge has taken batches of query {self._query}: {query} needs another one"
            )
        self._check_whole()
        if batch_id > self._next_batch:
            raise HistoryError(
                f"the query goes on with batch {batch_id} of its checkpoint, and this judge knows {self._next_batch} "
                "of those before: what they said was in the memory of another one. Begin with a new checkpoint"
                f"{'' if self._state is None else ' and an empty directory'}"
            )
        if batch_id < self._next_batch - 1:
            raise HistoryError(
                f"the query goes on with batch {batch_id} of its checkpoint, and this judge knows those up to "
                f"{self._next_batch - 1}: the checkpoint is an older one. Begin with a new one and a new judge"
            )
        return batch_id == self._next_batch

    def _known(self) -> KeptJudge:
        return KeptJudge(
            *(self._settings, self._query, self._next_batch, self.read_to_ns, self._latest_ns),
            *(self._operations, self._answered, list(self._findings), self._untold),
            *(self._damage, self._damages, self._halves.kept(), self._log.kept()),
        )

    def _take_up(self, state: JudgeState) -> None:
        try:
            known = state.load(KeptJudge)
            if known is not None and known.settings != self._settings:
                raise StateError(
                    f"{state.path} is of a judge with the settings {known.settings}, and this one has {self._settings}"
                )
        except StateError:
            state.close()
            raise
        if known is not None:
            self._query, self._next_batch = known.query, known.next_batch
            self.read_to_ns, self._latest_ns = known.read_to_ns, known.latest_ns
            self._operations, self._answered = known.operations, known.answered
            self._findings, self._untold = dict.fromkeys(known.findings), known.untold
            self._damage, self._damages = known.damage, Counter(known.damages)
            self._halves.go_on(known.halves)
            self._log.go_on(known.log)

    def _check_whole(self) -> None:
        if self._is_inside:
            raise HistoryError(
                f"batch {self._next_batch} failed, and what of it was judged is not known: begin anew"
            )

    def take(self, rows: Iterable[Mapping[str, Any]]) -> list[Anomaly]:
        """Judge rows with the columns of docs/trace-schema.md; returns what is wrong by now, each finding once. Raises
        :class:`HistoryError`."""
        self._check_whole()
        self._is_inside = True
        pieces: list[Mapping[str, Any]] = []
        for row in rows:
            if row["record"] == "operation":
                self._take(row)
            else:
                pieces.append(row)
        # In a batch the rows of a file are not in their order, but for whole operations that need not be.
        for row in sorted(pieces, key=lambda row: row["position"] or 0):
            if row["record"] == "read_to":
                if self._delay_ns is None:
                    before_ns = self.read_to_ns
                    self.read_to_ns = row["time_ns"] if before_ns is None else max(row["time_ns"], before_ns)
            else:
                for one in self._halves.take(row):
                    (self._take_damage if one["record"] == "damage" else self._take)(one)
        found = self._settled()
        self._is_inside = False
        return found

    def _settled(self) -> list[Anomaly]:
        if self._delay_ns is not None and self._latest_ns is not None:
            self.read_to_ns = self._latest_ns - self._delay_ns
        if self.read_to_ns is None:
            return self._noted(self._log.settle(-inf))
        for one in self._halves.give_up(self.read_to_ns - self._patience_ns):
            if one["function"] in JUDGED:
                self._log.take(one["key"], operation_of(one), is_given_up=True)
        oldest_ns = self._halves.oldest_open_ns()
        return self._noted(
            self._log.settle(self.read_to_ns if oldest_ns is None else min(oldest_ns, self.read_to_ns))
        )

    def _noted(self, found: Iterable[tuple[str, Finding]]) -> list[Anomaly]:
        anomalies = _anomalies(found)
        self._findings.update(dict.fromkeys(anomalies))
        return anomalies

    def _take_damage(self, row: Mapping[str, Any]) -> None:
        self._log.is_damaged = True
        self._damages[row["kind"]] += 1
        if len(self._damage) < DAMAGES_LISTED:
            self._damage.append(f"{row['file']}: byte {row['position']}: {row['detail']}")

    def _take(self, row: Mapping[str, Any]) -> None:
        if row["op"] is None:
            row = {**row, "op": self._operations}
        check_operation(row["op"], row)
        if row["function"] not in JUDGED:
            return
        at_ns = row["invoke_ns"] if row["complete_ns"] is None else row["complete_ns"]
        self._latest_ns = at_ns if self._latest_ns is None else max(at_ns, self._latest_ns)
        self._operations += 1
        self._answered += row["outcome"] == "ok"
        self._log.take(row["key"], operation_of(row))

    def finish(self, *, is_over: bool = False) -> Judgement:
        """The judgement of all that happened before :attr:`read_to_ns`, when the query has ended; releases what was
        held. ``is_over``: the recording is over and has been read to its end, so what is still open was never answered
        and what came late is all there is. Raises :class:`HistoryError` after a batch that failed."""
        try:
            self._check_whole()
            return self._judged(is_over=is_over)
        finally:
            self._log.close()

    def _judged(self, *, is_over: bool) -> Judgement:
        late, found = self._log.late, list(self._findings)
        doubtful = [one for one in found if late and one.kind in MISSING_MAY_EXPLAIN]
        operations = self._operations + sum(one["function"] in JUDGED for one in self._halves.open)
        if is_over:
            for row in self._halves.give_up(inf):
                if row["function"] in JUDGED:
                    self._log.take(row["key"], operation_of(row))
            last = _anomalies(self._log.last())
            self._findings.update(dict.fromkeys(last))
            found = list(self._findings)
            doubtful = [one for one in doubtful if one not in last]
        found = [one for one in found if one not in doubtful]
        undecided = [f"{unsure_place(one)}; it may be explained by what came late" for one in doubtful]
        if self.read_to_ns is None and not is_over:
            undecided.append("nothing in the stream has said yet how far it had come")
        if late:
            undecided.append(f"{late} operations came late: nothing tells if they were early enough")
        if self._damages.total() > self._damages["cut"]:
            undecided.append("parts could not be read: what is there may be a violation")
        if self._log.is_unsure:
            undecided.append("what appends of unknown outcome have done is not decided")
        verdict = Verdict(
            path="",
            verdict=VIOLATED if found else UNDECIDED if undecided else LINEARIZABLE,
            operations=operations,
            counts=dict(sorted(Counter(one.kind for one in found).items())),
            anomalies=tuple(found),
            undecided=tuple(undecided),
            damage=tuple(self._damage),
            facts={
                "answered": self._answered,
                "read_to_ns": self.read_to_ns,
                **damage_facts(self._damages),
                "judged_by": "a stream",
            },
        )
        return Judgement(verdict if found else corrected_for_gaps(verdict))


def _anomalies(found: Iterable[tuple[str, Finding]]) -> list[Anomaly]:
    return list(dict.fromkeys(Anomaly(one.kind, key, one.position) for key, one in found))


def _to_judge(batch: DataFrame) -> DataFrame:
    """The columns of schema.RECORDS that say something about queues, of the rows that do. Raises HistoryError."""
    from pyspark.sql import functions as sf

    check_columns(batch, "the stream")
    columns = {
        name: (sf.col(name) if name in batch.columns else sf.lit(None)).cast(kind)
        for name, kind, _ in schema.RECORD_COLUMNS
        if name in _WANTED
    }
    columns["record"] = sf.coalesce(columns["record"], sf.lit("operation"))
    # Halves all come: a number that is used again ends what was open under it, whatever its function was.
    is_left_out = (sf.col("record") == "operation") & sf.coalesce(
        sf.col("function").isin(*_NOT_JUDGED), sf.lit(False)
    )
    rows = batch.select(*(column.alias(name) for name, column in columns.items()))
    return rows.where(~is_left_out & (sf.col("record") != "event"))
