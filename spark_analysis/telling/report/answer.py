"""The answer in sentences, and each promise: kept, broken or not checked."""

from collections.abc import Sequence
from typing import Final

from spark_analysis.checking.verdict import (
    LINEARIZABLE,
    REGISTER_ANOMALIES,
    REPLICA_ANOMALIES,
    UNDECIDED,
    VIOLATED,
    Verdict,
)

# What is promised, the functions that it takes to judge it, and the anomalies that break it.
_PROMISES: Final = (
    (
        "acknowledged appends have offsets of their own, in real-time order, with nothing lost or invented between",
        ("append",),
        (
            *("duplicate-offset", "append-order", "nonmonotonic-send", "torn-append", "unexplained-offset"),
            *("duplicate-value", "lost-write", "unseen"),
        ),
    ),
    (
        "reads agree with appends and with each other, and are never stale",
        ("read", "poll"),
        (
            *("inconsistent-offset", "stale-read", "premature-read", "torn-read", "aborted-read"),
            *("phantom-value", "unexplained-value", "duplicate-value"),
        ),
    ),
    (
        "consumers' polls go forward and pass over nothing",
        ("poll",),
        ("poll-skip", "nonmonotonic-poll", "int-poll-skip", "int-nonmonotonic-poll"),
    ),
    (
        "answers about a queue's beginning and end are never stale",
        ("tail", "head"),
        ("stale-tail", "backward-head"),
    ),
    (
        "the offsets that consumer groups store are read back as they were stored",
        ("commit_offset", "fetch_offset"),
        REGISTER_ANOMALIES,
    ),
)
_TRANSACTIONS_PROMISE: Final = (
    "transactions are whole, in order, and see of each other only what was committed"
)
_TRANSACTION_ANOMALIES: Final = (
    *("int-send-skip", "int-nonmonotonic-send", "precommitted-read", "G1c", "G1c-realtime"),
)
_REPLICAS_PROMISE: Final = (
    "replicas kept Raft's guarantees: one leader a term, terms and commit indices that never go back, nothing "
    "committed removed, leaders that have all that is committed, equal bytes in equal places"
)


def words(verdict: Verdict) -> list[str]:
    """The answer in sentences, for somebody who has never seen the tool."""
    clients = [kind for kind in verdict.counts if kind not in REPLICA_ANOMALIES]
    replicas = [kind for kind in verdict.counts if kind in REPLICA_ANOMALIES]
    is_log = verdict.facts.get("functions") is not None
    # Linearizable says that no client can tell the system from one copy: that is the sentence, for a log as for a key.
    one_copy = f"a single {'queue' if is_log else verdict.facts.get('model', 'object')} on a single machine"
    said: list[str] = []
    if clients:
        said.append(f"The clients saw something that {one_copy} can never show.")
    elif verdict.verdict == VIOLATED:
        said.append(
            f"What the clients saw can be explained by {one_copy}, but the replicas broke guarantees that keep it so."
            if verdict.operations
            else "The replicas broke guarantees of Raft; no client's operations were recorded."
        )
    if clients and replicas:
        said.append("The replicas broke guarantees of Raft, too.")
    if verdict.verdict == LINEARIZABLE:
        said.append(
            f"Everything that the clients saw can be explained by {one_copy}: there is an order of all operations in "
            "which each takes effect at one moment between its call and its answer."
        )
    if verdict.verdict == UNDECIDED:
        said.append(
            "No violation was found, but not everything could be decided; what is open is listed below."
            if verdict.answered
            else f"There is no answer: {verdict.undecided[0] if verdict.undecided else 'nothing was recorded'}."
        )
    if not verdict.operations:
        return said
    return [*said, *verdict.reservations]


def checked_and_not(verdict: Verdict) -> list[tuple[str, str]]:
    """Each promise as (holds, broken, open or unchecked, sentence), from what was recorded and what was found."""
    recorded = verdict.facts.get("functions")
    if recorded is None:
        state = {LINEARIZABLE: "holds", VIOLATED: "broken"}.get(verdict.verdict, "open")
        return [(state, f"every key behaves like the model {verdict.facts.get('model')}")]

    # A promise of which nothing was recorded is not kept, and not broken either: the reader is to know that.
    def state_of(is_recorded: bool, kinds: Sequence[str]) -> str:
        if verdict.counts.keys() & set(kinds):
            return "broken"
        if any(
            f"{kind} at " in line or line.startswith(f"{kind}:")
            for line in verdict.undecided
            for kind in kinds
        ):
            return "open"
        return "holds" if is_recorded else "unchecked"

    states = [
        (state_of(bool(recorded.keys() & set(needed)), kinds), text) for text, needed, kinds in _PROMISES
    ]
    if verdict.facts.get("transactions"):
        states.append((state_of(True, _TRANSACTION_ANOMALIES), _TRANSACTIONS_PROMISE))
    states.append((state_of(bool(verdict.facts["replica_events"]), REPLICA_ANOMALIES), _REPLICAS_PROMISE))
    return [
        (state, f"{text} (nothing of the kind was recorded)" if state == "unchecked" else text)
        for state, text in states
    ]
