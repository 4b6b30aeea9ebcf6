"""What a benchmark makes of brokers' metrics: whatever was new between two looks, and nothing else."""

from __future__ import annotations

from benchmarks.pause_causes import Look, Looks, longest_new, read_look
from broker.tools.cluster.local import LocalCluster

FLUSH = "trivet_disk_wal_fsync_duration_seconds"


def told(flushes: tuple[int, int, int], *, term: int = 3, slow: int = 0) -> str:
    """What a node tells of so many flushes within 1 ms, within 10 ms, and at all."""
    counts = zip(("0.001", "0.01", "+Inf"), flushes, strict=True)
    lines = [f'{FLUSH}_bucket{{cluster="c",le="{bound}"}} {count}.0' for bound, count in counts]
    lines += [f"{FLUSH}_count 9.0", "# HELP nothing", f'trivet_server_term{{cluster="c"}} {term}.0']
    lines += [
        'trivet_server_is_leader{cluster="c"} 1.0',
        f'trivet_events_total{{event="slow_flush"}} {slow}.0',
    ]
    return "\n".join(lines)


def test_the_longest_that_is_new_is_found_by_its_bucket() -> None:
    before = read_look(1.0, "n0", told((5, 7, 8)))
    assert (before.term, before.leads, before.events) == (3, True, {"slow_flush": 0.0})
    assert longest_new(before, read_look(2.0, "n0", told((9, 11, 12))), FLUSH) == 0.001
    assert longest_new(before, read_look(2.0, "n0", told((9, 12, 13))), FLUSH) == 0.01
    assert longest_new(before, read_look(2.0, "n0", told((5, 7, 9))), FLUSH) == float("inf")
    assert longest_new(before, before, FLUSH) == 0.0
    assert longest_new(None, before, FLUSH) == float("inf"), "of a node that has just begun all is new"


def test_causes_are_those_between_the_looks_around_a_pause() -> None:
    looks = Looks(LocalCluster.__new__(LocalCluster))
    looks._looks["n0"] = [
        read_look(1.0, "n0", told((5, 7, 7))),
        read_look(2.0, "n0", told((5, 9, 9), term=4, slow=1)),
        read_look(3.0, "n0", told((5, 9, 10), term=4, slow=1)),
    ]
    looks._looks["client"] = [Look(1.0, "client", waited_s=0.1), Look(2.0, "client", waited_s=0.15)]
    assert looks.causes(1.2, 1.8, 0.005) == [
        "client: waited 50 ms for a core",
        "n0: flush 10 ms at most",
        "n0 leads in term 4, before in 3",
        "n0: slow flush",
    ]
    assert looks.causes(1.2, 1.8, 0.1)[:1] == ["n0 leads in term 4, before in 3"]
    assert looks.causes(2.2, 5.0, 0.005) == ["n0 was not there", "client was not there"]
