"""The log checker in plain Python: the statement of the rules that Spark applies at scale.

It is to be read next to docs/checker.md, and tests compare it: with a brute-force search on small histories, and with
:mod:`spark_analysis.checking.queues.log_model` on many. It also judges histories that one task holds
(:mod:`spark_analysis.checking.small`), so it names its findings as the DataFrames do. Clarity goes before speed; it is
O(n log n) all the same.

The model: a queue is a growing list of values. ``append`` of k values is k single appends at consecutive offsets, with
nothing between them. Each takes effect somewhere inside the operation's interval, so a reader may see the first values
of a batch before the last: that is all that RocketMQ promises. An append of unknown outcome may have taken effect for
any number of its first values, at any time after its invocation. ``read`` at an offset returns values from there on, or
nothing if the list ends there or before. ``tail`` returns the list's length. ``poll`` is a read whose place the reader
does not name: the values that it returns say where they are; that it returns nothing says nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_analysis.checking.queues.attempts import Attempt, Hole, Seen
from spark_analysis.checking.queues.knowledge import (
    Axis,
    Operation,
    Position,
    missed_what_was_known,
    state,
    sweep,
    torn_reads,
    wrong_at,
)
from spark_analysis.checking.queues.unknown_appends import Finding, contested, served, settle, wanted_by
from spark_analysis.checking.verdict import LINEARIZABLE, UNDECIDED, VIOLATED


@dataclass(frozen=True, slots=True)
class QueueFindings:
    """The findings about one queue, the places that could not be decided, and the knowledge about each offset."""

    findings: list[Finding]
    unsure: list[Finding]
    positions: dict[int, Position]


@dataclass(frozen=True, slots=True)
class Swept:
    """A queue after its sweep: findings that need no further look, and places that appends of unknown outcome must
    explain."""

    positions: dict[int, Position]
    findings: list[Finding] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)


def check_queue(operations: Sequence[Operation], *, sparse: bool = False) -> tuple[str, list[Finding]]:
    """Judge one queue; returns the verdict with the findings, or with the places that could not be decided.

    It is the reference in its shortest form, which tests hold everything else to.
    """
    judged = check_queues({"": operations}, sparse=sparse)[""]
    if judged.findings:
        return VIOLATED, judged.findings
    return (UNDECIDED, judged.unsure) if judged.unsure else (LINEARIZABLE, [])


def check_queues(
    queues: Mapping[str, Sequence[Operation]], *, sparse: bool = False
) -> dict[str, QueueFindings]:
    """Judge every queue of a history.

    Queues are independent but for two things. An append whose queue the broker was to choose (its key is ``topic/``)
    may stand in any queue of its topic. And a value that nobody can have put where it was seen is named after what
    became of it elsewhere. ``sparse``: offsets may hold records that no client sees, so that an offset that nobody
    knows needs no explanation.
    """
    queues, swept, tried = swept_and_tried(queues, sparse=sparse)
    acknowledged = {
        at.value for one in swept.values() for at in one.positions.values() if at.acks and at.values
    }
    failed = {
        value
        for operations in queues.values()
        for one in operations
        if one.function == "append" and one.outcome == "fail"
        for value in one.values
    }
    return judge_swept(swept, tried, acknowledged, failed)


def judge_swept(
    swept: Mapping[str, Swept],
    tried: Mapping[str, list[Attempt]],
    acknowledged: Container[Hashable],
    failed: Container[Hashable],
) -> dict[str, QueueFindings]:
    """Settle by ``tried``, the appends of unknown outcome, what the sweeps have left open. A value that no append
    explains is named after what became of it elsewhere."""
    attempts, shared = placed_attempts(tried, swept)
    in_dispute = _contested(tried, swept)
    judged = {}
    for key, one in swept.items():
        found, unsure, unmatched = _match_attempts(one, attempts.get(key, []), shared.get(key, []))
        for place in one.seen:
            if place.value in unmatched:
                kind = (
                    "duplicate-value"
                    if place.value in acknowledged
                    else "aborted-read"
                    if place.value in failed
                    else "phantom-value"
                )
                found.append(Finding(kind, place.position, None, int(place.deadline_ns)))
        for queue, finding, is_unsure in in_dispute:
            if queue == key:
                (unsure if is_unsure else found).append(finding)
        judged[key] = QueueFindings([*one.findings, *found], unsure, one.positions)
    return judged


def swept_and_tried(
    queues: Mapping[str, Sequence[Operation]], *, sparse: bool
) -> tuple[Mapping[str, Sequence[Operation]], dict[str, Swept], dict[str, list[Attempt]]]:
    """Returns the operations of each queue (`sparse`: without gaps), what they agree on, and the attempts to append."""
    if sparse:
        queues = {key: without_gaps(operations) for key, operations in queues.items()}
    swept = {key: swept_of(operations, sparse=sparse) for key, operations in queues.items()}
    return queues, swept, {key: attempts_of(operations) for key, operations in queues.items()}


def without_gaps(operations: Iterable[Operation]) -> list[Operation]:
    """Reads may pass over offsets; of a batch of unknown outcome any value may stand anywhere."""
    given: list[Operation] = []
    for one in operations:
        if one.function == "append" and one.outcome == "info":
            given += [replace(one, values=(value,)) for value in one.values]
        else:
            given.append(replace(one, filtered=one.filtered or one.function == "read"))
    return given


def swept_of(operations: Sequence[Operation], *, sparse: bool) -> Swept:
    """Check agreement and order; collect the values without an acknowledgement, and the offsets that nobody knows."""
    log, heads = Axis(), Axis()
    for one in operations:
        state(one, log, heads)
    swept = Swept(dict(log.at), [*torn_reads(operations)])
    for position, at, latest, _ in sweep(heads.at):
        swept.findings.extend(missed_what_was_known(position, at, latest, is_head=True))
    for position, at, latest, previous in sweep(log.at):
        swept.findings.extend(wrong_at(position, at, latest))
        latest_ns = None if latest is None else latest >> 2
        if latest_ns is None:
            continue  # behind everything that must be there
        if at.values and not at.acks:
            swept.seen.append(Seen(position, at.value, latest_ns))
        last = position - 1 if at.values else position
        if previous < last and not sparse:
            swept.holes.append(Hole(previous + 1, last, latest_ns))
    return swept


def attempts_of(operations: Iterable[Operation]) -> list[Attempt]:
    return [
        Attempt(one.op, index, len(one.values), value, one.invoke_ns)
        for one in operations
        if one.function == "append" and one.outcome == "info"
        for index, value in enumerate(one.values)
    ]


def placed_attempts(
    attempts: Mapping[str, list[Attempt]], swept: Mapping[str, Swept]
) -> tuple[dict[str, list[Attempt]], dict[str, list[int]]]:
    """The attempts of each queue; and when those began that may stand in any queue of their topic.

    An append whose queue the broker was to choose belongs to the queue where one of its values was seen, if any was.
    Those of one value that none was are given to queues with holes if they are enough for all of these.
    """
    placed = {key: list(listed) for key, listed in attempts.items() if not key.endswith("/")}
    shared: dict[str, list[int]] = {}
    for topic, listed in attempts.items():
        if not topic.endswith("/") or not listed:
            continue
        queues = [key for key in swept if key[: key.rfind("/") + 1] == topic]
        tries = Counter(attempt.value for attempt in listed)
        needed: Counter[Hashable] = Counter()
        for key in queues:
            needed += Counter(one.value for one in swept[key].seen) - Counter(
                attempt.value for attempt in attempts.get(key, ())
            )
        # Of a value with more attempts than places nobody knows which one is somewhere else.
        settled = {attempt.op for attempt in listed if needed[attempt.value] >= tries[attempt.value]}
        for key in queues:
            values = {one.value for one in swept[key].seen}
            here = {attempt.op for attempt in listed if attempt.value in values}
            placed.setdefault(key, []).extend(attempt for attempt in listed if attempt.op in here)
            if swept[key].holes:
                shared[key] = [attempt.invoke_ns for attempt in listed if attempt.op not in settled | here]
        shown = {one.value for key in queues for one in swept[key].seen}
        free = [one for one in listed if one.size == 1 and one.value not in shown]
        wanted = {
            key: wanted_by(placed[key], swept[key].seen, swept[key].holes)
            for key in queues
            if is_worth_a_look(swept[key], len(placed[key]) + len(shared.get(key, ())))
        }
        for key, one in served(free, wanted):
            placed[key].append(one)
    return placed, shared


def is_worth_a_look(swept: Swept, attempted: int) -> bool:
    """False for a queue that shows or lacks more than was attempted: no look at the details can save it."""
    lacking = sum(one.last - one.first + 1 for one in swept.holes)
    return len(swept.seen) <= attempted and lacking <= attempted


def _contested(
    attempts: Mapping[str, list[Attempt]], swept: Mapping[str, Swept]
) -> list[tuple[str, Finding, bool]]:
    found = []
    for topic, listed in attempts.items():
        if topic.endswith("/") and listed:
            keys = [key for key in swept if key[: key.rfind("/") + 1] == topic]
            with_holes = [key for key in keys if swept[key].holes]
            tried = {key: attempts[key] for key in (*keys, topic)}
            found += contested(topic, tried, {key: swept[key].seen for key in keys}, with_holes)
    return found


def _match_attempts(
    swept: Swept, attempts: Sequence[Attempt], shared: Sequence[int]
) -> tuple[list[Finding], list[Finding], set[Hashable]]:
    """Find appends of unknown outcome for what was seen without an acknowledgement and for what must have been.

    Gives what is wrong, what is not decided, and values that were seen and that nobody attempted. A queue that asks for
    more than was attempted is not looked at in detail, so that nothing grows with the size of a hole.
    """
    seen, holes = swept.seen, swept.holes
    lacking, attempted = sum(one.last - one.first + 1 for one in holes), len(attempts) + len(shared)
    findings: list[Finding] = []
    unsure: list[Finding] = []
    unmatched: set[Hashable] = set()
    # More offsets must be filled than appends were attempted: no look at the details can save the queue.
    if lacking > attempted:
        deadline = min(one.deadline_ns for one in holes)
        findings.append(Finding("unexplained-offset", holes[0].first, None, int(deadline)))
    tries = Counter(one.value for one in attempts)
    # More values were seen than attempted: those that stand more often than they were attempted are wrong.
    if len(seen) > attempted:
        places: dict[Hashable, list[int]] = defaultdict(list)
        for one in seen:
            places[one.value].append(one.position)
        for value, positions in places.items():
            if not tries[value]:
                unmatched.add(value)
            elif len(positions) > tries[value]:
                findings.append(Finding("duplicate-value", positions[0]))
    elif lacking <= attempted:
        unmatched = {one.value for one in seen if not tries[one.value]}
        explicable = [one for one in seen if one.value not in unmatched]
        found, unsure = settle(attempts, explicable, holes, shared)
        findings += found
    return findings, unsure, unmatched
