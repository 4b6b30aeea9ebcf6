"""The ports of the servers under test."""

import pytest

from tests.interop import cluster


def test_ports_that_were_given_are_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster's nodes could be given the port of its name server, which did not listen yet."""
    drawn = iter([20_000, 19_990, 20_000, 20_001])
    monkeypatch.setattr(cluster, "_given", set())
    monkeypatch.setattr("random.randrange", lambda *_: next(drawn))
    monkeypatch.setattr(cluster, "_is_free", lambda *_: True)
    assert [cluster.free_base_port(1), cluster.free_base_port(32)] == [20_000, 20_001]
