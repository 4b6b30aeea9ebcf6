"""The group that most tests of a broker work with, and its client."""

from __future__ import annotations

import pytest

from tests.broker.harness import Client, Group


@pytest.fixture
def group() -> Group:
    """Three nodes, one of which serves."""
    return Group.elected(3)


@pytest.fixture
def client(group: Group) -> Client:
    """A client of the node that serves."""
    return group.connect()
