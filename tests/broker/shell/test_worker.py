"""The worker thread: jobs in order, errors to whoever asked, and a job that was begun is waited for."""

import threading

import pytest
import trio
import trio.testing

from broker.shell.worker import Worker


async def test_jobs_run_in_another_thread_and_their_errors_come_back() -> None:
    worker = Worker("test")
    threads = []
    await worker.run(lambda: threads.append(threading.current_thread()))
    assert threads[0] is not threading.current_thread()

    def fail() -> None:
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        await worker.run(fail)
    await worker.run(lambda: None)
    worker.close()
    threads[0].join()


async def test_a_cancelled_task_still_waits_for_its_job() -> None:
    worker = Worker("test")
    may_end = threading.Event()
    ended = []

    def job() -> None:
        may_end.wait()
        ended.append(True)

    async with trio.open_nursery() as nursery:

        async def run() -> None:
            await worker.run(job)
            assert ended, "the task goes on only when the job is done"

        nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        may_end.set()
    assert ended
    worker.close()
