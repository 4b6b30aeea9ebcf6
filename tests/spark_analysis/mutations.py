"""The mutation score: every anomaly, put into good histories at random, is found; nothing is found in the good ones.

``python -m tests.spark_analysis.mutations --histories 2000`` prints the table of docs/checker.md; the seed of a history
is its number. The plain rules are judged here, as thousands of histories through Spark would take hours; that Spark
finds the same is what the tests next to this module compare.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Final

from spark_analysis.checking.kafka.catalogue import ALLOWED_FOR_ALL
from spark_analysis.checking.kafka.reference import catalogue, circles
from spark_analysis.checking.models import MODELS
from spark_analysis.checking.queues.reference import check_queue
from spark_analysis.checking.registers import check_register
from spark_analysis.checking.replicas.reference import replica_findings
from spark_analysis.checking.verdict import LINEARIZABLE, UNDECIDED, VIOLATED
from tests.spark_analysis.log_mutations import (
    CATALOGUE_MUTATIONS,
    LOG_MUTATIONS,
    good_history,
    unseen,
    unseen_values,
)
from tests.spark_analysis.model_mutations import BLOCKS, OFFSETS, accesses, history
from tests.spark_analysis.raft_mutations import RAFT_MUTATIONS, good_events
from tests.spark_analysis.transaction_mutations import TRANSACTION_MUTATIONS, good_transactions

# A row of a table: (what was injected, the answer it must get); and whether it did.
Judged = tuple[tuple[str, str], bool]
NOTHING: Final = "nothing"


def log_scores(seed: int, size: int = 200) -> Iterator[Judged]:
    """The exact checker, and Jepsen's names, on one history of one queue."""
    rng = random.Random(seed)
    good = good_history(rng, size)
    yield (NOTHING, LINEARIZABLE), check_queue(good)[0] == LINEARIZABLE and not catalogue(good, "q")[0]
    for mutation in LOG_MUTATIONS:
        bent = list(good)
        mutation(rng, bent)
        yield (_words(mutation), VIOLATED), check_queue(bent)[0] == VIOLATED
    for mutation, kind in CATALOGUE_MUTATIONS.items():
        bent = list(good)
        mutation(rng, bent)
        findings, allowed = catalogue(bent, "q")
        found = allowed if kind in ALLOWED_FOR_ALL else findings
        yield (_words(mutation), kind), kind in {one.kind for one in found}
    drained = good_history(rng, size, drained=True)
    is_good = check_queue(drained)[0] == LINEARIZABLE and not catalogue(drained, "q")[0]
    yield (f"{NOTHING}, readers drain the queue", LINEARIZABLE), is_good and not unseen_values(drained)
    unseen(rng, drained)
    is_named = unseen_values(drained) == {"last"} and check_queue(drained)[0] == LINEARIZABLE
    yield ("a last value nobody reads", "unseen"), is_named


def _words(mutation: Callable[..., None]) -> str:
    return mutation.__name__.replace("_", " ")


def transaction_scores(seed: int, size: int = 60) -> Iterator[Judged]:
    """Circles of transactions over two queues."""
    rng = random.Random(seed)
    good = good_transactions(rng, size)
    yield (f"transactions: {NOTHING}", "no finding"), not circles(good)
    for mutation, kind in TRANSACTION_MUTATIONS.items():
        bent = {name: list(operations) for name, operations in good.items()}
        mutation(rng, bent)
        yield (f"transactions: {_words(mutation)}", kind), kind in {one.kind for one in circles(bent)}


def model_scores(seed: int, size: int = 40) -> Iterator[Judged]:
    """Committed offsets, and the models that are judged by search."""
    for name, blocks in BLOCKS.items():
        rng = random.Random(seed)
        yield (f"{name}: {NOTHING}", LINEARIZABLE), _verdict(name, rng, size) == LINEARIZABLE
        for injected, block in blocks.items():
            is_found = _verdict(name, rng, size, block) == VIOLATED
            yield (f"{name}: {injected}", VIOLATED), is_found


def _verdict(
    name: str, rng: random.Random, size: int, *block: Callable[..., list[tuple[str, object, object]]]
) -> str:
    calls = history(name, rng, size, *block)
    if name == OFFSETS:
        findings, unsure = check_register(accesses(calls))
        return VIOLATED if findings else UNDECIDED if unsure else LINEARIZABLE
    return MODELS[name].decide(calls).verdict


def raft_scores(seed: int, turns: int = 150) -> Iterator[Judged]:
    """Raft's invariants on the events of one group."""
    rng = random.Random(seed)
    good = good_events(rng, turns)
    yield (f"replicas: {NOTHING}", "no finding"), not replica_findings(good)
    for mutation, kind in RAFT_MUTATIONS.items():
        bent = list(good)
        mutation(rng, bent)
        yield (f"replicas: {_words(mutation)}", kind), kind in {one.kind for one in replica_findings(bent)}


SCORES: Final = {
    "log": log_scores,
    "transactions": transaction_scores,
    "models": model_scores,
    "raft": raft_scores,
}


def score(names: Sequence[str], seeds: Iterable[int]) -> dict[tuple[str, str], int]:
    """In how many histories each mutation got the answer that it must get; every mutation has its row."""
    caught: Counter[tuple[str, str]] = Counter()
    for seed in seeds:
        for name in names:
            for row, is_right in SCORES[name](seed):
                caught[row] += is_right
    return dict(caught)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--histories", type=int, default=2000, help="of each kind; the default is 2000")
    parser.add_argument("--kinds", nargs="+", choices=SCORES, default=list(SCORES))
    parser.add_argument("--jobs", type=int, default=2, help="processes; the default is 2")
    options = parser.parse_args()
    caught: Counter[tuple[str, str]] = Counter()
    shares = [range(first, options.histories, 8 * options.jobs) for first in range(8 * options.jobs)]
    with ProcessPoolExecutor(options.jobs) as pool:
        for share in pool.map(partial(score, options.kinds), shares):
            caught.update(share)
    print("| injected | must be | was, of |")
    print("|---|---|---|")
    for (injected, answer), count in caught.items():
        print(f"| {injected} | {answer} | {count:,} of {options.histories:,} |")


if __name__ == "__main__":
    main()
