"""Queues judged while their history grows: the verdict of the whole, no false alarm on the way, and little memory."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing

import pytest

from spark_analysis.checking.queues.following import FollowedLog
from spark_analysis.checking.queues.knowledge import Operation
from spark_analysis.checking.queues.reference import check_queues
from spark_analysis.checking.queues.unknown_appends import Finding
from spark_analysis.checking.verdict import LINEARIZABLE, UNDECIDED, VIOLATED
from tests.examples import examples
from tests.spark_analysis import log_mutations
from tests.spark_analysis.brute_force import is_linearizable
from tests.spark_analysis.histories import random_history

Queues = Mapping[str, Sequence[Operation]]
ORDERS = ("stale-read", "stale-tail", "append-order", "premature-read")
PROVED = ("duplicate-offset", "inconsistent-offset", "torn-read", "backward-head", "order")


def in_pieces(
    rng: random.Random, queues: Queues, log: FollowedLog
) -> Iterator[tuple[float, list[tuple[str, Finding]]]]:
    """Give ``log`` the operations as they end, with a look now and then; yields the watermark and what it found."""
    ended = [
        (
            rng.randrange(one.invoke_ns, one.invoke_ns + 40) if one.complete_ns is None else one.complete_ns,
            key,
            one,
        )
        for key, operations in queues.items()
        for one in operations
    ]
    ended.sort(key=lambda each: each[0])
    begins = [each[2].invoke_ns for each in ended]
    for number, (_, key, one) in enumerate(ended):
        log.take(key, one)
        if rng.random() < 0.4:
            # All that has not ended was invoked then or later.
            watermark = min(begins[number + 1 :], default=one.invoke_ns) - rng.choice([0, 0, 0, 5])
            yield watermark, log.settle(watermark)


def judged(queues: Queues) -> str:
    found = check_queues(queues).values()
    return (
        VIOLATED
        if any(one.findings for one in found)
        else UNDECIDED
        if any(one.unsure for one in found)
        else LINEARIZABLE
    )


def followed(seed: int, queues: Queues) -> tuple[str, set[tuple[str, str, int]], bool]:
    """The verdict at the end, what was told, and whether it was told before the end."""
    told: set[tuple[str, str, int]] = set()
    with closing(FollowedLog()) as log:
        for _, found in in_pieces(random.Random(seed), queues, log):
            told |= {(key, one.kind, one.position) for key, one in found}
        return log.finish(), told, log.late == 0


def proved(findings: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
    """The findings that two operations prove, whatever else happened."""
    named = {("order" if kind in ORDERS else kind, position) for kind, position in findings}
    return {one for one in named if one[0] in PROVED}


@pytest.mark.parametrize(
    "options", [{"batches": False}, {"batches": False, "values": 3}, {}, {"values": 4}, {"rich": True}]
)
def test_the_verdict_at_the_end_is_that_of_the_whole(options: dict[str, object]) -> None:
    verdicts: Counter[str] = Counter()
    early = 0
    for seed in range(500):
        queues = {"t/0": random_history(random.Random(seed), size=14, **options)}  # type: ignore[arg-type]
        verdict, told, _ = followed(seed, queues)
        whole = judged(queues)
        if whole == UNDECIDED and verdict == VIOLATED:
            # The time of a look has decided what counting did not.
            assert not is_linearizable(queues["t/0"]), seed
        else:
            assert verdict == whole, (seed, told)
        assert not told or verdict == VIOLATED, (seed, told)
        findings = check_queues(queues)["t/0"].findings
        assert proved((kind, at) for _, kind, at in told) <= proved(
            (one.kind, one.position) for one in findings
        )
        verdicts[verdict] += 1
        early += bool(told)
    assert min(verdicts[LINEARIZABLE], verdicts[VIOLATED]) > 40
    assert early > 20


CONTRADICTIONS = (
    *("stale_read", "stale_tail", "lost_write", "duplicate_offset"),
    *("append_order", "premature_read", "torn_read"),
)
"""Mutations after which operations contradict each other: told by the first look at all of them."""
UNEXPLAINED = ("duplicate_value", "phantom_value", "aborted_read", "unexplained_offset")
"""Mutations that show, by the last operation, what no append explains: one may still come, so it is told at the end."""
MUTATIONS = (*CONTRADICTIONS, *UNEXPLAINED)


MUTATED_SEEDS = range(examples(20))


@pytest.mark.parametrize("seed", MUTATED_SEEDS)
def test_nothing_is_told_where_nothing_is_wrong(seed: int) -> None:
    history = log_mutations.good_history(random.Random(seed), 300)
    assert followed(seed, {"t/0": history})[:2] == (LINEARIZABLE, set())


def named(findings: Iterable[Finding]) -> set[tuple[str, int]]:
    """Findings by the names that do not depend on when they are made: which of two operations is the wrong one, and
    whether a value without an append was acknowledged elsewhere."""
    names = {**dict.fromkeys(ORDERS, "order"), "phantom-value": "unexplained-value"}
    return {(names.get(one.kind, one.kind), one.position) for one in findings}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_what_is_wrong_is_told_and_nothing_else(mutation: str) -> None:
    for seed in MUTATED_SEEDS:
        rng = random.Random(seed)
        history = log_mutations.good_history(rng, 300)
        getattr(log_mutations, mutation)(rng, history)
        whole = named(check_queues({"t/0": history})["t/0"].findings)
        with closing(FollowedLog()) as log:
            growing = [found for _, looked in in_pieces(rng, {"t/0": history}, log) for found in looked]
            growing += log.settle(0)  # all have come, and nothing more is settled
            assert log.late == 0
            at_the_end = log.last()
            assert log.finish() == VIOLATED
        early = named(one for _, one in growing)
        told = early | named(one for _, one in at_the_end)
        contradictions = {one for one in whole if not one[0].startswith("unexplained-")}
        assert bool(contradictions) == (mutation in CONTRADICTIONS), seed
        assert early >= contradictions, seed
        assert not early or contradictions, seed
        if mutation in ("append_order", "premature_read"):
            # When the offset was settled its append was still to come: so that nobody had appended is told, too, of it
            # or of an earlier one that the same unanswered append would have to explain.
            latest = max(position for _, position in whole)
            told -= {one for one in told - whole if one[0].startswith("unexplained-") and one[1] <= latest}
        assert told == whole, seed


def test_an_append_to_any_queue_of_a_topic_serves_one_of_them() -> None:
    """Two queues show what one append of unknown outcome has sent: told as soon as both are settled, not before."""
    with closing(FollowedLog()) as log:
        log.take("t/", Operation(0, "append", "info", 0, None, values=("a",)))
        for number, queue in enumerate(("t/0", "t/1")):
            log.take(queue, Operation(1 + number, "read", "ok", 5, 8, 0, 0, ("a",), next_offset=1))
        assert log.settle(8) == []
        assert {one.kind for _, one in log.settle(9)} == {"duplicate-value"}


def test_a_value_that_nobody_sent_is_told_when_nobody_can_have_sent_it() -> None:
    read = Operation(1, "read", "ok", 5, 8, 0, 0, ("a",), next_offset=1)
    with closing(FollowedLog()) as log:
        log.take("t/0", read)
        assert log.settle(8) == []  # an append that began at 8 may still complete
        assert [one.kind for _, one in log.settle(9)] == ["unexplained-value"]
        assert log.settle(10) == []  # once
    with closing(FollowedLog()) as log:
        log.take("t/0", read)
        log.settle(8)
        log.take("t/0", Operation(0, "append", "ok", 8, 20, first_offset=0, values=("a",)))
        assert log.settle(30) == []


def test_a_settled_offset_keeps_its_value() -> None:
    with closing(FollowedLog()) as log:
        log.take("t/0", Operation(0, "append", "ok", 0, 1, first_offset=0, values=("a",)))
        log.take("t/0", Operation(1, "append", "info", 0, None, values=("b",)))
        log.take("t/0", Operation(2, "tail", "ok", 2, 3, offset=2))
        assert log.settle(10) == []
        assert log.held == 1  # where the queue ended
        log.take("t/0", Operation(3, "read", "ok", 20, 21, 0, 0, ("a", "b"), next_offset=2))
        assert log.settle(30) == []
        log.take("t/0", Operation(4, "read", "ok", 40, 41, 0, 0, ("a", "c"), next_offset=2))
        log.take("t/0", Operation(5, "read", "ok", 40, 41, 0, 0, ("x",), next_offset=1))
        log.take("t/0", Operation(6, "append", "ok", 40, 41, first_offset=0, values=("a",)))
        log.take("t/0", Operation(7, "tail", "ok", 40, 41, offset=1))
        assert {(one.kind, one.position) for _, one in log.settle(50)} == {
            ("inconsistent-offset", 1),
            ("inconsistent-offset", 0),
            ("duplicate-offset", 0),
            ("append-order", 0),
            ("stale-tail", 1),
        }


def test_a_completion_that_comes_after_all_takes_no_false_alarm_with_it() -> None:
    """An append that was given up is acknowledged where a value was seen: nothing is wrong, and nothing is told that
    only the missing acknowledgement would have made wrong."""
    given_up = Operation(0, "append", "info", 0, None, values=("a",))
    with closing(FollowedLog()) as log:
        log.take("t/0", given_up, is_given_up=True)
        log.take("t/0", Operation(1, "read", "ok", 5, 8, 0, 0, ("a",), next_offset=1))
        assert log.settle(100) == []
        log.take("t/0", Operation(0, "append", "ok", 0, 120, first_offset=0, values=("a",)))
        assert log.late == 1
        assert log.settle(200) == []
        log.take("t/0", Operation(2, "tail", "ok", 210, 220, offset=0))
        assert [one.kind for _, one in log.settle(230)] == ["stale-tail"]


def test_that_nobody_will_answer_is_no_news_of_what_was_given_up() -> None:
    """A client gives up later than the one who follows: what is settled stays so, and what is wrong is told at once."""
    given_up = Operation(0, "append", "info", 0, None, values=("a",))
    with closing(FollowedLog()) as log:
        log.take("t/0", given_up, is_given_up=True)
        log.take("t/0", Operation(1, "read", "ok", 5, 8, 0, 0, ("a",), next_offset=1))
        assert log.settle(100) == []
        log.take("t/0", given_up)
        assert log.late == 0
        log.take("t/0", Operation(2, "read", "ok", 110, 111, 1, 1, ("a",), next_offset=2))
        assert [one.kind for _, one in log.settle(120)] == ["duplicate-value"]


def test_an_answer_that_comes_after_all_explains_what_was_seen() -> None:
    with closing(FollowedLog()) as log:
        log.take("t/0", Operation(0, "append", "info", 0, None, values=("a",)), is_given_up=True)
        log.take("t/0", Operation(1, "read", "ok", 5, 8, 0, 0, ("a",), next_offset=1))
        log.settle(100)
        log.take("t/0", Operation(0, "append", "ok", 0, 120, first_offset=0, values=("a",)))
        assert log.finish() == LINEARIZABLE


def test_once_something_came_late_only_what_is_proved_is_told() -> None:
    """A read comes late, so the append of what it saw may, too."""
    with closing(FollowedLog()) as log:
        log.settle(100)
        log.take("t/0", Operation(1, "read", "ok", 50, 60, 0, 0, ("a",), next_offset=1))
        assert log.settle(110) == []
        log.take("t/0", Operation(0, "append", "ok", 40, 70, first_offset=0, values=("a",)))
        assert log.settle(120) == []
        log.take("t/0", Operation(2, "read", "ok", 130, 131, 0, 0, ("b",), next_offset=1))
        assert [one.kind for _, one in log.settle(140)] == ["inconsistent-offset"]


@pytest.mark.slow
def test_memory_is_what_is_not_settled() -> None:
    history = log_mutations.good_history(random.Random(7), 20_000)
    most = 0
    with closing(FollowedLog()) as log:
        for _ in in_pieces(random.Random(7), {"t/0": history}, log):
            most = max(most, log.held)
    assert most < 200
