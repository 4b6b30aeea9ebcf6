"""Power failures that take what they may end a run in order; what they may not take is a finding."""

from contextlib import nullcontext, suppress
from dataclasses import replace
from random import Random
from typing import Any, Literal

import pytest

from log.entries import cuts
from log.entries.entry_log import EntryLog
from log.entries.entry_reads import index_at
from log.entries.entry_recovery import LogBegin, write_begin
from log.formats.layout import HEADER_BYTES, MARKER_BYTES, file_name
from log.notes.snapshot import write_snapshot
from log.options import StoreOptions
from raft.recovery_loss import Loss
from simulation.findings.report import describe_finding, summary_line
from simulation.journal import Violation
from simulation.judges.group_model import GroupModel
from simulation.judges.power_losses import CAUSE, FAILED_FLUSH, LostBy, PowerLosses
from simulation.machines.broker_host import BrokerHost
from simulation.machines.data_files import cached_files, data_file
from simulation.machines.inode import PAGE_BYTES, Inode
from simulation.machines.medium import Page
from simulation.machines.simulated_disk import PowerFailure, SimulatedDisk
from simulation.plans.plan import Fault, Plan
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import MILLISECOND, SECOND
from simulation.world.building import World
from simulation.world.running import Result, run_plan, run_world
from tests.log.messages import make_record
from tests.simulation import stand_ins

_SEEDS = range(8)


def _plan(seed: int, *faults: Fault, flush: Literal["sync", "async"] = "async") -> Plan:
    plan = draw_swarm_plan(seed, seconds=30)
    return replace(
        plan,
        flush=flush,
        actors=("producer", "consumer"),
        producers=2,
        think_ms=50,
        calm_ns=10 * SECOND,
        end_ns=28 * SECOND,
        faults=faults,
    )


def _run(plan: Plan) -> Result:
    result = run_plan(plan)
    assert result.violation is None, describe_finding(result, "this test")
    return result


def _outage(seed: int) -> Fault:
    return Fault(8 * SECOND + seed * 61 * MILLISECOND, "power of all", 0, SECOND // 2, 0.5)


@pytest.mark.slow
@pytest.mark.in_turn
def test_what_all_lose_before_their_flush_is_told_and_no_finding() -> None:
    """And what one of them still holds comes back: such a run goes on to its end, with everything there."""
    results = [_run(_plan(seed, _outage(seed))) for seed in _SEEDS]
    lost = [result for result in results if result.data_loss is not None]
    assert 0 < len(lost) < len(results)
    for result in lost:
        loss = result.data_loss
        assert loss is not None
        assert loss.first_index + loss.entries == result.committed
        assert loss.acknowledged <= loss.entries
        assert len(loss.nodes) >= 2
        assert {one.fault for one in loss.nodes} == {"power of all"}
        assert all(one.first_index <= loss.first_index for one in loss.nodes)
        assert f"from {loss.first_index} on" in summary_line(result, 1.0)
        assert result.simulated_ns == result.plan.faults[0].time_ns
    assert any(result.data_loss.acknowledged for result in lost if result.data_loss is not None)


@pytest.mark.slow
@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("flush", "kinds"),
    [("async", ("kill", "kill", "kill")), ("async", ("power",)), ("sync", ("power of all",))],
)
def test_crashes_a_minority_and_sync_flush_lose_nothing(
    flush: Literal["sync", "async"], kinds: tuple[str, ...]
) -> None:
    for seed in _SEEDS[:2]:
        faults = [
            Fault(8 * SECOND + seed * 61 * MILLISECOND, kind, 2 * number, SECOND // 2, 0.5)
            for number, kind in enumerate(kinds)
        ]
        result = _run(_plan(seed, *faults, flush=flush))
        assert result.data_loss is None
        assert sum(result.fault_counts.get(kind, 0) for kind in dict.fromkeys(kinds)) == len(kinds)


@pytest.mark.slow
@pytest.mark.in_turn
def test_a_failed_flush_takes_the_last_copy_as_a_power_failure_does() -> None:
    """Seed 470: one of the two that had an entry lost its power, and the other's flush failed right after."""
    lost = []
    for seed in _SEEDS:
        world = World(_plan(seed, Fault(5 * SECOND, "isolate", 4, 9 * SECOND, 0.5)))

        def fail(world: World = world) -> None:
            dark, failing, _ = world.members.in_service()
            dark.lose_power("power")
            failing.disk.failing_flushes = 1
            failing.disk_faulty = True

        world.scheduler.at(9 * SECOND + seed * 61 * MILLISECOND, fail)
        result = run_world(world)
        assert result.violation is None, describe_finding(result, "this test")
        if result.data_loss is not None:
            lost.append({one.node: one.fault for one in result.data_loss.nodes})
    assert {"n0": "power", "n1": FAILED_FLUSH} in lost
    assert len(lost) < len(_SEEDS), "pages that look clean may stay"


def test_a_loss_that_no_power_failure_explains_is_a_finding() -> None:
    world = World(_plan(1))

    def lose_all_disks() -> None:
        for host in world.members.in_service():
            host.kill()
            host.disk.wipe()
            world.monitor.wiped(host)
        world.losses.look()

    world.scheduler.at(8 * SECOND, lose_all_disks)
    result = run_world(world)
    assert result.violation is not None
    assert (result.violation.invariant, result.violation.node) == ("durability", "group")
    assert "from none of n0 n1 n2" in result.violation.detail
    assert result.data_loss is None


def test_what_nodes_that_have_stopped_hold_is_what_their_data_files_show() -> None:
    """Index units that went with the power are written again by a start; bytes of entries are not."""
    world = World(_plan(1))
    lost: list[tuple[int, int] | None] = []
    torn: list[int] = []

    def look() -> None:
        loss = world.monitor.power_losses.data_loss()
        lost.append(None if loss is None else (loss[0], len(loss[1])))

    def stop_all() -> None:
        hosts = world.members.in_service()
        for host in hosts:
            assert host.process is not None
            for end_job in [*host.process.jobs_out]:
                end_job()
            host.process.node.replica.close(host.clock.now_ns())
            host.stopped_in_order()
            directory = f"{host.options.dledger_directory}/index"
            for name in host.disk.list(directory):
                host.disk.remove(f"{directory}/{name}")
        look()
        index = world.monitor.model.last_index - 3
        position = world.monitor.model.positions[index]
        for host in hosts[:2]:
            _tear(host, position)
        look()
        _tear(hosts[2], position)
        torn.append(index)
        look()

    world.scheduler.at(8 * SECOND, stop_all)
    result = run_world(world)
    assert result.violation is not None
    assert result.violation.invariant == "durability", describe_finding(result, "this test")
    assert f"no voter holds entries {torn[0]}.." in result.violation.detail
    assert lost == [None, None]


def _tear(host: BrokerHost, position: int) -> None:
    file_bytes = host.options.data_file_bytes
    start = position - position % file_bytes
    path = f"{host.options.dledger_directory}/data/{file_name(start)}"
    host.disk.open(path, file_bytes, create=False).buffer[position - start + HEADER_BYTES] ^= 1


def test_a_group_elects_by_a_new_disk_and_others_that_lost_power() -> None:
    """Of three nodes none keeps all its promises, so that it takes all of them to elect one."""
    faults = [
        Fault(7 * SECOND, "new disk", 4, 1500 * MILLISECOND, 0.5),
        Fault(8 * SECOND, "power of all", 0, SECOND, 0.5),
    ]
    result = _run(replace(_plan(1, *faults), actors=()))  # no load: nothing waits for its flush
    assert result.data_loss is None
    assert result.marks["a recovering node elected"]


@pytest.mark.slow
@pytest.mark.in_turn
def test_a_torn_tail_and_a_new_disk_do_not_keep_a_group_from_electing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seed 807: of n0's tail, which it had acknowledged to nobody, later pages survive and an earlier one does not.

    It cannot tell that from damage to what it had acknowledged; n2 has a new disk, and n1 alone is no majority: all
    three must agree. Not in every run has n0 such a tail while n2 is away.
    """
    results = [_run_with_a_torn_tail(seed, monkeypatch) for seed in _SEEDS]
    assert any(
        result.marks.get("a start with lost entries") and result.marks.get("a start without term or vote")
        for result in results
    )
    assert all(result.data_loss is None for result in results)


def _run_with_a_torn_tail(seed: int, monkeypatch: pytest.MonkeyPatch) -> Result:
    """All lose power at once while n2's disk is new; of n0's unflushed pages all but the first survive.

    That is once an entry of the tail begins behind that page: without one, a lost page is an unfinished write.
    """
    faults = [
        Fault(4 * SECOND, "new disk", 4, 5 * SECOND, 0.5),
        Fault(5 * SECOND, "slow disk", 0, 4 * SECOND, 1.0),
    ]
    world = World(_plan(seed, *faults, flush="sync"))
    survive = Inode.after_power_failure

    def all_but_the_first_page(inode: Inode, written_back: float, *of_disk: Any) -> Inode:
        pages = [slice(begin, begin + PAGE_BYTES) for begin in range(0, len(inode.cached), PAGE_BYTES)]
        changed = [page for page in pages if inode.cached[page] != inode.durable[page]]
        for page in changed[1:]:
            inode.durable[page] = inode.cached[page]
        return survive(inode, 0.0, *of_disk)

    def lose_power_of_all() -> None:
        dark, _, fresh = world.members.in_service()
        if dark.process is None or fresh.process is not None:
            return
        log = dark.process.node.replica.store.log
        unflushed, last = (log.end_of(log.durable_index), log.position_of(log.last_index))
        if last // PAGE_BYTES <= unflushed // PAGE_BYTES:
            world.scheduler.after(MILLISECOND, lose_power_of_all)
            return
        for host in world.members.in_service():
            with monkeypatch.context() as patch:
                if host.name == "n0":
                    patch.setattr(Inode, "after_power_failure", all_but_the_first_page)
                host.lose_power("power of all")
            host.start_after(SECOND)

    world.scheduler.at(5 * SECOND + 500 * MILLISECOND, lose_power_of_all)
    result = run_world(world)
    assert result.violation is None, describe_finding(result, "this test")
    return result


def _dark_host(entries: int, body: bytes = b"body") -> tuple[PowerLosses, Any, EntryLog]:
    """A machine whose log has flushed so many entries, and who watches it with sync flush."""
    options = StoreOptions(data_file_bytes=4096, index_file_units=256)
    disk = SimulatedDisk(Random(1))
    log, _ = EntryLog.open(disk, options.dledger_directory, options)
    size = len(make_record(0, body=body))
    for number in range(entries):
        begin = log.next_position(size) + HEADER_BYTES
        log.append(1, make_record(begin, queue_offset=number, body=body))
    job = log.flushes.job()
    assert job is not None
    job.run()
    log.flushes.done(job)
    losses = PowerLosses(GroupModel(), sync_flush=True)
    host = stand_ins.host(disk=disk, options=options, process=object())
    losses.started(host, log, None)
    return losses, host, log


def test_who_starts_as_if_it_lacked_entries_has_lost_some() -> None:
    losses, host, log = _dark_host(3)
    before = cached_files(host.disk, host.options, log)
    losses.power_failed(host, before, "power", SECOND)  # which takes nothing
    with pytest.raises(Violation, match=CAUSE):
        losses.started(host, log, Loss.ENTRIES)
    losses.power_failed(host, {}, "power", SECOND)  # of a node that was down
    losses.started(host, log, Loss.ENTRIES)
    losses.started(host, log, Loss.ENTRIES)  # as before
    losses.is_whole("n0")
    with pytest.raises(Violation, match=CAUSE):
        losses.started(host, log, Loss.ENTRIES)
    host.disk_faulty = True
    losses.started(host, log, Loss.ENTRIES)
    losses.is_whole("n0")
    host.disk_faulty = False
    losses.wiped("n0")
    losses.started(host, log, Loss.ENTRIES)


@pytest.mark.parametrize("is_marker", [True, False])
def test_a_file_that_lost_its_end_marker_has_lost_the_entries_of_the_next_one(is_marker: bool) -> None:
    """Where the marker is gone a start finds no entry behind it; what follows the marker in its file is nothing."""
    body = b"x" * 900
    losses, host, log = _dark_host(3, body)
    size = len(make_record(0, body=body))
    marker = log.end_position
    begin = log.next_position(size)
    assert begin == 4096 > marker + 2 * MARKER_BYTES, "entry 3 is the first of the next file"
    log.append(1, make_record(begin + HEADER_BYTES, queue_offset=3, body=body))
    before = cached_files(host.disk, host.options, log)
    assert bytes(before[0][marker : marker + MARKER_BYTES]) != bytes(MARKER_BYTES)
    path = f"{host.options.dledger_directory}/data/{file_name(0)}"
    at = marker if is_marker else marker + MARKER_BYTES
    host.disk.open(path, 4096, create=False).buffer[at] ^= 1
    losses.power_failed(host, before, "power", SECOND)
    with nullcontext() if is_marker else pytest.raises(Violation, match=CAUSE):
        losses.started(host, log, Loss.ENTRIES)


def test_what_was_being_cut_off_is_not_lost_when_it_is_still_there() -> None:
    """Seed 846: power failed while a follower truncated, and the entry that was to go is on the disk again."""
    losses, host, log = _dark_host(3)
    host.disk.arm_power_failure(2)  # behind the note of how far the log is durable
    with pytest.raises(PowerFailure):
        cuts.truncate(log, 1)
    before = cached_files(host.disk, host.options, log)
    host.disk.lose_power()
    assert cached_files(host.disk, host.options, log) != before, "entry 2 is there again"
    losses.power_failed(host, before, "power inside", SECOND)


def test_what_a_flush_covered_is_a_finding_when_it_has_gone() -> None:
    losses, host, log = _dark_host(3)
    before = cached_files(host.disk, host.options, log)
    path = f"{host.options.dledger_directory}/data/{file_name(0)}"
    host.disk.open(path, 4096, create=False).buffer[HEADER_BYTES] ^= 1
    with pytest.raises(Violation, match=r"took entries from 0 on; flushed were those up to 2"):
        losses.power_failed(host, before, "power", SECOND)


def test_a_repair_that_has_not_got_to_the_disk_is_no_loss() -> None:
    """Seed 9895259 of 40 s: the page was put back in memory, and power failed before its flush."""
    losses, host, log = _dark_host(3)
    before = cached_files(host.disk, host.options, log)
    path = f"{host.options.dledger_directory}/data/{file_name(0)}"
    whole = host.disk.cached_bytes(path)[:4096]
    host.damaged_pages.append(Page(path, host.disk._names[path], 0, whole))
    host.disk.open(path, 4096, create=False).buffer[HEADER_BYTES] ^= 1
    losses.power_failed(host, before, "power", SECOND)


def test_a_committed_entry_that_all_lose_is_a_finding_with_sync_flush() -> None:
    model = GroupModel()
    model.voters = ("n0", "n1", "n2")
    losses = PowerLosses(model, sync_flush=True)
    assert losses.data_loss() is None
    model.last_index = 0
    for name in model.voters:
        losses.wiped(name)
        losses._holders[name].lost = LostBy(name, "power of all", SECOND, 0)
    with pytest.raises(Violation, match=r"no voter holds entries 0\.\.0"):
        losses.data_loss()


def _dark_voter() -> tuple[PowerLosses, Any, EntryLog]:
    """The only voter of a group: it holds in several files, flushed, what the group has committed."""
    losses, host, log = _dark_host(30, bytes(400))
    model = losses._model
    model.voters = ("n0",)
    model.committed("n0", log, 0, log.last_index, 1, SECOND)
    assert len(log.file_starts()) > 3
    return losses, host, log


def _delete_head(host: Any, log: EntryLog) -> None:
    """Deletes the first two files, behind a snapshot, as retention does."""
    keep = index_at(log, log.file_starts()[2])
    write_snapshot(host.disk, keep - 1, b"state")
    cuts.delete_before(log, keep)


def test_power_that_fails_while_the_head_is_deleted_takes_nothing() -> None:
    """Seed 148: files were gone, and the log of the process that ended there had its old beginning still."""
    for step in range(1, 100):
        losses, host, log = _dark_voter()
        host.disk.arm_power_failure(step)
        try:
            _delete_head(host, log)
        except PowerFailure:
            pass
        else:
            assert step > 4, "power fails at the snapshot, the beginning, and the two directories"
            return
        before = cached_files(host.disk, host.options, log)
        host.disk.lose_power()
        losses.power_failed(host, before, "power inside", SECOND)
        assert losses.data_loss() is None
        # The next start removes what the deletion left, and power may fail in there before it has a log to show.
        host.disk.arm_power_failure(1)
        with suppress(PowerFailure):
            EntryLog.open(host.disk, host.options.dledger_directory, host.options)
        assert losses.data_loss() is None
    pytest.fail("the deletion never came to its end")


@pytest.mark.parametrize(
    "what", ["an entry", "a file", "the snapshot", "an older snapshot", "a reset under way"]
)
def test_a_loss_behind_a_deleted_head_is_a_finding(what: str) -> None:
    losses, host, log = _dark_voter()
    _delete_head(host, log)
    assert losses.data_loss() is None
    directory = host.options.dledger_directory
    last_file = data_file(host.options, log.file_starts()[-1])
    first_lost = 0
    match what:
        case "an entry":
            host.disk.open(last_file, 4096, create=False).buffer[HEADER_BYTES] ^= 1
            first_lost = index_at(log, log.file_starts()[-1])
        case "a file":
            host.disk.remove(data_file(host.options, log.first_position))
            first_lost = log.first_index
        case "the snapshot":
            host.disk.remove("snapshot")
        case "an older snapshot":
            write_snapshot(host.disk, log.first_index - 2, b"state")
        case _:
            write_begin(host.disk, f"{directory}/begin", LogBegin(10, 4096, 1, 1, pending=True))
    with pytest.raises(Violation, match=rf"no voter holds entries {first_lost}\.\.29"):
        losses.data_loss()


def test_outages_are_drawn_rarely_and_late_and_change_nothing_else() -> None:
    plans = [draw_swarm_plan(seed, seconds=60) for seed in range(400)]
    with_async = [plan for plan in plans if plan.flush == "async"]
    outages = [fault for plan in with_async for fault in plan.faults if fault.kind == "power of all"]
    assert 0.15 < len(outages) / len(with_async) < 0.35
    assert all(32 * SECOND <= fault.time_ns < 40 * SECOND for fault in outages)
    for plan in with_async:
        assert sum(fault.kind == "power of all" for fault in plan.faults) <= 1
