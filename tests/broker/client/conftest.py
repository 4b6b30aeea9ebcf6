"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from tests.broker.client.links import ClientRuntime, World


@pytest.fixture
async def world(autojump_clock: trio.testing.MockClock, nursery: trio.Nursery) -> AsyncIterator[World]:
    """A network without servers, under a clock that jumps whenever everyone waits.

    pytest-trio takes a clock only from a test's own arguments, so each test asks for `autojump_clock` too.
    """
    assert trio.current_time() < 1, "the test function must take autojump_clock as an argument"
    yield World(nursery)
    nursery.cancel_scope.cancel()


@pytest.fixture
def runtime(world: World) -> ClientRuntime:
    """The client's runtime in that world."""
    return ClientRuntime(world)
