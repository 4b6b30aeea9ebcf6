"""The simulator takes all that a queue may answer to a search by time for true, and nothing beside it."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.consuming.queue_calls import SearchBoundary
from log.options import StoreOptions
from log.queues.consume_queue import Boundary
from log.queues.consume_queues import ConsumeQueues
from simulation.machines.simulated_disk import SimulatedDisk
from simulation.workload.inquire import Extent, is_found_by_time

BOUNDARIES: tuple[SearchBoundary, ...] = ("lower", "upper")


def search(times: Sequence[int], begin: int, timestamp_ms: int, boundary: SearchBoundary) -> int:
    """Returns the answers of a queue whose first messages are gone."""
    queue = ConsumeQueues(SimulatedDisk(Random(1)), StoreOptions(consume_queue_file_units=4)).make("t", 0)
    for offset in range(len(times)):
        queue.append(offset, 1 + offset, 1, 0)
    queue.correct_min(1 + begin)
    return queue.offset_at_time(timestamp_ms, lambda position, size: times[position - 1], Boundary(boundary))


@given(
    times=st.lists(st.integers(0, 8), max_size=12),
    gone=st.integers(0, 12),
    timestamp_ms=st.integers(-1, 9),
    boundary=st.sampled_from(BOUNDARIES),
)
def test_what_a_queue_answers_is_true(
    times: list[int], gone: int, timestamp_ms: int, boundary: SearchBoundary
) -> None:
    begin = min(gone, len(times))
    answer = search(times, begin, timestamp_ms, boundary)
    extent = Extent([begin], len(times), len(times))
    assert is_found_by_time(times, extent, timestamp_ms, boundary, answer)


@given(
    times=st.lists(st.integers(0, 8), max_size=12).map(sorted),
    gone=st.integers(0, 12),
    timestamp_ms=st.integers(-1, 9),
    boundary=st.sampled_from(BOUNDARIES),
)
def test_where_times_rise_nothing_else_is(
    times: list[int], gone: int, timestamp_ms: int, boundary: SearchBoundary
) -> None:
    begin = min(gone, len(times))
    extent = Extent([begin], len(times), len(times))
    true = [
        offset
        for offset in range(-1, len(times) + 2)
        if is_found_by_time(times, extent, timestamp_ms, boundary, offset)
    ]
    assert true == [search(times, begin, timestamp_ms, boundary)]


@pytest.mark.parametrize(
    ("boundary", "answer", "is_true"),
    [
        ("lower", 2, True),  # the end was there
        ("lower", 3, True),  # or there
        ("lower", 4, False),
        ("lower", 1, False),
        ("upper", 1, True),
        ("upper", 2, True),
        ("upper", 3, False),
        ("upper", 0, False),
    ],
)
def test_a_queue_that_grows_while_it_is_asked(boundary: SearchBoundary, answer: int, is_true: bool) -> None:
    extent = Extent([0], lowest_end=2, highest_end=3)
    assert is_found_by_time([5, 6, 7], extent, 9, boundary, answer) is is_true


def test_a_queue_that_loses_its_head_while_it_is_asked() -> None:
    extent = Extent([0, 2], lowest_end=4, highest_end=4)
    times = [5, 6, 7, 8]
    assert [answer for answer in range(5) if is_found_by_time(times, extent, 5, "lower", answer)] == [0, 2]
    assert [answer for answer in range(5) if is_found_by_time(times, extent, 5, "upper", answer)] == [0, 2]
    assert [answer for answer in range(5) if is_found_by_time(times, extent, 7, "lower", answer)] == [2]
