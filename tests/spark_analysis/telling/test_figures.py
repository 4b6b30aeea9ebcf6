"""The drawings: no text over another, whatever is drawn; scales; and what an estimate of a text's width may promise."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_analysis.telling.report.lanes import Band, Mark
from spark_analysis.telling.report.run_figure import Panel, Series, run
from spark_analysis.telling.report.svg import WIDTH, number_text, round_steps, shortened, text_width
from spark_analysis.telling.report.timeline import Bar, timeline
from tests.examples import examples


@dataclass(frozen=True)
class Written:
    """A text of a drawing, with the room that it takes."""

    text: str
    left: float
    right: float
    baseline: float


def texts_of(svg: str) -> list[Written]:
    found = []
    for element in ElementTree.fromstring(svg).iter("text"):
        text = "".join(part for part in (element.text, *(child.tail for child in element)) if part)
        x, width = float(element.attrib["x"]), text_width(text)
        left = {"start": x, "middle": x - width / 2, "end": x - width}[element.attrib["text-anchor"]]
        found.append(Written(text, left, left + width, float(element.attrib["y"])))
    return found


def check_nothing_overlaps(svg: str) -> None:
    texts = texts_of(svg)
    assert texts
    for number, one in enumerate(texts):
        assert one.left >= -1, one
        assert one.right <= WIDTH, one
        for other in texts[:number]:
            if abs(one.baseline - other.baseline) < 9:
                assert one.left >= other.right - 0.5 or other.left >= one.right - 0.5, (one, other)


moments = st.floats(-5, 105, allow_nan=False)
bars = st.builds(
    lambda lane, start, length, label, is_proof: Bar(
        f"client-{lane}", start, None if length > 90 else start + length, label, is_proof, "about"
    ),
    st.integers(0, 4),
    st.floats(0, 100),
    st.floats(0, 100),
    st.sampled_from(["append @1", "read @123456: 1024 messages", "append, outcome unknown", "tail = 7 <&>"]),
    st.booleans(),
)
marks = st.lists(st.builds(Mark, st.floats(0, 100), st.integers(1, 99), st.just("kill n0")), max_size=12)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(bars, max_size=25), marks)
def test_no_text_of_a_timeline_covers_another(drawn: list[Bar], faults: list[Mark]) -> None:
    bands = [Band("n0", "leader", -10, 40, "leader, term 3"), Band("n1", "follower", 0, 200, "follower")]
    check_nothing_overlaps(timeline(drawn, bands, faults, 0, 100))


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 100), st.none() | st.floats(0, 1e9)), min_size=1, max_size=20),
    st.booleans(),
    marks,
)
def test_no_text_of_a_run_covers_another(
    points: list[tuple[float, float | None]], is_logarithmic: bool, faults: list[Mark]
) -> None:
    series = [Series(name, sorted(points, key=lambda point: point[0])) for name in ("append", "read", "tail")]
    panels = [Panel("latency", "milliseconds", series, is_logarithmic)]
    check_nothing_overlaps(run(panels, [Band("n0", "leader", 0, 50, "1")], faults, 0, 100))


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=4), st.booleans())
@example([5e-324], True)
@example([5e-324, 1e9], True)
@example([1e-9, 3e-9], False)
def test_a_scale_has_different_numbers(values: list[float], is_logarithmic: bool) -> None:
    """However small or far apart the values are."""
    panel = Panel("latency", "milliseconds", [Series("append", list(enumerate(values)))], is_logarithmic)
    svg = run([panel], [], [], 0, 100)
    numbers = re.findall(r'text-anchor="end">([^<]*)<', svg)
    assert 2 <= len(numbers) == len(set(numbers)), numbers


def test_small_numbers_of_an_axis_are_told_apart() -> None:
    labels = [number_text(step) for step in round_steps(0, 1e-6, 8)]
    assert labels == ["0", "2e-07", "4e-07", "6e-07", "8e-07", "0.000001"]
    assert [number_text(value) for value in (0.0, -0.0, 1234567.5, -0.25)] == [
        "0",
        "0",
        "1,234,567.5",
        "-0.25",
    ]


@pytest.mark.parametrize(
    ("seconds", "unit", "last"),
    [
        (5e-6, "microseconds", "5"),
        (4e-3, "milliseconds", "4"),
        (0.5, "milliseconds", "500"),
        (40, "seconds", "40"),
    ],
)
def test_the_axis_of_a_run_has_the_unit_of_its_span(seconds: float, unit: str, last: str) -> None:
    """Of some microseconds it had the numbers 5e-07, and 0.000002 twice."""
    panel = Panel("Throughput", "operations", [Series("append", [(0.0, 1.0), (seconds, 1.0)])])
    texts = texts_of(run([panel], [], [], 0, seconds))
    *numbers, caption = [one.text for one in texts if one.baseline >= max(two.baseline for two in texts) - 16]
    assert caption == unit
    assert len(set(numbers)) == len(numbers) > 2
    assert numbers[-1] == last
    assert not [one for one in numbers if "e" in one]


def test_steps_are_round() -> None:
    assert round_steps(0, 1, 4) == [0, 0.5, 1.0]
    assert round_steps(-3, 38, 8) == [0, 10, 20, 30]


def test_a_name_that_is_too_long_keeps_its_ends() -> None:
    short = shortened("10.0.2.4@104#177242353491581", 100)
    assert short.startswith("10.0.2")
    assert short.endswith("491581")
    assert text_width(short) <= 100
    assert shortened("abc", 5) == ""


def test_what_clients_wrote_is_text_and_not_markup() -> None:
    svg = timeline([Bar("<script>", 0, 1, "<b>", True, '"&')], [], [], 0, 1)
    assert not re.search(r"<script|<b>", svg)
