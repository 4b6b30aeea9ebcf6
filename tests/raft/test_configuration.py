"""Which configuration is in force as a log grows, is cut and loses its head (dissertation 4.1)."""

from __future__ import annotations

import pytest

from raft.configuration import Configuration, ConfigurationHistory

OF_TWO, OF_THREE, OF_FOUR = (Configuration(tuple(names)) for names in ("ab", "abc", "abcd"))


@pytest.fixture
def history() -> ConfigurationHistory:
    """Three nodes since entry 4, four since entry 7."""
    return ConfigurationHistory([(-1, OF_TWO), (4, OF_THREE), (7, OF_FOUR)])


@pytest.mark.parametrize(
    ("last_index", "in_force", "changed"),
    [(8, OF_FOUR, False), (7, OF_FOUR, False), (6, OF_THREE, True), (4, OF_THREE, True), (3, OF_TWO, True)],
)
def test_a_cut_takes_the_configurations_behind_it_and_no_others(
    history: ConfigurationHistory, last_index: int, in_force: Configuration, changed: bool
) -> None:
    """A log that ends with the entry of a configuration has it."""
    assert history.truncate(last_index) == changed
    assert history.current == in_force


@pytest.mark.parametrize(
    ("first_index", "previous"), [(4, OF_THREE), (5, OF_THREE), (7, OF_THREE), (8, OF_FOUR)]
)
def test_the_configuration_where_the_log_begins_is_kept(
    history: ConfigurationHistory, first_index: int, previous: Configuration
) -> None:
    history.drop_before(first_index)
    assert (history.previous, history.current) == (previous, OF_FOUR)
