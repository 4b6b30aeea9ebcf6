"""Jepsen's Kafka catalogue: for each name the smallest history that has it and one that nearly has, as docs/checker.md
shows them; and Spark's rules against the plain ones on many random histories."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_analysis.checking.check import check
from spark_analysis.checking.kafka.reference import catalogue
from spark_analysis.checking.queues.knowledge import Operation
from spark_analysis.checking.queues.reference import check_queue
from spark_analysis.checking.verdict import EXPLANATIONS, LINEARIZABLE, VIOLATED, jepsen_name
from spark_analysis.importing import schema
from spark_analysis.importing.history import History, no_events
from tests.spark_analysis.crowds import as_row
from tests.spark_analysis.notation import by_queue, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY = "t/0"


@dataclass(frozen=True)
class Entry:
    """A row of the table in docs/checker.md."""

    name: str
    is_allowed: bool
    is_allowed_for_subscribers: bool
    bad: str
    good: str


def table() -> list[Entry]:
    """The catalogue as the page has it: what users read is what is judged here."""
    entries = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.replace("\\|\\|", "&&").split("|")[1:-1]]
        if len(cells) == 6 and cells[2] in ("error", "allowed"):
            bad, good = (cell.strip("`").replace("&&", "||") for cell in cells[4:])
            entries.append(
                Entry(cells[0].strip("`"), cells[2] == "allowed", cells[3] == "allowed", bad, good)
            )
    return entries


PAGE = Path(__file__).parents[3] / "docs" / "checker.md"
TABLE = table()
# The plain rules name what one queue shows; these need more than one, or are counted elsewhere.
OF_MANY_QUEUES = ("G1c", "G1c-realtime")


def plain(text: str) -> tuple[set[str], set[str], bool]:
    """Jepsen's names of what the plain rules find, and find allowed, and whether every queue is linearizable."""
    found: set[str] = set()
    allowed: set[str] = set()
    is_good = True
    for key, operations in by_queue(rows(text)).items():
        verdict, wrong = check_queue(operations)
        is_good &= verdict == LINEARIZABLE
        findings, excused = catalogue(operations, key)
        found |= {jepsen_name(one.kind) or one.kind for one in (*wrong, *findings)}
        allowed |= {one.kind for one in excused}
    return found, allowed, is_good


def test_the_page_has_every_name() -> None:
    named = {name for kind in EXPLANATIONS if (name := jepsen_name(kind)) and " or " not in name}
    assert {entry.name for entry in TABLE} == named
    assert len(TABLE) == 20


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.name)
def test_the_plain_rules_name_the_same(entry: Entry) -> None:
    found, allowed, is_good = plain(entry.good)
    assert (found, allowed, is_good) == (set(), set(), True)
    found, allowed, is_good = plain(entry.bad)
    if entry.name in ("G1a", "duplicate"):  # the plain checker calls both "unexplained"
        assert not is_good
    elif entry.name not in (*OF_MANY_QUEUES, "unseen"):
        assert entry.name in (allowed if entry.is_allowed else found)


@pytest.mark.parametrize(
    "entry", [entry for entry in TABLE if entry.is_allowed_for_subscribers], ids=lambda entry: entry.name
)
def test_a_rebalance_may_move_a_subscriber(entry: Entry) -> None:
    found, allowed, _ = plain(f"c: subscribe x; {entry.bad}")
    assert entry.name in allowed
    assert not found
    found, allowed, _ = plain(f"c: assign x; {entry.bad}")
    assert (entry.name in allowed) == entry.is_allowed


def nothing_damaged(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], "file STRING, position BIGINT, kind STRING, reason STRING")


@pytest.mark.spark
@pytest.mark.slow
def test_each_name_has_a_smallest_history(spark: SparkSession) -> None:
    """The whole table at once through Spark, queues and clients of its own for each cell: the name, and the proof."""
    listed: list[tuple[Any, ...]] = []
    for number, entry in enumerate(TABLE):
        for kind, text in (("bad", entry.bad), ("good", entry.good)):
            if entry.name != "unseen":
                listed += rows(text, f"{kind}{number:02}", 100 * len(listed))
    operations = spark.createDataFrame(listed, schema.OPERATIONS)
    verdict = check(History("x", operations, no_events(spark), nothing_damaged(spark)))
    found: dict[str, set[str | None]] = {}
    for anomaly in verdict.anomalies:
        found.setdefault(anomaly.key.split("/")[0], set()).add(jepsen_name(anomaly.kind))
        assert anomaly.proof, anomaly
        assert anomaly.kind in EXPLANATIONS
    wanted = {f"bad{number:02}": entry for number, entry in enumerate(TABLE) if entry.name != "unseen"}
    missing = [
        (name, entry)
        for name, entry in wanted.items()
        if not entry.is_allowed and entry.name not in found.get(name, set())
    ]
    assert not missing, found
    assert not [name for name in found if name.startswith("good")]
    assert verdict.allowed.keys() == {"int-send-skip", "unseen"}
    circles = {anomaly.kind: anomaly for anomaly in verdict.anomalies if anomaly.kind in OF_MANY_QUEUES}
    assert {row["client"][-1] for row in circles["G1c"].proof} == {"p", "q"}
    assert circles["G1c-realtime"].proof[0]["client"][-1] == "q"
    assert {row["client"][-1] for row in circles["G1c-realtime"].proof} == {"p", "q", "c"}
    assert verdict.verdict == VIOLATED


@pytest.mark.spark
@pytest.mark.slow
def test_unseen_counts_where_readers_have_drained(spark: SparkSession) -> None:
    listed = rows("p: send a@0 b@1 c@2 d@3; c: poll a@0 b@1 c@2")
    operations = spark.createDataFrame(listed, schema.OPERATIONS)
    history = History("x", operations, no_events(spark), nothing_damaged(spark))
    kept = check(history)
    assert (kept.verdict, kept.allowed, kept.counts) == (LINEARIZABLE, {"unseen": 1}, {})
    drained = check(history, drained=True)
    assert (drained.verdict, drained.allowed, drained.counts) == (VIOLATED, {}, {"unseen": 1})
    (anomaly,) = drained.anomalies
    assert (anomaly.kind, anomaly.position, len(anomaly.proof)) == ("unseen", 3, 1)


def polled(op: int, begin: int, client: str, pairs: list[tuple[int, str]]) -> Operation:
    offsets = tuple(place for place, _ in pairs)
    first = offsets[0] if offsets else None
    values = tuple(value for _, value in pairs)
    return Operation(op, "poll", "ok", begin, begin + 5, None, first, values, offsets or None, client=client)


def random_polls(rng: random.Random) -> list[Operation]:
    """Two producers and three consumers of one queue; consumers mostly go on, sometimes jump, some subscribe.

    Some sends are transactions of two values, with a place for each, and a poll; sends overlap now and then.
    """
    operations: list[Operation] = []
    log: list[str] = []
    stands = dict.fromkeys("cde", 0)
    for op in range(rng.randrange(5, 25)):
        begin, choice = 10 * op, rng.random()
        client = rng.choice("cde")
        first = max(0, stands[client] + rng.choice([0] * 8 + [-1, 1, 2]))
        offsets = list(range(first, min(len(log), first + rng.randrange(4))))
        if rng.random() < 0.1:
            rng.shuffle(offsets)
        if len(offsets) > 2 and rng.random() < 0.2:
            del offsets[1]
        if choice < 0.35:
            place = rng.choice([len(log)] * 6 + [None, max(0, len(log) - 1), max(0, len(log) - 2)])
            producer, end = rng.choice("pq"), begin + rng.choice([5, 5, 25])
            outcome, complete = ("info", None) if place is None else ("ok", end)
            operations.append(
                Operation(op, "append", outcome, begin, complete, None, place, (f"v{op}",), client=producer)
            )
            if place is not None or rng.random() < 0.7:
                # What nobody answered may stand before what had ended long ago.
                log.insert(rng.choice([len(log)] * 3 + [max(0, len(log) - 2)]), f"v{op}")
        elif choice < 0.45:
            values = (f"v{op}.0", f"v{op}.1")
            start = rng.choice([len(log), len(log), len(log) + 2])
            places = rng.choice([(start, start + 1), (start, start + 3), (start + 1, start)])
            operations.append(
                Operation(op, "append", "ok", begin, begin + 5, None, places[0], values, places, client="p")
            )
            for place, value in zip(places, values, strict=True):
                log += ["?"] * (place + 1 - len(log))
                log[place] = value
            if rng.random() < 0.5:
                place = rng.choice(places)
                operations.append(polled(op, begin, "p", [(place, log[place])]))
        elif choice < 0.9:
            operations.append(polled(op, begin, client, [(place, log[place]) for place in offsets]))
            stands[client] = offsets[-1] + 1 if offsets else stands[client]
        else:
            function, keys = rng.choice(["assign", "seek", "subscribe"]), rng.choice([(KEY,), ("t/1",)])
            operations.append(Operation(op, function, "ok", begin, begin + 5, values=keys, client=client))
    return operations


def own_rows(history: list[Operation], first_op: int, key: str) -> list[tuple[Any, ...]]:
    """The operations with the queue ``key`` for KEY, and with clients and values that no other queue has."""
    listed = []
    for one in history:
        assigned = one.function in ("assign", "subscribe", "seek")
        values = [key if value == KEY else value for value in one.values] if assigned else one.values
        named = replace(
            one,
            client=f"{key} {one.client}",
            values=tuple(values if assigned else (f"{key} {value}" for value in values)),
        )
        listed.append(as_row(named, 100 * first_op + one.op, "" if assigned else key))
    return listed
