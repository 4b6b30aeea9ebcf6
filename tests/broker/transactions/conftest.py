"""Fixtures of the tests of transactions."""

from __future__ import annotations

import pytest

from tests.broker.harness import Group
from tests.broker.transactions.halves import prepared


@pytest.fixture
def group() -> Group:
    return prepared()
