"""The report: that it needs nothing from outside, what it says and draws, how it looks empty and in a browser."""

from __future__ import annotations

import html
import io
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import Row
from rich.console import Console

from spark_analysis.checking.verdict import (
    LINEARIZABLE,
    MISSING_MAY_EXPLAIN,
    REPLICA_ANOMALIES,
    UNDECIDED,
    Verdict,
    corrected_for_gaps,
)
from spark_analysis.telling.console import print_verdicts
from spark_analysis.telling.names import names_from
from spark_analysis.telling.report import render
from spark_analysis.telling.report.answer import checked_and_not, words
from spark_analysis.telling.report.data import EVENTS_MAX
from spark_analysis.telling.report.evidence import telling
from spark_analysis.telling.report.lanes import Mark
from spark_analysis.telling.report.page import FINDINGS_LISTED, places_to_list
from spark_analysis.telling.report.parts import fault_marks, role_bands
from spark_analysis.telling.report.proof_figures import proof_figures
from spark_analysis.telling.report.run_data import (
    NODES_SHOWN,
    SLICES_MAX,
    SLICES_MIN,
    frequent,
    lag,
    rate_and_latency,
    slices_for,
)
from spark_analysis.telling.report.tables import ReportData, TracedEvent
from spark_analysis.telling.report.timeline import Bar, timeline
from spark_analysis.telling.report.windows import places_to_draw
from tests.spark_analysis.reports import (
    EXAMPLES,
    FACTS,
    MILLISECOND,
    QUEUE,
    UNDECIDED_VERDICT,
    data_for,
    events_of_a_failover,
    operation,
    verdict_of,
)

BYTES_MAX = 3_000_000

# ---- the page ------------------------------------------------------------------------------------------------------


def pages() -> Iterator[tuple[str, Verdict, ReportData]]:
    """Every state that a report can be in."""
    good = verdict_of()
    yield "good", good, data_for(good)
    bad = verdict_of(*EXAMPLES)
    yield "everything wrong", bad, data_for(bad)
    yield "undecided", UNDECIDED_VERDICT, data_for(UNDECIDED_VERDICT)
    nothing = replace(
        good,
        operations=0,
        facts=FACTS | {"functions": {}, "queues": 0, "clients": 0, "seconds": 0.0, "replica_events": {}},
    )
    yield "nothing", nothing, ReportData()
    unwatched = replace(good, facts=FACTS | {"replica_events": {}})
    yield "no replicas, no faults", unwatched, replace(data_for(good), events=())
    keyed = verdict_of("not-linearizable", facts={"model": "cas-register", "keys": 3, "bad_lines": 0})
    yield "keyed", keyed, ReportData()
    grouped = verdict_of("stale-read", "two-leaders")
    yield "several groups", grouped, _in_groups(grouped, "broker-a", "broker-b", "broker-of-a-long-name")
    crowd = verdict_of("stale-read", facts=FACTS | {"clients": 5000})
    yield "a crowd", crowd, _crowd(crowd)


def _in_groups(verdict: Verdict, *groups: str) -> ReportData:
    """The same failover in each group."""
    data = data_for(verdict)
    events = [replace(one, node=f"{name}/{one.node}", group=name) for name in groups for one in data.events]
    lag = next(panel for panel in data.panels if panel.title == "Replica lag")
    series = [replace(one, name=f"{name}/{one.name}") for name in groups for one in lag.series]
    panels = [replace(lag, title=f"Replica lag, {name}", series=series) for name in groups]
    return replace(
        data, events=tuple(sorted(events, key=lambda one: one.time_ns)), panels=(*data.panels[:2], *panels)
    )


def _crowd(verdict: Verdict) -> ReportData:
    """A finding with as much of everything as there can be."""
    data = data_for(verdict)
    window = data.windows[0]
    many = tuple(
        operation(
            100 + number,
            f"client {number} of a host with a long name",
            "read",
            1000 + number / 9,
            1002 + number / 3,
            offset=number,
        )
        for number in range(26)
    )
    roles = [  # each changes at every event
        TracedEvent(f"n{n % 5}", "role", n * MILLISECOND, ("leader", "follower")[n // 5 % 2], n)
        for n in range(EVENTS_MAX - 400)
    ]
    faults = [
        TracedEvent("d", "fault", n * 25 * MILLISECOND, detail="reset: links", targets=("n0",))
        for n in range(400)
    ]
    events = tuple(sorted((*roles, *faults), key=lambda event: event.time_ns))
    return replace(data, events=events, windows={0: replace(window, operations=(*window.operations, *many))})


PAGES = {name: (verdict, data) for name, verdict, data in pages()}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_needs_nothing_from_outside(name: str) -> None:
    page = render(*PAGES[name])
    assert len(page.encode()) < BYTES_MAX
    assert not re.findall(r"(?:src|href|url|@import|<script|<link|<iframe)\s*[=(\s>]", page)
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "None" not in re.sub(r"<[^>]+>", " ", page)


@pytest.mark.parametrize("name", PAGES)
def test_the_answer_stands_first(name: str) -> None:
    verdict, data = PAGES[name]
    page = render(verdict, data)
    body = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    text = " ".join(re.sub(r"<[^>]+>", " ", body[body.index("<body>") :]).split())
    assert text.startswith(verdict.verdict.capitalize())
    headings = ["What was checked", "What is wrong", "The proof", "The whole run", "All findings"]
    places = [text.index(heading) for heading in headings if heading in text]
    assert places == sorted(places)


def test_what_names_contain_is_text() -> None:
    """Of files, nodes, faults and roles, which are texts of a trace, too."""
    script = '"/><script>alert(1)</script>'
    evil = replace(verdict_of("stale-read"), path=script)
    events = [
        TracedEvent(script, "role", 990 * MILLISECOND, script, 1),
        TracedEvent(script, "role", 1040 * MILLISECOND, "leader", 1),
        TracedEvent("d", "fault", 1000 * MILLISECOND, detail=f"{script}: {script}", targets=(script,)),
    ]
    page = render(evil, replace(data_for(evil), events=tuple(events)))
    assert "role-&quot;/&gt;&lt;script" in page
    assert "<script" not in page


def test_the_answer_in_words() -> None:
    assert (
        "can be explained by a single queue on a single machine: there is an order" in words(verdict_of())[0]
    )
    assert "single queue on a single machine can never show" in words(verdict_of("stale-read"))[0]
    assert "but the replicas broke guarantees" in words(verdict_of("two-leaders"))[0]
    assert words(verdict_of("stale-read", "two-leaders"))[1] == "The replicas broke guarantees of Raft, too."
    assert "not everything could be decided" in words(UNDECIDED_VERDICT)[0]
    damage: tuple[str, ...] = ("a/cut.trace: byte 7: skipped",)
    parts = "Parts of the recording could not be read: the verdict is about the rest."
    cut = "The recording was cut off: the verdict is about what was recorded before."
    for facts, said in (
        ({"bad_lines": 1, "cut": 0}, [parts]),
        ({"bad_lines": 1, "cut": 1}, [cut]),
        ({"bad_lines": 2, "cut": 1}, [cut, parts]),
    ):
        assert words(verdict_of(damage=damage, facts=FACTS | facts))[1:] == said
    nothing = FACTS | {"functions": {}, "replica_events": {}}
    for damage, why in (
        (("a: no header",), "nothing of the recording could be read (--format and --model say what it is)"),
        ((), "no operations were recorded: there was nothing to judge"),
    ):
        unread = corrected_for_gaps(verdict_of(operations=0, damage=damage, facts=nothing))
        assert (unread.verdict, words(unread)) == (UNDECIDED, [f"There is no answer: {why}."])
    keyed = verdict_of(facts={"model": "mutex", "keys": 1})
    assert "a single mutex on a single machine" in words(keyed)[0]


def test_what_an_undecided_history_lacks_is_told_once_for_each_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = (
        "t/0: unexplained-offset at 3",
        "t/1: unexplained-offset at 9",
        "k: given up after 7 configurations (time)",
    )
    undecided = replace(verdict_of(), verdict=UNDECIDED, undecided=places)
    offset, search = undecided.missing
    assert "an acknowledged message is lost" in offset
    assert "--search-seconds" in search
    assert undecided.as_json()["missing"] == [offset, search]
    assert verdict_of().missing == ()
    print_verdicts([replace(undecided, damage=("a: byte 7: not CBOR",), facts=FACTS | {"bad_lines": 1})])
    told = " ".join(capsys.readouterr().out.split())
    assert offset in told
    assert "Parts of the recording could not be read: the verdict is about the rest." in told


def test_what_may_stand_in_unread_parts_is_not_missing() -> None:
    """A phantom's append may be in a line that could not be read; a stale read stays one."""
    damage = ("a.jsonl: line 7: not JSON",)
    alone = corrected_for_gaps(verdict_of("phantom-value", damage=damage))
    assert (alone.verdict, alone.counts, alone.anomalies) == (UNDECIDED, {}, ())
    assert alone.undecided == (f"{QUEUE}: phantom-value at 17; it may be explained by what was not read",)
    assert checked_and_not(alone)[1][0] == "open"
    assert "not everything could be decided" in words(alone)[0]
    both = corrected_for_gaps(verdict_of("phantom-value", "stale-read", damage=damage))
    assert (both.verdict, both.counts) == ("violated", {"stale-read": 1})
    assert [one.kind for one in both.anomalies] == ["stale-read"]
    assert len(both.undecided) == 1
    for whole in (
        verdict_of("phantom-value"),
        verdict_of("stale-read", damage=damage),
        verdict_of(damage=damage),
    ):
        assert corrected_for_gaps(whole) == whole
    assert {*EXAMPLES} >= MISSING_MAY_EXPLAIN
    search = corrected_for_gaps(verdict_of("not-linearizable", damage=damage))
    assert (search.verdict, search.undecided) == (
        UNDECIDED,
        ("k1: not-linearizable; it may be explained by what was not read",),
    )


def test_what_was_checked_and_what_was_not() -> None:
    assert [state for state, _ in checked_and_not(verdict_of())] == [
        *("holds", "holds", "unchecked", "holds", "unchecked", "holds")
    ]
    assert [state for state, _ in checked_and_not(verdict_of("stale-read", "two-leaders"))] == [
        *("holds", "broken", "unchecked", "holds", "unchecked", "broken")
    ]
    # What is undecided is not said to hold.
    assert checked_and_not(UNDECIDED_VERDICT)[0][0] == "open"
    keyed = {"model": "mutex", "keys": 1}
    states = [
        checked_and_not(verdict_of(verdict=answer, facts=keyed))[0][0] for answer in (LINEARIZABLE, UNDECIDED)
    ]
    assert states == ["holds", "open"]


def test_every_anomaly_breaks_a_promise() -> None:
    for kind in EXAMPLES:
        if kind != "not-linearizable":
            assert "broken" in [state for state, _ in checked_and_not(verdict_of(kind))], kind


def test_a_proof_is_drawn_with_its_culprits() -> None:
    (figure,) = proof_figures(verdict_of("stale-read"), data_for(verdict_of("stale-read")), [])
    assert figure.svg.count('class="proof"') == 2
    assert figure.svg.count('class="other') == 1  # the bystander
    assert "append @17" in figure.svg
    assert "read @17: nothing" in figure.svg
    assert "3.00 ms between" in figure.svg
    assert "leader, term 1" in figure.svg  # behind: what the replicas were
    assert len(figure.lines) == 2


def test_clients_are_called_by_their_processes() -> None:
    """Who recorded a client is its name, in words and lanes; what the protocol calls it stands beside it."""
    recorded = Row("client", "recorder", "place", "clients")
    crowd = [recorded("consumer-1", "crowd", 1, 9), recorded("consumer-2", "crowd", 7, 9)]
    several = [recorded("bystander", "b1", 1, 1), recorded("bystander", "b2", 1, 1)]
    names = names_from(
        [recorded("producer-1", "shop0", 1, 1), *crowd, recorded("auditor", None, 1, 1), *several]
    )
    assert names == {"producer-1": "shop0", "consumer-1": "crowd #1", "consumer-2": "crowd #7"}
    verdict = verdict_of("stale-read")
    data = replace(data_for(verdict), names=names | {"bystander": "visitor0"})
    page = render(verdict, data)
    assert "shop0 was told that message message-a stands at offset 17" in page
    assert "<title>shop0 (producer-1): append @17" in page
    assert "<td>shop0</td><td><code>producer-1</code></td>" in page
    assert "<td>visitor0</td><td><code>bystander</code></td>" in page
    assert "crowd #1 asked for offset 17" in page
    assert "Who the clients are" not in render(verdict, data_for(verdict))


def test_one_figure_for_each_kind_causes_first() -> None:
    """Two messages in one place, then pairs; what one operation alone shows comes last."""
    kinds = ["phantom-value", "stale-read", "duplicate-offset", "stale-tail"]
    anomalies = [*(EXAMPLES[kind] for kind in kinds), EXAMPLES["stale-read"]]
    drawn = [anomalies[place].kind for place in places_to_draw(anomalies)]
    assert drawn == ["duplicate-offset", "stale-read", "stale-tail", "phantom-value"]
    assert places_to_draw([EXAMPLES[kind] for kind in REPLICA_ANOMALIES]) == []


def test_some_findings_of_each_kind_are_listed() -> None:
    anomalies = [EXAMPLES["stale-read"]] * 60 + [EXAMPLES["two-leaders"]] * 2 + [EXAMPLES["stale-tail"]]
    assert places_to_list(anomalies) == [*range(FINDINGS_LISTED - 3), 60, 61, 62]
    assert places_to_list(anomalies[:3]) == [0, 1, 2]


def test_bad_lines_beyond_the_first_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    damage = tuple(f"a.jsonl: line {number}: not JSON" for number in range(20))
    many = verdict_of(damage=damage, facts=FACTS | {"bad_lines": 1234})
    assert "and 1,214 more" in render(many, ReportData())
    print_verdicts([many])
    assert "not read: and 1,226 more" in capsys.readouterr().out
    assert " more" not in render(verdict_of(damage=damage, facts=FACTS | {"bad_lines": 20}), ReportData())


def test_findings_beyond_the_first_are_counted() -> None:
    many = verdict_of(
        counts={"stale-read": 1000}, anomalies=(EXAMPLES["stale-read"],) * 60, verdict="violated"
    )
    page = render(many, ReportData())
    assert f"{FINDINGS_LISTED} of 1,000" in page
    assert page.count("<details") < FINDINGS_LISTED + 5


# ---- small tables --------------------------------------------------------------------------------------------------


def test_roles_become_bands() -> None:
    """A killed leader is down until its next start, whatever it had recorded last."""
    bands = role_bands(events_of_a_failover(), 9.0, 0)
    assert [(band.role, band.start, band.stop, band.label) for band in bands if band.node == "n0"] == [
        ("follower", 0.9, 1.0, ""),
        ("leader", 1.0, 4.0, "term 1"),
        ("down", 4.0, 7.0, ""),
        ("follower", 7.0, 9.0, ""),
    ]


def test_a_follower_of_another_leader_is_a_follower_still() -> None:
    events = [TracedEvent("n0", "role", at * 10**9, "follower", at) for at in range(1, 4)]
    assert [(band.role, band.start, band.stop) for band in role_bands(events, 9.0, 0)] == [
        ("follower", 1.0, 9.0)
    ]


def test_power_of_all_is_everybodys() -> None:
    events = [
        *events_of_a_failover(),
        TracedEvent("d", "fault", 8_000 * MILLISECOND, detail="power of all", targets=("group",)),
    ]
    down = {band.node for band in role_bands(events, 9.0, 0) if band.role == "down" and band.stop == 9.0}
    assert down == {"n0", "n1", "n2"}


def test_faults_are_numbered_from_one() -> None:
    assert [(mark.number, mark.at, mark.text) for mark in fault_marks(events_of_a_failover(), 0)] == [
        (1, 4.0, "kill n0 (SIGKILL)")
    ]


def test_frequent_functions_are_drawn() -> None:
    outcomes = {"append": {"ok": 300, "info": 9}, "tail": {"ok": 1}, "read": {"ok": 700}, "head": {"fail": 5}}
    assert frequent(verdict_of(operations=1000, facts=FACTS | {"functions": outcomes})) == ["read", "append"]
    many = {f"f{number}": {"ok": 100} for number in range(9)}
    assert frequent(verdict_of(operations=900, facts=FACTS | {"functions": many})) == ["f0", "f1", "f2", "f3"]


def test_a_slice_has_enough_operations() -> None:
    assert slices_for(0) == SLICES_MIN
    assert slices_for(2000) == 100
    assert slices_for(10**8) == SLICES_MAX


def test_rates_and_latencies_keep_their_gaps() -> None:
    rate, latency = rate_and_latency(
        ["append"], {("append", 0): (5, 2.0), ("append", 2): (1, 9.0)}, 3, 500_000_000
    )
    assert list(rate.series[0].points) == [(0.0, 10.0), (0.5, 0.0), (1.0, 2.0), (1.5, 2.0)]
    assert list(latency.series[0].points) == [(0.0, 2.0), (0.5, None), (1.0, 9.0), (1.5, 9.0)]


def test_lag_counts_from_the_furthest() -> None:
    series = lag({("n0", 0): 10, ("n1", 0): 4, ("n0", 1): 30, ("n1", 2): 30}, 3, 1_000_000_000)
    assert [[value for _, value in one.points] for one in series] == [[0, 0, 0, 0], [6, 26, 0, 0]]


def test_lag_is_drawn_of_few_nodes() -> None:
    many = {(f"n{number}", 0): number for number in range(9)}
    series = lag(many, 1, 1)
    assert [one.name for one in series] == [f"n{number}" for number in range(NODES_SHOWN)]
    assert series[0].points[0][1] == 8  # behind the furthest, which is not drawn


def test_replicas_events_show_both_sides() -> None:
    def commit(at: int, index: int) -> TracedEvent:
        return TracedEvent("n1", "commit", at, term=3, last_index=index)

    def role(node: str, at: int, term: int, last: int = 9) -> TracedEvent:
        return TracedEvent(node, "role", at, "leader", term, last_index=last)

    cases = {
        "term-went-back": ([role("n1", 1, 3), role("n1", 2, 7), role("n1", 3, 3)], [2, 3]),
        "commit-went-back": ([commit(1, 80), commit(2, 90), commit(3, 80)], [2, 3]),
        "committed-truncated": ([commit(5, 90), TracedEvent("n1", "truncate", 7, last_index=80)], [5, 7]),
        "leader-incomplete": ([commit(1, 88), commit(2, 88), role("n2", 8, 5, 73)], [1, 8]),
        "two-leaders": ([role("n0", 1, 4), role("n2", 2, 4), role("n0", 3, 4)], [1, 2]),
        "log-mismatch": (
            [
                TracedEvent("n0", "append", 1, term=3, first_index=12, last_index=12, digest=7),
                TracedEvent("n1", "append", 2, term=3, first_index=12, last_index=14, digest=8),
                TracedEvent("n1", "append", 3, term=3, first_index=12, last_index=12, digest=9),
            ],
            [1, 3],
        ),
    }
    for kind, (events, wanted) in cases.items():
        assert [event.time_ns for event in telling(EXAMPLES[kind], events)] == wanted, kind


def test_many_faults_are_drawn_faintly() -> None:
    bars = [Bar("c", 0, 1, "append @1", True, "")]
    few, many = [Mark(1, n, "kill") for n in range(3)], [Mark(n / 10, n, "kill") for n in range(90)]
    assert 'class="fault many"' not in timeline(bars, [], few, 0, 10)
    assert timeline(bars, [], many, 0, 10).count('class="fault many"') == 90


# ---- on a terminal -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 80, 160])
def test_the_terminal_says_the_same_in_any_width(width: int) -> None:
    stream = io.StringIO()
    verdicts = [replace(verdict_of(*EXAMPLES), path="run[bold]1"), verdict_of(), UNDECIDED_VERDICT]
    print_verdicts(verdicts, Console(file=stream, width=width))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    said = " ".join(" ".join(lines).split())
    assert said.startswith("VIOLATED run[bold]1")
    assert "LINEARIZABLE traces/run-1" in said
    assert f"undecided: {QUEUE}:" in said
    assert "Then, 3.00 ms later, consumer-1 asked for offset 17 and was told that nothing is there." in said
    for kind in EXAMPLES:
        assert kind in said


def test_control_characters_of_a_recording_do_not_reach_the_terminal() -> None:
    """In the names of clients, queues, messages and files."""
    stream, control = io.StringIO(), "\x1b[2J\x9b31m\x07"
    told = verdict_of("stale-read")
    anomalies = [
        replace(
            one, key=control, proof=tuple(row | {"client": control, "values": [control]} for row in one.proof)
        )
        for one in told.anomalies
    ]
    evil = replace(told, path=control, anomalies=tuple(anomalies), damage=(control,))
    print_verdicts([evil, evil], Console(file=stream, width=160))
    said = stream.getvalue()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", said)
    assert said.count(r"\x1b[2J\x9b31m\x07") > 5


@pytest.mark.parametrize("columns", [None, "80"])
def test_what_is_no_terminal_has_no_broken_lines(
    columns: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody could search what was broken at 160 columns."""
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    wide = replace(verdict_of("stale-read"), path="/long" * 60, undecided=("word " * 80,))
    print_verdicts([wide, wide])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "  [0.020000, 0.022000] s producer-1: append message-a -> offset 17" in out
    lines = out.splitlines()
    assert out.count("/long" * 60) == 4
    assert f"  undecided: {'word ' * 79}word" in [line.rstrip() for line in lines]
    assert max(map(len, lines)) < 500, "no line ends in thousands of spaces"


# ---- in a browser --------------------------------------------------------------------------------------------------

_MEASURE = """
<script>
const found = [];
document.querySelectorAll("details").forEach(one => { one.open = true; });
for (const svg of document.querySelectorAll("svg")) {
  const frame = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")].map(one => [one.textContent, one.getBoundingClientRect()]);
  texts.forEach(([text, box], number) => {
    if (box.left < frame.left - 2 || box.right > frame.right + 2) found.push(`outside: ${text}`);
    if (box.height < 9) found.push(`too small to read: ${text}`);
    for (const [other, its] of texts.slice(0, number)) {
      const wide = Math.min(box.right, its.right) - Math.max(box.left, its.left);
      const high = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
      if (wide > 2 && high > 5) found.push(`over each other: ${text} | ${other}`);
    }
  });
}
for (const one of document.querySelectorAll("table, code, pre, p")) {
  const right = one.getBoundingClientRect().right;
  if (right > window.innerWidth + 1) found.push(`cut: ${one.textContent.trim().slice(0, 30)}`);
}
if (document.documentElement.scrollWidth > window.innerWidth) found.push("wider than the window");
document.body.innerHTML = `<output>${found.length} faults: ${found.slice(0, 5).join("; ")}</output>`;
</script>
"""


_GATHER = """
<script>
window.onload = () => {
  const frames = [...document.querySelectorAll("iframe")];
  const told = frames.map(one => `<p title="${one.title}">${one.contentDocument.body.innerHTML}</p>`);
  document.body.innerHTML = told.join("");
};
</script>
"""


def _browser() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if (path := shutil.which(name)) is not None:
            return path
    pytest.skip("no Chromium on the PATH (Debian: apt-get install chromium)")


@pytest.mark.slow
@pytest.mark.parametrize("width", [pytest.param(1400, marks=pytest.mark.in_turn), 800, 390])
def test_a_browser_draws_every_page_without_overlaps(width: int, tmp_path: Path) -> None:
    """Measured in the browser: texts of the drawings neither cover each other nor leave them, all can be read, and
    nothing is cut: where a window is narrower than a drawing, as on a telephone, the drawing is moved in its frame."""
    # One start of the browser for all pages; and a frame can be narrower than its window.
    frames = []
    for name, (verdict, data) in PAGES.items():
        page = html.escape(render(verdict, data).replace("</body>", f"{_MEASURE}</body>"), quote=True)
        frames.append(f'<iframe title="{name}" width="{width}" height="900" srcdoc="{page}"></iframe>')
    path = tmp_path / "pages.html"
    path.write_text("".join(frames) + _GATHER)
    done = subprocess.run(
        [
            *(_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1500,1000"),
            *(
                "--host-resolver-rules=MAP * ~NOTFOUND",
                "--enable-logging=stderr",
                "--virtual-time-budget=2000",
            ),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    found = dict(re.findall(r'(?s)<p title="([^"]*)"><output>(.*?)</output>', done.stdout))
    assert found == dict.fromkeys(PAGES, "0 faults: ")
