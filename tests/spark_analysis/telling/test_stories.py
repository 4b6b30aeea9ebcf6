"""What a report says of every kind of finding."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from spark_analysis.checking.verdict import (
    EXPLANATIONS,
    Anomaly,
    Verdict,
)
from spark_analysis.telling import stories
from spark_analysis.telling.console import print_verdicts
from spark_analysis.telling.report import render
from spark_analysis.telling.report.tables import ReportData, Window
from spark_analysis.telling.stories import story
from spark_analysis.telling.stories.words import duration
from tests.spark_analysis.reports import (
    EXAMPLES,
    FACTS,
    QUEUE,
    append,
    data_for,
    operation,
    read,
    verdict_of,
)

SAID = {
    "duplicate-offset": [
        "At 0.022 s, producer-1 was told that message message-a stands at offset 17.",
        "Then, 1.00 ms later, producer-2 was told that message message-b stands at offset 17.",
        "One place holds one message.",
    ],
    "inconsistent-offset": [
        "At 0.015 s, consumer-2 was given message message-a at offset 17.",
        "Then, 8.00 ms later, producer-2 was told that message message-b stands at offset 17.",
        "never changes",
    ],
    "append-order": ["message message-a stands at offset 17", "8.00 ms later", "came to offset 9"],
    "stale-read": [
        "At 0.022 s, producer-1 was told that message message-a stands at offset 17.",
        "Then, 3.00 ms later, consumer-1 asked for offset 17 and was told that nothing is there.",
    ],
    "stale-tail": ["3.00 ms later, auditor asked where the queue ends and was told: before offset 17"],
    "premature-read": [
        "consumer-2 had been given message message-a at offset 17",
        "5.00 ms later, producer-1 began to append",
    ],
    "torn-read": ["consumer-2 read from offset 17 on and got offset 17", "contradicts itself"],
    "torn-append": ["offset 17", "torn apart"],
    "aborted-read": ["consumer-2 was given message message-a", "certainly failed"],
    "duplicate-value": ["Message message-a stands at offset 17", "at another offset"],
    "phantom-value": ["consumer-2 was given message message-a", "No client of this recording ever sent it"],
    "unexplained-value": ["consumer-2 was given message message-a", "began too late"],
    "unexplained-offset": [
        "stands at offset 17",
        "the queue ends before offset 17",
        "none can have filled that place",
    ],
    "backward-head": ["begins at offset 9", "4.00 ms later", "at offset 3", "never goes back"],
    "stale-offset": [
        "consumer-1 asked for the offset of consumer group readers",
        "told 5",
        "no order of the commits",
    ],
    "phantom-offset": ["told 5", "Nobody had ever stored that"],
    "poll-skip": ["had been given message v4 at offset 4", "polled and got offset 9", "passed over"],
    "nonmonotonic-poll": ["had been given message v4 at offset 4", "polled and got offset 9", "goes back"],
    "int-poll-skip": ["One answer to a poll of consumer-1", "passes over messages"],
    "int-nonmonotonic-poll": ["One answer to a poll of consumer-1", "out of order, or twice"],
    "lost-write": [
        "producer-1 was told that its message stands at offset 17",
        "an acknowledged message is lost",
    ],
    "nonmonotonic-send": ["stands at offset 17", "came to offset 9", "Both are the same client's"],
    "unseen": ["acknowledged at offset 17", "nobody was given it"],
    "int-send-skip": ["one transaction of producer-1", "stand others"],
    "int-nonmonotonic-send": ["one transaction of producer-1", "the order is not that in which it sent them"],
    "precommitted-read": ["consumer-1 polled at offset 9", "not yet committed"],
    "G1c": ["in a circle (operation 9 -> operation 10)", "none can have been the first"],
    "G1c-realtime": ["each polled what the one before had sent", "the last had ended before the first began"],
    "not-linearizable": ["On key k1 no order", "after 1 of 2 operations"],
    "two-leaders": ["n0 and n2 were both leader in term 4"],
    "term-went-back": ["n1 had been in term 7 and was in term 3 afterwards"],
    "commit-went-back": ["up to 90 as committed", "only those up to 80"],
    "committed-truncated": ["up to 90 as committed", "removed all from 81 on"],
    "leader-incomplete": [
        "n2 became leader of term 5",
        "ended before entry 74",
        "up to 88 had been committed",
    ],
    "log-mismatch": ["n0 and n1 hold different bytes at entry 12"],
    "prefix-mismatch": ["n0 and n1 have committed different bytes", "up to entry 1024"],
}


def test_every_kind_has_a_story() -> None:
    assert EXPLANATIONS.keys() == SAID.keys() == EXAMPLES.keys()


@pytest.mark.parametrize("kind", SAID)
def test_the_story_of_each_kind(kind: str) -> None:
    told = " ".join(stories.story(EXAMPLES[kind], FACTS["first_ns"]))
    for fragment in SAID[kind]:
        assert fragment in told
    assert "None" not in told
    page = render(verdict_of(kind), data_for(verdict_of(kind)))
    assert _plain(told) in _plain(re.sub(r"<[^>]+>", "", page))


def _plain(text: str) -> str:
    return " ".join(text.replace("&#39;", "'").replace("&gt;", ">").split())


def test_a_kind_without_a_story_is_explained() -> None:
    assert stories.story(Anomaly("new-kind", QUEUE, 4, (), "why")) == [f"{QUEUE}, offset 4: new-kind (why)."]


def test_a_stored_offset_that_was_replaced() -> None:
    """The newer offset is not in the proof, but in what went on around it."""
    old = operation(1, "c1", "commit_offset", 1, 2, offset=5)
    newer = operation(2, "c1", "commit_offset", 3, 4, offset=8)
    told = operation(3, "c2", "fetch_offset", 6, 7, offset=5)
    anomaly = Anomaly("stale-offset", f"{QUEUE} readers", 5, (old, told))
    assert stories.contradiction(anomaly) is None
    assert stories.contradiction(anomaly, (newer,)) == (newer, told)
    assert stories.story(anomaly, 0, (newer,))[:2] == [
        "At 0.004 s, c1 had been told that the consumer group's offset 8 is stored.",
        "Then, 2.00 ms later, c2 asked for the consumer group's offset and was told 5.",
    ]


def test_both_sides_of_a_contradiction_are_listed() -> None:
    """On a terminal and on the page: also the one that is not in the proof, and it comes before what only surrounds."""
    others = [
        operation(number, "c1", "fetch_offset", 10 * number, 10 * number + 1, offset=5) for number in (5, 6)
    ]
    newer = operation(2, "c1", "commit_offset", 3, 4, offset=8)
    told = operation(3, "c2", "fetch_offset", 7, 9, offset=5)
    old = operation(1, "c1", "commit_offset", 1, 2, offset=5)
    anomaly = Anomaly("stale-offset", f"{QUEUE} readers", 5, (*others, old, told))
    assert stories.operations_told(anomaly, (newer,)) == [newer, told, *others, old]
    verdict = replace(verdict_of("stale-offset"), anomalies=(replace(anomaly, proof=(old,)), anomaly))
    text = io.StringIO()
    around = [{1: (newer, *others)}]
    print_verdicts([verdict], Console(file=text, width=200), around)
    shown = text.getvalue().split("for example")[1]
    assert shown.index("commit_offset -> 8") < shown.index("fetch_offset -> 5")
    assert "1 queue, " in print_of(replace(verdict, facts=FACTS | {"queues": 1}))
    window = Window(0, 100, 0, 100, (2, 3), (newer, told, *others))
    page = render(verdict, replace(ReportData(), windows={1: window}))
    findings = page.split("<h2>All findings")[1]
    assert "commit_offset -&gt; 8" in findings


def print_of(verdict: Verdict) -> str:
    text = io.StringIO()
    print_verdicts([verdict], Console(file=text, width=200))
    return text.getvalue()


def test_a_stored_offset_that_was_forgotten() -> None:
    """The consumer group is told what it would be told if it had never stored any."""
    stored = operation(1, "c1", "commit_offset", 1, 2, offset=5)
    for told in (
        operation(2, "c2", "fetch_offset", 6, 7, offset=0),
        operation(2, "c2", "fetch_offset", 6, 7),
    ):
        anomaly = Anomaly("stale-offset", f"{QUEUE} readers", told.get("offset"), (told,))
        assert stories.contradiction(anomaly, (stored,)) == (stored, told)
    # Somebody tries to store the same once more, and gets no answer.
    retried = operation(4, "c3", "commit_offset", 3, None, offset=5)
    assert stories.contradiction(anomaly, (stored, retried)) == (stored, told)
    again = operation(3, "c1", "commit_offset", 3, 4, offset=0)
    assert stories.contradiction(anomaly, (stored, again)) is None


def test_what_was_stored_instead_of_a_phantom() -> None:
    told = operation(3, "c2", "fetch_offset", 6, 7, offset=5)
    others = [operation(n, "c1", "commit_offset", n, n + 0.5, offset=7 + n) for n in (1, 2, 8)]
    anomaly = Anomaly("phantom-offset", f"{QUEUE} readers", 5, (told,))
    assert stories.decisive(anomaly, others) == [told, others[1]]
    assert stories.story(anomaly, 0, others)[-1] == "What c1 had stored last was 9."
    assert stories.place_of(anomaly) == f"{QUEUE}, consumer group readers, offset 5"


def test_a_refused_message_that_was_read_names_its_sender() -> None:
    """Its append has no offset: it is found by the message, and what stands elsewhere is no culprit."""
    elsewhere = operation(1, "p", "append", 1, 2, first_offset=18, values=["x"])
    anomaly = Anomaly("aborted-read", QUEUE, 17, (elsewhere, read(2, "c", 3, 4, 17, "a")))
    sent = operation(3, "p2", "append", 1, 2, outcome="fail", values=["a"])
    assert stories.refused_value(anomaly) == "a"
    assert stories.decisive(anomaly, [sent]) == [anomaly.proof[1], sent]
    assert stories.story(anomaly, 0, [sent])[-1].startswith("Its sender, p2, had been told")


def test_a_torn_read_says_what_it_leaves_out() -> None:
    answer = read(1, "c", 1, 2, 38, "b", "c") | {"offset": 37}
    left_out = append(2, "p", 0, 1, 37, "a")
    assert stories.decisive(Anomaly("torn-read", QUEUE, 38, (answer,)), [left_out]) == [answer, left_out]
    assert stories.story(Anomaly("torn-read", QUEUE, 38, (answer,)), 0, [left_out])[1:] == [
        "The answer leaves out offset 37, although nothing was to be left out.",
        "p's message a stands there.",
    ]
    told = stories.story(Anomaly("torn-read", QUEUE, 38, (answer | {"offset": 30},)))
    assert "leaves out offsets 30 to 37" in told[1]
    assert "begins before" in stories.story(Anomaly("torn-read", QUEUE, 38, (answer | {"offset": 39},)))[1]


def test_what_was_read_before_an_append_of_something_else() -> None:
    early, late = read(1, "c", 1, 2, 17, "a"), append(2, "p", 5, 6, 17, "b")
    told = stories.story(Anomaly("premature-read", QUEUE, 17, (late, early)))
    assert told[-1] == "Another message stood there already; what is appended later must stand behind it."


def test_of_a_dispute_one_of_each_side_is_red() -> None:
    appends = [append(n, f"p{n}", n, n + 1, 17, f"v{n}") for n in range(2)]
    reads = [read(9 + n, "c", 5 + n, 6 + n, 17, f"v{n % 3}") for n in range(6)]
    tail = operation(30, "t", "tail", 0, 1, offset=17)
    anomaly = Anomaly("inconsistent-offset", QUEUE, 17, (tail, *reads, *appends))
    assert stories.decisive(anomaly) == [*appends, reads[2]]


def test_a_dispute_of_a_moment_and_of_a_batch() -> None:
    batch = operation(1, "p", "append", 1, 9, first_offset=15, values=["a", "b", "c"])
    told = stories.story(Anomaly("duplicate-offset", QUEUE, 17, (batch, append(2, "q", 2, 9, 17, "x"))))
    assert told[:2] == [
        "At 0.009 s, p was told that message c, one of 3, stands at offset 17.",
        "At the same time q was told that message x stands at offset 17.",
    ]


def test_three_nodes_that_differ() -> None:
    key = "n0 and n1 and n2"
    for kind, words_of in (
        ("log-mismatch", "do not all hold the same"),
        ("prefix-mismatch", "have not all committed"),
    ):
        told = stories.story(Anomaly(kind, key, 12))
        assert told[0].startswith(f"n0, n1 and n2 {words_of}")
    assert "n0, n1 and n2 were all leader" in stories.story(Anomaly("two-leaders", "term 3", 3, (), key))[0]


def test_a_pair_that_is_not_in_the_proof_is_not_invented() -> None:
    """The operations overlap: nothing is said about which was first."""
    one, other = append(1, "p", 1, 9, 4, "a"), read(2, "c", 3, 5, 4)
    assert stories.contradiction(Anomaly("stale-read", QUEUE, 4, (one, other))) is None


@pytest.mark.parametrize(
    ("nanoseconds", "words"),
    [
        (5, "5 ns"),
        (1_500, "1.50 µs"),
        (12_345_678, "12.3 ms"),
        (999_000_000, "999 ms"),
        (31_200_000_000, "31.2 s"),
    ],
)
def test_durations(nanoseconds: int, words: str) -> None:
    assert duration(nanoseconds) == words


def test_a_leader_with_a_long_but_stale_log_is_told_as_one() -> None:
    """Not that its log was too short, which is the other way of lacking an entry."""
    detail = "leader of term 5; its log ends with entry 90 of term 2; committed before, in term 4: 88"
    anomaly = Anomaly("leader-incomplete", "n2", 88, (), detail)
    said = " ".join(story(anomaly))
    assert "n2 became leader of term 5. Its log ended with entry 90, of term 2. Entry 88, of term 4," in said
