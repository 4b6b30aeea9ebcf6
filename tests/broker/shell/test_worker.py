"""The worker thread: jobs in order, errors end the run, and a job that was begun is waited for."""

from __future__ import annotations

import select
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from broker.replica.jobs import Job
from broker.shell.socket_reading import Reading
from broker.shell.turns import Turns
from broker.shell.worker import JobsBetweenReads
from tests.broker.shell.servers import running

needs_epoll = pytest.mark.skipif(sys.platform != "linux", reason="it needs epoll and eventfd")


def _job(run: Callable[[], None] = lambda: None) -> Job:
    return Job("work", run, lambda: None, failure_stops_node=True, wants_turn=True)


class _Node:
    """Jobs whose ends are read; `happened` has what was reported, and the turns."""

    def __init__(self) -> None:
        self.happened: list[Job | str] = []
        self.turned = trio.Event()
        self.turns = Turns(self._turn, lambda: 0)
        reading = Reading.begin(self.turns, lambda: None)
        assert reading is not None
        self.reading = reading
        self.jobs = JobsBetweenReads("test", reading, self._done)

    def _turn(self) -> int:
        self.happened.append("turn")
        self.turned.set()
        return 1 << 62

    def _done(self, job: Job) -> None:
        self.happened.append(job)
        self.turns.wake()


@needs_epoll
async def test_jobs_are_reported_among_the_reads_and_a_turn_follows() -> None:
    node = _Node()
    threads: list[threading.Thread] = []
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for task in (node.turns.run, node.reading.run, node.jobs.run):
                nursery.start_soon(task)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(3):
                node.happened.clear()
                node.turned = trio.Event()
                job = _job(lambda: threads.append(threading.current_thread()))
                node.jobs.start(job)
                await node.turned.wait()
                assert node.happened == [job, "turn"]
            nursery.cancel_scope.cancel()
    assert len(set(threads)) == 1
    assert threads[0] is not threading.current_thread()
    assert not threads[0].is_alive()


@needs_epoll
async def test_what_a_job_raises_ends_the_run_and_is_not_reported() -> None:
    node = _Node()

    def fail() -> None:
        raise OSError("the disk is gone")

    failing = _job(fail)
    with trio.fail_after(30), pytest.RaisesGroup(pytest.RaisesExc(OSError, match="the disk is gone")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.reading.run)
            nursery.start_soon(node.jobs.run)
            node.jobs.start(failing)
    assert failing not in node.happened


@needs_epoll
async def test_no_turn_follows_a_job_that_has_failed() -> None:
    """Whatever wants one: with a failed flush nothing that was written is sure, and a turn might acknowledge it."""
    node = _Node()

    def fail() -> None:
        raise OSError("the disk is gone")

    ours, theirs = socket.socketpair()
    with ours, theirs:

        def read() -> None:
            ours.recv(1)
            node.turns.wake()

        node.reading.add(ours.fileno(), read)
        with trio.fail_after(30), pytest.RaisesGroup(pytest.RaisesExc(OSError, match="the disk is gone")):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(node.reading.run)
                nursery.start_soon(node.jobs.run)
                await trio.testing.wait_all_tasks_blocked()
                node.jobs.start(_job(fail))
                # It has ended, and nobody has read that yet.
                select.select([node.jobs._descriptor], [], [], 30)
                theirs.send(b"x")
    assert node.happened == []


@needs_epoll
@pytest.mark.parametrize("fails", [False, True])
async def test_a_job_that_was_begun_is_waited_for_at_the_end(fails: bool) -> None:
    """Its failure is not lost to the cancellation: a stop beside it is no clean one."""
    node = _Node()
    began, may_end = threading.Event(), threading.Event()

    def run() -> None:
        began.set()
        may_end.wait()
        if fails:
            raise OSError("the disk is gone")

    job = _job(run)
    failure: Exception | None = None
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:

            async def run_jobs() -> None:
                nonlocal failure
                try:
                    await node.jobs.run()
                except OSError as error:
                    failure = error

            nursery.start_soon(node.reading.run)
            nursery.start_soon(run_jobs)
            node.jobs.start(job)
            await trio.to_thread.run_sync(began.wait)
            nursery.cancel_scope.cancel()
            threading.Timer(0.05, may_end.set).start()
    assert may_end.is_set(), "it was waited for"
    assert node.happened == ([] if fails else [job])
    assert str(failure) == ("the disk is gone" if fails else "None")


async def test_a_job_begins_although_all_threads_of_trio_are_taken(tmp_path: Path) -> None:
    """While no name is resolved each attempt to connect with a peer leaves a thread that waits for that: after some
    seconds checkpoints and cold reads waited for these, and so did a stop."""
    async with running(tmp_path) as servers:
        broker = await servers.wait_leader()
        limiter = trio.to_thread.current_default_thread_limiter()
        limiter.total_tokens = 1
        broker._running.jobs.out += 1
        ran = trio.Event()
        await limiter.acquire_on_behalf_of(ran)
        try:
            broker._begin_job(Job("test", lambda: None, ran.set, failure_stops_node=False, wants_turn=False))
            with trio.fail_after(30):
                await ran.wait()
        finally:
            limiter.release_on_behalf_of(ran)
