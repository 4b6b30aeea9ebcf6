"""The answer of the analysis: three verdicts, and anomalies with the operations that prove them."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self

VerdictName = Literal["linearizable", "violated", "undecided"]
LINEARIZABLE: Final = "linearizable"
VIOLATED: Final = "violated"
UNDECIDED: Final = "undecided"


def worst(verdicts: Collection[str]) -> VerdictName:
    """The verdict on all of several histories, or of several parts of one."""
    return VIOLATED if VIOLATED in verdicts else UNDECIDED if UNDECIDED in verdicts else LINEARIZABLE


EXIT_CODES: Final = {LINEARIZABLE: 0, VIOLATED: 1, UNDECIDED: 3}

# Every kind of anomaly in one sentence, for reports and tables.
EXPLANATIONS: Final = {
    "duplicate-offset": "two acknowledged appends were given the same offset",
    "inconsistent-offset": "one offset was seen with different values",
    "append-order": "an append got a lower offset than another that had ended before it began",
    "stale-read": "a read did not see what had been acknowledged, or seen, before it began",
    "stale-tail": "a tail query stated an end that had been passed before it began",
    "premature-read": "something was read, or counted, before its append began",
    "torn-read": "a read left out or repeated offsets inside its own answer",
    "torn-append": "the values of one append do not stand at consecutive offsets",
    "aborted-read": "a value was read whose append had certainly failed",
    "duplicate-value": "a value stands at more offsets than there were attempts to append it",
    "phantom-value": "a value was read that nobody appended",
    "unexplained-value": "no attempt to append the value seen here could have had effect in time",
    "unexplained-offset": "the queue grew past an offset that no append can have filled",
    "backward-head": "the queue's first offset went back",
    "stale-offset": "a consumer group's committed offset was read in a way that no order of the commits explains",
    "phantom-offset": "a consumer group's committed offset was read that nobody had committed",
    "not-linearizable": "no order of the operations on this key is one that the model allows",
    "poll-skip": "a consumer's poll passed over messages that follow its poll before",
    "nonmonotonic-poll": "a consumer's poll went back to, or behind, what it had polled before",
    "int-poll-skip": "one poll passed over messages between two that it returned",
    "int-nonmonotonic-poll": "one poll returned messages out of their order, or twice",
    "lost-write": "an acknowledged message was never returned, although its queue was read beyond it",
    "nonmonotonic-send": "a client's append got a lower offset than one that the same client had finished before",
    "int-send-skip": "between two messages that one transaction sent to a queue stand others",
    "int-nonmonotonic-send": "one transaction's messages stand in a queue in another order than it sent them",
    "precommitted-read": "a transaction polled what it had sent itself, before it had committed",
    "G1c": "transactions in a circle each polled what the one before had sent",
    "G1c-realtime": "a transaction had ended before one began from which, step by step, it had polled",
    "unseen": "an acknowledged message was returned by no read",
    "two-leaders": "two nodes were leader in one term",
    "term-went-back": "a node's term decreased",
    "commit-went-back": "a node's commit index decreased while it ran",
    "committed-truncated": "a node removed entries that it had known committed",
    "leader-incomplete": "a leader was elected without entries committed in an earlier term",
    "log-mismatch": "two nodes hold different entries under one index and term",
    "prefix-mismatch": "the committed prefixes of two nodes differ",
}


# Kinds that the replicas' own records show; all others are about what clients saw.
REPLICA_ANOMALIES: Final = (
    *("two-leaders", "term-went-back", "commit-went-back", "committed-truncated", "leader-incomplete"),
    *("log-mismatch", "prefix-mismatch"),
)

_UNANSWERED: Final = "the answers of the appends of unknown outcome"
_ALIKE: Final = "was not found out; distinct values would decide"
WHAT_IS_MISSING: Final = {
    " unexplained-offset at ": f"{_UNANSWERED}: whether they can have filled this offset, or an acknowledged message "
    "is lost, is a search that was given up; a read of the offset would decide",
    " duplicate-value at ": f"{_UNANSWERED}: whether one of them stands here, or a message was stored twice, {_ALIKE}, "
    "and so would sends that name their queue",
    " torn-append at ": f"{_UNANSWERED}: whether one of several stands here, or one was torn apart, {_ALIKE}",
    " unexplained-value at ": f"{_UNANSWERED}: whether one of several stands here, or what came too late, {_ALIKE}",
    " stale-offset at ": "the order of the commits: one position was committed several times, and the "
    "search for an order, without which a consumer was sent back, was given up",
    "given up after ": "an order of the operations, or the proof that there is none: a stale or lost value may be "
    "among them; --search-seconds and --search-memory search longer, fewer unknown outcomes need less",
    " may be explained by what was not read": "records, which may explain all of it: mend the lines, or record again",
}
"""The things that an undecided history lacks, and why they matter, by what stands in the texts about its places."""

REGISTER_ANOMALIES: Final = ("stale-offset", "phantom-offset")
"""Kinds of anomalies about a consumer offset; their key has the queue and the consumer group
(:mod:`spark_analysis.checking.register_names`)."""

# What Jepsen's Kafka workload calls the same; kinds that have its names already are not listed.
JEPSEN_NAMES: Final = {
    "aborted-read": "G1a",
    "duplicate-value": "duplicate",
    "duplicate-offset": "inconsistent-offsets",
    "inconsistent-offset": "inconsistent-offsets",
    "torn-read": "int-poll-skip or int-nonmonotonic-poll",
    "torn-append": "int-send-skip",
}
_SAME_NAMES: Final = frozenset(
    (
        *("poll-skip", "nonmonotonic-poll", "int-poll-skip", "int-nonmonotonic-poll", "lost-write"),
        *("nonmonotonic-send", "unseen", "int-send-skip", "int-nonmonotonic-send", "precommitted-read"),
        *("G1c", "G1c-realtime"),
    )
)


def jepsen_name(kind: str) -> str | None:
    """The name that Jepsen's Kafka workload has for anomalies of this kind; None for a kind that it does not look
    for."""
    return kind if kind in _SAME_NAMES else JEPSEN_NAMES.get(kind)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One finding: its ``kind`` (of :data:`EXPLANATIONS`), its place, and the rows of the operations or events that
    prove it."""

    kind: str
    key: str
    position: int | None
    proof: tuple[dict[str, Any], ...] = ()
    detail: str = ""

    @property
    def explanation(self) -> str:
        return EXPLANATIONS.get(self.kind, self.kind)

    @property
    def is_dead_end(self) -> bool:
        """True if a search could go no further: the proof begins with the last operation that could be put in order. A
        rule's proof has nothing but operations that contradict each other."""
        return self.kind == "not-linearizable" and self.detail.startswith("after ")

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "jepsen": jepsen_name(self.kind),
            "explanation": self.explanation,
            "key": self.key,
            "position": self.position,
            "detail": self.detail,
            "proof": list(self.proof),
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer about one history.

    ``counts``: how many anomalies of each kind; ``anomalies``: the first few of each. ``allowed``: how many findings
    there are, by kind, that are no anomalies here, as a rebalance may cause them.
    """

    path: str
    verdict: VerdictName
    operations: int
    counts: dict[str, int]
    anomalies: tuple[Anomaly, ...]
    undecided: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    allowed: dict[str, int] = field(default_factory=dict)

    @property
    def answered(self) -> int:
        """The number of operations that got a response: only these say something. Of a search, those with any outcome
        but unknown."""
        functions = self.facts.get("functions")
        if functions is None or not self.operations:
            return int(self.facts.get("answered", self.operations))
        return sum(outcomes.get("ok", 0) for outcomes in functions.values())

    @property
    def by_name(self) -> dict[str, dict[str, int]]:
        """How many operations there are by the name that the history has for them, and by outcome; of keys none."""
        named: dict[str, dict[str, int]] = self.facts.get("called") or self.facts.get("functions", {})
        return named

    @property
    def named_operations(self) -> int:
        """The number of operations as the history counts them: a transaction, of many rows, is one."""
        called = self.facts.get("called")
        return sum(sum(one.values()) for one in called.values()) if called else self.operations

    @property
    def missing(self) -> tuple[str, ...]:
        """The things that are missing where the history could not be decided, and why that matters: a sentence each."""
        return tuple(
            why for sign, why in WHAT_IS_MISSING.items() if any(sign in one for one in self.undecided)
        )

    @property
    def reservations(self) -> tuple[str, ...]:
        """The parts of the recording that the verdict is not about."""
        cut = self.facts.get("cut", 0)
        said = ["The recording was cut off: the verdict is about what was recorded before."] if cut else []
        if later := self.facts.get("later_operations", 0):
            reached_s = (self.facts["until_ns"] - (self.facts.get("first_ns") or 0)) / 1e9
            said.append(
                f"Judged is what had happened up to {reached_s:,.6f} s after the first operation, "
                f"{self.operations:,} of {self.operations + later:,} operations that were recorded: "
                f"the other {later:,} began later."
            )
        if self.facts.get("bad_lines", len(self.damage)) > cut:
            said.append("Parts of the recording could not be read: the verdict is about the rest.")
        return tuple(said)

    def judged_until(self, until_ns: int, later: int) -> Self:
        """Return the verdict with the moment up to which its history was judged, and how many of the operations that
        are recorded began later."""
        return replace(self, facts=self.facts | {"until_ns": until_ns, "later_operations": later})

    def as_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "verdict": self.verdict,
            "operations": self.operations,
            "counts": self.counts,
            "allowed": self.allowed,
            "anomalies": [anomaly.as_json() for anomaly in self.anomalies],
            "undecided": list(self.undecided),
            "missing": list(self.missing),
            "damage": list(self.damage),
            **self.facts,
        }


MISSING_MAY_EXPLAIN: Final = frozenset(
    (
        *("phantom-value", "unexplained-value", "unexplained-offset", "duplicate-value", "aborted-read"),
        *("torn-append", "nonmonotonic-send", "precommitted-read", "G1c", "G1c-realtime"),
        *("phantom-offset", "stale-offset", "lost-write", "unseen", "poll-skip", "nonmonotonic-poll"),
        *("term-went-back", "commit-went-back", "committed-truncated"),
        "not-linearizable",
    )
)
"""Kinds that say that something is not in the recording: an attempt to append (the only one, or another with the same
value), a commit of an offset, a poll, a seek, a restart, any operation that a search could have used. All others are
proved by what is in it, whatever is missing; where acknowledged sends go backwards, that is `append-order`, too."""


def _nothing_to_judge(verdict: Verdict) -> str:
    """Say why there was nothing to judge."""
    if verdict.operations:
        return f"none of the {verdict.operations:,} operations was answered: there was nothing to judge"
    if later := verdict.facts.get("later_operations"):
        return f"all of the {later:,} operations that were recorded began behind what had been read of every trace"
    if verdict.facts.get("replica_events"):
        return "no operations of clients were recorded: only the replicas were judged, and nothing is wrong with them"
    if verdict.damage:
        return "nothing of the recording could be read (--format and --model say what it is)"
    return "no operations were recorded: there was nothing to judge"


def unsure_place(one: Anomaly) -> str:
    """The place of an anomaly as text: some anomalies have no position, and a search without keys has no key."""
    place = one.kind if one.position is None else f"{one.kind} at {one.position}"
    return f"{one.key}: {place}" if one.key else place


_NOT_READ_TO_THE_END: Final = (
    "what was read is linearizable, but of {} nothing was read behind a damaged place, or nothing at all: "
    "what is there may be a violation"
)

_SEVERAL_CLIENTS: Final = (
    "processes that had several operations open at once, and completions without an operation: several clients seem to "
    "have one name, so nobody knows which completion answers which invocation"
)


def corrected_for_gaps(verdict: Verdict) -> Verdict:
    """Correct a verdict for what a recording lacks: responses, or parts that could not be read.

    Where no operation was answered nothing can contradict anything: a test whose clients never reached the system, or
    recorded nothing, must not look like one that passed, so it is undecided. So it is where a trace was not read to
    its end. Where other parts could not be read, findings that one more record may explain are undecided.
    """
    if verdict.verdict == LINEARIZABLE and not verdict.answered:
        return replace(verdict, verdict=UNDECIDED, undecided=(_nothing_to_judge(verdict),))
    unread = verdict.facts.get("unread", 0)
    if verdict.verdict == LINEARIZABLE and unread:
        files = "one trace" if unread == 1 else f"{unread} traces"
        return replace(verdict, verdict=UNDECIDED, undecided=(_NOT_READ_TO_THE_END.format(files),))
    # Which completion answers which invocation is a guess there, and all that follows from it, good or bad, with it.
    if verdict.facts.get("mispaired"):
        listed = (
            f"{unsure_place(one)}; it depends on which completion answers which invocation"
            for one in verdict.anomalies
        )
        undecided = (_SEVERAL_CLIENTS, *verdict.undecided, *listed)
        return replace(verdict, verdict=UNDECIDED, counts={}, anomalies=(), undecided=undecided)
    if not verdict.damage:
        return verdict
    counts = {kind: count for kind, count in verdict.counts.items() if kind not in MISSING_MAY_EXPLAIN}
    if counts == verdict.counts:
        return verdict
    doubtful = [one for one in verdict.anomalies if one.kind in MISSING_MAY_EXPLAIN]
    places = (f"{unsure_place(one)}; it may be explained by what was not read" for one in doubtful)
    return replace(
        verdict,
        verdict=VIOLATED if counts else UNDECIDED,
        counts=counts,
        anomalies=tuple(one for one in verdict.anomalies if one.kind not in MISSING_MAY_EXPLAIN),
        undecided=(*verdict.undecided, *places),
    )
