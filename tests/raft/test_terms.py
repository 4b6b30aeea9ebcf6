"""`LogTerms` and `PersistedIndex` against plain lists."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raft import Configuration, LogTerms
from raft.durability import PersistedIndex
from tests.examples import examples
from tests.raft.cluster import Entry, Log

SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=6)


def log_of(first_index: int, base_term: int, steps: list[tuple[int, int]]) -> tuple[LogTerms, list[int]]:
    """A view and the terms of its entries; steps are (rise of the term, count)."""
    terms: list[int] = []
    term = max(base_term, 1)
    view = LogTerms(first_index, first_index - 1, (), base_term)
    for rise, count in steps:
        term += rise
        view.append(term, count)
        terms += [term] * count
    return view, terms


class TermsMachine(RuleBasedStateMachine):
    """The view beside a list of terms, one per entry."""

    def __init__(self) -> None:
        super().__init__()
        self.view = LogTerms()
        self.first_index = 0
        self.base_term = 0
        self.terms: list[int] = []

    @property
    def last_term(self) -> int:
        return self.terms[-1] if self.terms else self.base_term

    @rule(rise=st.integers(0, 2), count=st.integers(1, 5))
    def append(self, rise: int, count: int) -> None:
        term = max(1, self.last_term + rise)
        self.view.append(term, count)
        self.terms += [term] * count

    @rule(kept=st.integers(0, 10))
    def truncate(self, kept: int) -> None:
        kept = min(kept, len(self.terms))
        self.view.truncate(self.first_index + kept - 1)
        del self.terms[kept:]

    @rule(dropped=st.integers(0, 10))
    def drop(self, dropped: int) -> None:
        dropped = min(dropped, len(self.terms))
        self.view.drop_before(self.first_index + dropped)
        if dropped:
            self.base_term = self.terms[dropped - 1]
        self.first_index += dropped
        del self.terms[:dropped]

    @precondition(lambda self: self.first_index > 3)
    @rule(first_index=st.integers(0, 30), base_term=st.integers(1, 9))
    def reset(self, first_index: int, base_term: int) -> None:
        self.view.reset(first_index, base_term)
        self.first_index, self.base_term, self.terms = first_index, base_term, []

    @invariant()
    def same(self) -> None:
        view = self.view
        assert (view.first_index, view.base_term) == (self.first_index, self.base_term)
        assert view.last_index == self.first_index + len(self.terms) - 1
        assert view.last_term == self.last_term
        indices = range(self.first_index, self.first_index + len(self.terms))
        assert [view.term_at(index) for index in indices] == self.terms
        assert view.term_at(self.first_index - 1) == self.base_term
        again = LogTerms(view.first_index, view.last_index, view.runs, view.base_term)
        assert again.runs == view.runs


TestTermsMachine = TermsMachine.TestCase
TestTermsMachine.settings = settings(max_examples=examples(50), stateful_step_count=30, deadline=None)


@given(st.integers(0, 5), SPANS, st.integers(0, 20), st.integers(0, 20))
def test_spans_are_the_terms_of_a_range(
    first: int, steps: list[tuple[int, int]], start: int, count: int
) -> None:
    view, terms = log_of(first, 0, steps)
    start = min(start, len(terms))
    chosen = terms[start : start + count]
    spans = view.spans(first + start, first + start + len(chosen) - 1)
    assert [term for term, length in spans for _ in range(length)] == chosen
    assert len({term for term, _ in spans}) == len(spans)


@given(st.integers(0, 5), SPANS, SPANS, st.integers(0, 20))
def test_the_first_difference_is_where_two_logs_part(
    first: int, mine: list[tuple[int, int]], theirs: list[tuple[int, int]], after: int
) -> None:
    view, terms = log_of(first, 0, mine)
    other, other_terms = log_of(first, 0, theirs)
    after = min(after, len(terms), len(other_terms))
    spans = other.spans(first + after, other.last_index)
    expected = next(
        (i for i in range(after, len(other_terms)) if i >= len(terms) or terms[i] != other_terms[i]),
        len(other_terms),
    )
    assert view.first_difference(first + after - 1, spans) == first + expected


@given(st.integers(0, 5), st.integers(0, 3), SPANS, st.integers(-1, 30), st.integers(0, 12))
def test_the_conflict_search_finds_the_last_candidate(
    first: int, base_term: int, steps: list[tuple[int, int]], index: int, term: int
) -> None:
    if first == 0:
        base_term = 0
    view, terms = log_of(first, base_term, steps)
    known = [(first - 1, base_term), *enumerate(terms, first)]
    candidates = [position for position, held in known if position <= index and held <= term]
    assert view.last_not_after(index, term) == max(candidates, default=first - 2)


@pytest.mark.parametrize(
    ("first_index", "last_index", "runs", "base_term", "why"),
    [
        (0, 3, [], 0, "runs must cover exactly"),
        (0, -1, [(0, 1)], 0, "runs must cover exactly"),
        (0, 3, [(1, 1)], 0, "do not cover"),
        (0, 3, [(0, 1), (4, 2)], 0, "do not cover"),
        (0, 3, [(0, 2), (2, 1)], 0, "must rise"),
        (0, 3, [(0, 1), (0, 2)], 0, "must rise"),
        (5, 8, [(5, 2)], 3, "follows term 3"),
        (-1, 3, [(-1, 1)], 0, "no log spans"),
        (5, 3, [], 0, "no log spans"),
        (0, 0, [(0, 0)], 0, "follows term 0"),
    ],
)
def test_a_view_that_cannot_be_is_refused(
    first_index: int, last_index: int, runs: list[tuple[int, int]], base_term: int, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        LogTerms(first_index, last_index, runs, base_term)


def test_the_harness_describes_its_logs_by_the_same_terms() -> None:
    log = Log([Entry(2, "x"), Entry(2, "y"), Entry(5, "z")], (-1, Configuration(("a",))), 7, 1)
    assert log.terms().runs == ((7, 2), (9, 5))


@given(
    st.lists(st.tuples(st.sampled_from(["write", "cut", "begin", "end"]), st.integers(0, 12)), max_size=400)
)
def test_only_what_a_flush_found_and_nobody_cut_is_durable(steps: list[tuple[str, int]]) -> None:
    """The model stamps every entry when it is written and remembers the stamps that a flush saw."""
    stamp = 0
    log: list[int] = []
    on_disk: set[int] = set()
    persisted = PersistedIndex(-1)
    flushes: list[tuple[list[int], int]] = []
    for kind, number in steps:
        if kind == "write":
            for _ in range(number):
                stamp += 1
                log.append(stamp)
        elif kind == "cut" and number < len(log):
            del log[number:]
            persisted.cut(number - 1)
        elif kind == "begin":
            flushes.append((list(log), persisted.generation))
        elif kind == "end" and flushes:
            held, generation = flushes.pop(number % len(flushes))
            on_disk.update(held)
            persisted.flushed(len(held) - 1, generation)
        assert all(entry in on_disk for entry in log[: persisted.index + 1])


def test_very_old_flushes_are_forgotten_rather_than_trusted() -> None:
    persisted = PersistedIndex(-1)
    for last_index in range(200):
        persisted.cut(last_index)
    assert not persisted.flushed(5, 0)
    assert persisted.flushed(300, persisted.generation)
    assert persisted.index == 300
