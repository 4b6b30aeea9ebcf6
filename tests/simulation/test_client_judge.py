"""The judge of clients: what they read, what a group's members are told of its offsets, and that nobody but they
moves them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.state.commands import Command, CommitOffsets, EndResets, PutTopic, ResetOffsets, encode_command
from broker.state.topic_rules import topic_config
from simulation.journal import Violation
from simulation.judges.client_judge import ENDS, ClientJudge
from simulation.judges.group_model import CommittedQueue, GroupModel
from simulation.judges.stored_offsets import NEVER, OffsetRequest, first_unasked

KEY = ("readers", "events", 0)


class History:
    """The history of one group's offset in one queue, in true time."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.model = GroupModel()
        self.judge = ClientJudge(self.model, self._time)

    def _time(self) -> int:
        self.now_ns += 1
        return self.now_ns

    def ask(self, offset: int) -> Callable[[], None]:
        """A member asks to store an offset; call what is returned when it is told that it is stored."""
        asked = self.judge.asked("reader0", "events/broker-a:0", "readers", (), offset)
        self.judge.asked_to_store(asked)
        return lambda: self.judge.offset_stored(asked)

    def store(self, offset: int | None) -> None:
        """The group commits an offset, or that there is none."""
        self.model.offsets.setdefault(KEY, []).append((self._time(), offset))

    def query(self) -> Callable[[int | None], None]:
        """A member asks for the offset; call what is returned with the answer."""
        asked = self.judge.asked("reader1", "events/broker-a:0", "readers", (), 0)
        return lambda offset: self.judge.offset_was(asked, offset)


@pytest.fixture
def history() -> History:
    return History()


def test_position_that_is_stored_again_after_a_newer_one_is_a_violation(history: History) -> None:
    """Log and answers agree, and yet the group was taken back (seeds 108 and 306 of the simulator)."""
    for offset in (85, 86):
        acknowledged = history.ask(offset)
        history.store(offset)
        acknowledged()
    history.store(85)
    answer = history.query()
    with pytest.raises(Violation, match=r"offsets are stored when clients ask.*85 was stored at"):
        answer(85)


def test_it_is_one_at_the_end_too_if_nobody_has_asked(history: History) -> None:
    acknowledged = history.ask(85)
    history.store(85)
    acknowledged()
    history.store(84)
    with pytest.raises(Violation, match=r"offsets are stored when clients ask.*84 was stored"):
        history.judge.check_outcomes()


def test_a_member_may_go_back_itself(history: History) -> None:
    for offset in (85, 86, 85):
        acknowledged = history.ask(offset)
        history.store(offset)
        acknowledged()
    history.query()(85)
    history.judge.check_outcomes()


def test_request_of_unknown_outcome_may_be_done_late_but_once(history: History) -> None:
    history.ask(85)
    acknowledged = history.ask(86)
    history.store(86)
    acknowledged()
    history.store(85)
    history.query()(85)
    acknowledged = history.ask(86)
    history.store(86)
    acknowledged()
    history.store(85)
    with pytest.raises(Violation, match="85 was stored"):
        history.judge.check_outcomes()


def test_request_that_certainly_failed_moves_nothing(history: History) -> None:
    asked = history.judge.asked("reader0", "events/broker-a:0", "readers", (), 85)
    history.judge.asked_to_store(asked)
    history.judge.failed(asked, "fail")
    history.store(85)
    with pytest.raises(Violation, match="85 was stored"):
        history.judge.check_outcomes()


def test_the_same_offset_stored_again_in_its_place_is_nothing_new(history: History) -> None:
    acknowledged = history.ask(85)
    history.store(85)
    history.store(85)
    acknowledged()
    history.query()(85)


def test_offsets_that_were_on_their_way_together_may_be_stored_as_the_last(history: History) -> None:
    first, last = history.ask(85), history.ask(86)
    history.store(86)
    first()
    last()
    history.query()(86)


def test_acknowledged_position_that_is_nowhere_is_a_violation(history: History) -> None:
    acknowledged = history.ask(85)
    with pytest.raises(Violation, match="acknowledged offsets are committed"):
        acknowledged()


def test_being_forgotten_stores_no_offset(history: History) -> None:
    first = history.ask(84)
    history.store(84)
    first()
    acknowledged = history.ask(85)
    history.store(None)
    with pytest.raises(Violation, match="acknowledged offsets are committed"):
        acknowledged()


def test_groups_whose_members_record_nothing_are_left_alone(history: History) -> None:
    history.store(85)
    history.store(84)
    history.judge.check_outcomes()
    history.query()(84)


def test_what_is_reported_while_an_order_stands_moves_nothing(history: History) -> None:
    """The model, as each node, knows from the commands alone; the judge takes an order for a request."""
    history.judge = ClientJudge(history.model, lambda: history.now_ns)
    _, topic, _ = KEY

    def commit(command: Command) -> None:
        history.now_ns += 1
        if isinstance(command, ResetOffsets):
            history.judge.ordered(*KEY, command.offsets[0][3])
        history.model._apply("n0", 0, 1, encode_command(command), history.now_ns)

    commit(PutTopic(topic_config(topic, 1), 0))
    acknowledged = history.ask(85)
    commit(CommitOffsets(((*KEY, 85),)))
    acknowledged()
    commit(ResetOffsets(((*KEY, 20),)))
    commit(CommitOffsets(((*KEY, 90),)))
    commit(EndResets(((*KEY, 19),)))  # of an earlier order
    commit(CommitOffsets(((*KEY, 91),)))
    history.query()(20)
    acknowledged = history.ask(21)
    commit(EndResets(((*KEY, 20),)))
    commit(CommitOffsets(((*KEY, 21),)))
    acknowledged()
    history.query()(21)
    history.judge.check_outcomes()


spans = st.tuples(st.integers(0, 9), st.one_of(st.integers(0, 9), st.just(NEVER))).map(
    lambda pair: pair if pair[0] <= pair[1] else (pair[1], pair[0])
)


@given(st.lists(st.integers(0, 9), max_size=5).map(sorted), st.lists(spans, max_size=5))
def test_requests_are_assigned_if_they_can_be(times: list[int], asked: list[tuple[int, int]]) -> None:
    """Held against all assignments. Between its changes the offset is another one, which nobody looks at."""
    history: list[tuple[int, int | None]] = [item for time in times for item in ((time, 1), (time, None))]
    requests = [OffsetRequest(1, since, until) for since, until in asked]
    possible = any(
        all(since <= time <= until for time, (since, until) in zip(times, chosen, strict=True))
        for chosen in permutations(asked, len(times))
    )
    assert (first_unasked(history, 0, requests) is None) == possible


def test_what_the_group_may_forget_may_be_stored_anew_by_an_attempt_of_its_own() -> None:
    """Seed 9940053: a portion was written again after its writer was forgotten."""
    judge = ClientJudge(GroupModel(), lambda: 0)
    judge._model.keys["rows", "row0"] = [(1, 57), (1, 69)]
    judge.outcomes["rows", "row0"] = ["ok", "ok"]
    judge.at_most_once["row0"] = None
    with pytest.raises(Violation, match="no duplicates"):
        judge.check_outcomes()
    judge.may_come_again["row0"] = None
    judge.check_outcomes()
    judge.outcomes["rows", "row0"].pop()
    with pytest.raises(Violation, match="no duplicates"):
        judge.check_outcomes()


class Reading:
    """A queue of six messages of 100 bytes, one of each ten nanoseconds, and a reader of it."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.model = GroupModel()
        self.judge = ClientJudge(self.model, lambda: self.now_ns)
        queue = self.model.queues["events", 0] = CommittedQueue()
        for offset in range(6):
            queue.keys.append(f"key{offset}")
            queue.positions.append(100 * offset)
            queue.times.append(10 * offset)

    def read(self, asked_for: int, offsets: list[int], next_offset: int) -> None:
        """An answer to a pull of `asked_for`."""
        asked = self.judge.asked("reader0", "events/broker-a:0", "", (), asked_for)
        self.judge.was_read(asked, next_offset, offsets, [f"key{offset}" for offset in offsets])


def test_a_read_without_gaps_is_true() -> None:
    reading = Reading()
    reading.read(0, [0, 1, 2], 3)
    reading.read(3, [], 3)
    reading.read(9, [], 6)  # sent back to the end


@pytest.mark.parametrize(("asked_for", "end"), [(3, 3), (9, 3), (2, 0)])
def test_no_reader_is_told_of_an_end_of_before_it_asked(asked_for: int, end: int) -> None:
    """Of a leader that was left behind, say, by which a reader that knows more goes back."""
    reading = Reading()
    reading.now_ns = 35  # four are committed
    for asked in (4, 5, 9):
        reading.read(asked, [], 4)
    reading.read(9, [], 6)
    with pytest.raises(Violation, match=f"{ENDS}.*is said to end at {end}, but it was at 4 before"):
        reading.read(asked_for, [], end)


@pytest.mark.parametrize(
    ("asked_for", "offsets", "next_offset"),
    [(0, [1, 2], 3), (0, [0, 2], 3), (0, [0, 1], 4), (0, [], 2), (2, [1, 2], 3), (2, [2, 2], 3)],
)
def test_what_a_read_passes_is_missed(asked_for: int, offsets: list[int], next_offset: int) -> None:
    with pytest.raises(Violation, match="reads leave nothing out"):
        Reading().read(asked_for, offsets, next_offset)


def test_a_reader_may_pass_what_was_deleted_and_nothing_else() -> None:
    reading = Reading()
    reading.model.heads.kept_from = 300
    reading.read(0, [3, 4], 5)
    reading.read(0, [], 3)
    reading.read(0, [0, 1, 2, 3], 4)  # from a node that has them all
    with pytest.raises(Violation, match="asked for 0, got 4; 3 is kept"):
        reading.read(0, [4], 5)
    with pytest.raises(Violation, match="reads leave nothing out"):
        reading.read(1, [], 4)
    with pytest.raises(Violation, match="reads leave nothing out"):
        reading.read(3, [3, 5], 6)
