"""The fixture ``trivet_broker`` and its settings.

Every run of pytest loads this wherever Trivet is installed, so it imports the servers when a test wants them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from _pytest.scope import ScopeName

    from broker.testing.broker import RunningBroker


def pytest_addoption(parser: pytest.Parser) -> None:
    """The settings of the fixture, for pytest's configuration file."""
    parser.addini(
        "trivet_broker_scope", "one broker per: session (default), module, class, function", default="session"
    )
    parser.addini("trivet_broker_nodes", "nodes of the broker's group (default 1)", default="1")


def _scope(fixture_name: str, config: pytest.Config) -> ScopeName:
    return cast("ScopeName", config.getini("trivet_broker_scope"))


@pytest.fixture(scope=_scope)
def trivet_broker(pytestconfig: pytest.Config) -> Iterator[RunningBroker]:
    """A broker: the address of its name server, and faults on request (`trivet.testing.RunningBroker`)."""
    from broker.testing.broker import broker

    with broker(nodes=int(pytestconfig.getini("trivet_broker_nodes"))) as running:
        yield running
