"""What a node holds does not grow with the time that it runs; two mistakes by which it would are found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.requests.client_sessions import ClientSession
from log.index.index_files import IndexFiles
from tests.simulation.long_runs import growth, long_plan, run_for_long


def _no_mistake(patch: pytest.MonkeyPatch) -> None:
    pass


def _ended_sessions_stay(patch: pytest.MonkeyPatch) -> None:
    """A node keeps what it knew of each connection that is gone."""
    original = ClientSession.lost
    kept = "_ended"

    def lost(self: ClientSession) -> None:
        original(self)
        vars(self._sessions).setdefault(kept, []).append(self)

    patch.setattr(ClientSession, "lost", lost)


def _index_files_stay(patch: pytest.MonkeyPatch) -> None:
    """Retention deletes the log's head, and no file of the index whose messages are gone."""
    patch.setattr(IndexFiles, "delete_before", lambda *_: 0)


@pytest.mark.slow
@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("mistake", "grows"),
    [
        (_no_mistake, []),
        pytest.param(_ended_sessions_stay, ["objects"], marks=pytest.mark.hunt),
        pytest.param(_index_files_stay, ["files"], marks=pytest.mark.hunt),
    ],
)
def test_nothing_grows_with_time(
    mistake: Callable[[pytest.MonkeyPatch], None], grows: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    # Files come and go in tens of KB: a few looks would tell which of them are there just then.
    result, held = run_for_long(long_plan(1, 600), looks=36)
    assert result.violation is None, str(result.violation)
    lines = growth(held)
    assert bool(lines) is bool(grows), lines
    assert all(any(what in line for line in lines) for what in grows), lines
