"""An ``async with`` block that is held open on Trio in a thread of its own, and calls into it from other threads.

A call is a `concurrent.futures.Future`. Cancelling it cancels the call in the thread. Its result is set only if nobody
has cancelled it before, so whoever waits knows which of both it was.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Generic, ParamSpec, TypeVar

import trio

from broker.client.errors import ClientClosed

Held = TypeVar("Held")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class OwnThread(Generic[Held]):
    """Holds one block open, from `open` until `close`; it is used once."""

    def __init__(self, block: AbstractAsyncContextManager[Held], name: str) -> None:
        self._block = block
        self._name = name
        self._used = False
        self._left = False
        """`close` was called, maybe before the thread had a token by which it could be told."""
        self._opened: Future[Held] = Future()
        self._ended: Future[None] = Future()
        self._ended.set_running_or_notify_cancel()  # whoever gives up waiting for the end does not prevent it
        self._token: trio.lowlevel.TrioToken | None = None
        self._calls: trio.Nursery | None = None
        self._closing: trio.Event | None = None

    def open(self) -> Future[Held]:
        """Enter the block; the future is that of what it gives, or of the exception of its entry.

        Raises ClientClosed if it was entered before.
        """
        if self._used:
            raise ClientClosed("a block is entered once: make a new object for each `with`")
        self._used = True
        # Not to be waited for when a program ends without leaving the block.
        threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return self._opened

    def close(self) -> Future[None]:
        """Cancel the calls and leave the block; the future is that of the thread's end, with the block's exception."""
        self._left = True
        if not self._used:
            self._used = True  # nothing is to be left, and nobody enters any more
            self._ended.set_result(None)
        try:
            if self._token is not None:
                self._token.run_sync_soon(self._close)
        except trio.RunFinishedError:
            pass  # the future is done, or about to be
        return self._ended

    def begin(
        self,
        call: Callable[Arguments, Awaitable[Result]],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Future[Result]:
        """Call something in the thread; calls that are begun before one ends run at the same time.

        Raises ClientClosed outside the block; the future has it if the block is left meanwhile.
        """
        future: Future[Result] = Future()

        async def run() -> None:
            with trio.CancelScope() as scope:
                future.add_done_callback(lambda done: self._cancel(scope) if done.cancelled() else None)
                try:
                    result = await call(*arguments, **named)
                except Exception as error:
                    _fail(future, error)
                except BaseException:
                    # The block is left, or the call was given up; other errors may be grouped with the cancellation.
                    _fail(future, ClientClosed("the block was left while this was under way"))
                    raise
                else:
                    if future.set_running_or_notify_cancel():
                        future.set_result(result)

        def start() -> None:
            if self._calls is None:
                _fail(future, ClientClosed("the block was left"))
            else:
                self._calls.start_soon(run)

        try:
            if self._token is None:
                raise ClientClosed("this works inside its `with` block only")
            self._token.run_sync_soon(start)
        except trio.RunFinishedError:
            raise ClientClosed("the block was left") from None
        return future

    def call(
        self,
        call: Callable[Arguments, Awaitable[Result]],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Result:
        """Call something in the thread, and wait for it. Raises what it raises, and ClientClosed."""
        return waited(self.begin(call, *arguments, **named))

    # in the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            trio.run(self._hold)
        except BaseException as error:
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                (error,) = error.exceptions  # one error is what it is, not what happened in parallel
            ended = self._ended if self._opened.done() else self._opened
            ended.set_exception(error)
            if ended is self._opened:
                self._ended.set_result(None)
        else:
            self._ended.set_result(None)

    async def _hold(self) -> None:
        self._closing = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        # In this order, and the other way round in `close`: one of the two sees what the other has set.
        if self._left:
            self._closing.set()
        async with self._block as held:
            try:
                async with trio.open_nursery() as self._calls:
                    self._opened.set_result(held)
                    await self._closing.wait()
                    self._calls.cancel_scope.cancel()
            finally:
                self._calls = None

    def _close(self) -> None:
        assert self._closing is not None, "the token is set after it"
        self._closing.set()

    def _cancel(self, scope: trio.CancelScope) -> None:
        assert self._token is not None, "a call runs"
        try:
            self._token.run_sync_soon(scope.cancel)
        except trio.RunFinishedError:
            pass  # nothing is left to cancel


def waited(future: Future[Result]) -> Result:
    """Wait for a call and return its result, or raise its error; an interrupt of the waiting thread cancels it."""
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _fail(future: Future[Result], error: Exception) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
