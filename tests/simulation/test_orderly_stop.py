"""Nodes that are stopped in order: what a group does about it, and what the next start finds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from log.files.disk import Disk
from log.options import StoreOptions
from log.store import RecoveryReport, Store
from simulation.findings.report import describe_finding
from simulation.journal import Violation
from simulation.machines.broker_host import BrokerHost
from simulation.plans.plan import Fault, Plan
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import SECOND
from simulation.world.running import run_plan
from tests.simulation import stand_ins

_PLAIN, _POWER_BEHIND = 0.3, 0.6


def _plan(*faults: Fault) -> Plan:
    plan = draw_swarm_plan(1, seconds=30)
    return replace(
        plan, flush="sync", think_ms=300, queues=2, faults=faults, calm_ns=9 * SECOND, end_ns=23 * SECOND
    )


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each start, whether it took the shorter way of a clean stop."""
    clean: list[bool] = []
    original = Store.open

    def open_store(
        disk: Disk, options: StoreOptions, now_ms: int, newest_format: int
    ) -> tuple[Store, RecoveryReport]:
        store, report = original(disk, options, now_ms, newest_format)
        clean.append(report.clean_stop)
        return store, report

    monkeypatch.setattr(Store, "open", open_store)
    return clean


@pytest.mark.slow
@pytest.mark.parametrize("amount", [_PLAIN, _POWER_BEHIND])
def test_the_start_after_a_stop_is_the_short_one(starts: list[bool], amount: float) -> None:
    stops = [Fault((5 + number) * SECOND, "stop", 2 * number, SECOND // 2, amount) for number in range(3)]
    result = run_plan(_plan(*stops))
    assert result.violation is None, describe_finding(result, "this test")
    assert result.fault_counts["stop"] == 3
    assert starts == [False, False, False, True, True, True]


@pytest.mark.slow
def test_a_leader_that_stops_hands_over_first() -> None:
    """The group elects the next one at once, and does so once."""
    result = run_plan(_plan(Fault(6 * SECOND, "stop", 1, SECOND, _PLAIN)))
    assert result.violation is None, describe_finding(result, "this test")
    assert result.elections == 2
    next_leader = next(line for line in result.transcript if " leader of term 2" in line)
    assert float(next_leader.split()[0]) < 6.1, "sooner than after any election timeout"


def test_a_disk_that_was_damaged_need_not_keep_everything() -> None:
    """Seed 9415065: the entries that it had damaged no peer could lend before the stop."""
    host = stand_ins.host(kept_index=411, was_damaged=True)
    store = stand_ins.store(log=stand_ins.stand_in(last_index=61))
    process = stand_ins.process(node=stand_ins.node(replica=stand_ins.replica(store=store)))
    BrokerHost._check_kept(host, process)
    host.kept_index, host.was_damaged = 411, False
    with pytest.raises(Violation, match="log ended at 411, now at 61"):
        BrokerHost._check_kept(host, process)
