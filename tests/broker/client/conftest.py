"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from tests.broker.client.cluster import Broker, one_group
from tests.broker.client.links import ClientRuntime, World


@pytest.fixture
async def world(autojump_clock: trio.testing.MockClock, nursery: trio.Nursery) -> AsyncIterator[World]:
    """A network without servers, under a clock that jumps whenever everyone waits."""
    assert trio.current_time() < 1, "the test runs on another clock"
    yield World(nursery)
    nursery.cancel_scope.cancel()


@pytest.fixture
def runtime(world: World) -> ClientRuntime:
    """The client's runtime in that world."""
    return ClientRuntime(world)


@pytest.fixture
def broker(world: World) -> Broker:
    """A group of one, which a name server knows, with the topic t of one queue."""
    (broker,) = one_group(world)
    return broker
