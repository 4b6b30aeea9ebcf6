"""The times of jobs that run in threads are counted whatever becomes of them."""

from __future__ import annotations

import pytest

from broker.replica.jobs import Jobs
from log.entries.entry_log import EntryLog
from log.errors import DiskFullError
from tests.broker.harness import Group


def test_a_job_that_fails_has_taken_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class FullDisk:
        def run(self) -> None:
            clock[0] += 3_000_000_000
            raise DiskFullError("log", "writing", "no space left")

    clock = [0]
    replica = Group.elected(1).node("n0").replica
    monkeypatch.setattr(replica.timings, "stopwatch", lambda: clock[0])
    monkeypatch.setattr(EntryLog, "prepare_job", lambda self: FullDisk())
    monkeypatch.setattr(EntryLog, "prepared", lambda self, job: None)
    jobs = Jobs(replica)
    (job, *_) = jobs.others()
    before = replica.timings.prepare.sum_ns
    with pytest.raises(DiskFullError):
        job.run()
    jobs.done(job)
    assert replica.timings.prepare.sum_ns - before == 3_000_000_000, "no preparation of no time at all"
