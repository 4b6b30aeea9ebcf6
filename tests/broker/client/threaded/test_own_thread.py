"""A block in a thread of its own: what becomes of its calls and of whoever waits for its end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator

import pytest
import trio

from broker.client.errors import ClientClosed
from broker.client.threaded.own_thread import OwnThread

LIMIT_S = 60.0


@contextlib.asynccontextmanager
async def nothing() -> AsyncIterator[None]:
    yield


def test_a_call_that_fails_while_it_is_cancelled_tells_its_caller() -> None:
    thread = OwnThread(nothing(), "test")
    thread.open().result(LIMIT_S)
    begun = threading.Event()

    async def fails_at_its_end() -> None:
        try:
            begun.set()
            await trio.sleep_forever()
        finally:
            raise KeyError("mine")

    async def call() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails_at_its_end)
            await trio.sleep_forever()

    future = thread.begin(call)
    assert begun.wait(LIMIT_S)
    ended = thread.close()
    with pytest.raises(ClientClosed):
        future.result(LIMIT_S)
    assert ended.exception(LIMIT_S) is not None


def test_a_wait_for_the_end_that_is_given_up_leaves_the_thread_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by Ctrl-C in the last line of a `with` block."""
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    thread = OwnThread(nothing(), "test of an end")
    thread.open().result(LIMIT_S)
    (running,) = (each for each in threading.enumerate() if each.name == "test of an end")
    thread.close().cancel()
    running.join(LIMIT_S)
    assert not running.is_alive()
    assert failed == []


def test_what_was_never_entered_is_left_at_once_and_entered_no_more() -> None:
    thread = OwnThread(nothing(), "test")
    for _ in range(2):
        assert thread.close().result(LIMIT_S) is None
    with pytest.raises(ClientClosed, match="entered once"):
        thread.open()
