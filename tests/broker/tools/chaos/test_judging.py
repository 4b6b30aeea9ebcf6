"""Traces of clients are held against the files of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.tools.chaos.judging import JudgedGroup, Recorded, judge_clients
from broker.trace import TraceHeader, TraceWriter
from log.entries.entry_log import EntryLog
from log.files.mmap_disk import MmapDisk
from log.formats.layout import HEADER_BYTES
from simulation.journal import Violation
from simulation.workload.names import TOPIC
from tests.log.messages import TINY, make_record

MESSAGES = 3


def make_run(directory: Path, base_offset: int) -> list[JudgedGroup]:
    """A store of some messages, and a trace of a producer that was told where the last one is."""
    disk = MmapDisk(directory)
    log, _ = EntryLog.open(disk, TINY.dledger_directory, TINY)
    for number in range(MESSAGES):
        properties = f"UNIQ_KEY\1k{number}\2".encode()
        size = len(make_record(0, topic=TOPIC, properties=properties))
        position = log.next_position(size) + HEADER_BYTES
        log.append(1, make_record(position, topic=TOPIC, queue_offset=number, properties=properties))
    log.close()
    traces = directory / "traces"
    traces.mkdir()
    with (traces / "n0.trace").open("wb") as file:
        writer = TraceWriter(
            file.write, TraceHeader("replica", "n0", "clock", 0, attributes=(("group", "broker-a"),))
        )
        writer.commit(10, MESSAGES - 1, 1)
        writer.flush()
    with (traces / "producer.trace").open("wb") as file:
        writer = TraceWriter(file.write, TraceHeader("client", "producer", "clock", 0))
        operation = writer.invoke_append(5, "producer", f"{TOPIC}/broker-a:0", ["k2"])
        writer.ok_append(15, operation, base_offset)
        writer.flush()
    stores = {"n0": directory / TINY.dledger_directory / "data"}
    return [JudgedGroup(name="broker-a", voters=["n0"], stores=stores, last_index=MESSAGES - 1)]


def test_what_clients_were_told_is_in_the_log(tmp_path: Path) -> None:
    groups = make_run(tmp_path, MESSAGES - 1)
    judge_clients(tmp_path / "traces", groups, at_most_once={"producer"})


def test_an_acknowledgement_of_something_else_is_found(tmp_path: Path) -> None:
    groups = make_run(tmp_path, 0)
    with pytest.raises(Violation, match="acknowledged messages are committed"):
        judge_clients(tmp_path / "traces", groups, at_most_once=set())


def test_each_group_has_a_history_of_its_own_with_what_clients_saw(tmp_path: Path) -> None:
    make_run(tmp_path, 0)
    traces = tmp_path / "traces"
    assert Recorded.below(traces).histories() == [traces]
    with (traces / "n100.trace").open("wb") as file:
        header = TraceHeader("replica", "n100", "clock", 0, attributes=(("group", "broker-b"),))
        TraceWriter(file.write, header).flush()
    recorded = Recorded.below(traces)
    assert [path.name for path in recorded.others] == ["producer.trace"]
    assert {path.name: sorted(one.name for one in path.iterdir()) for path in recorded.histories()} == {
        "broker-a": ["n0.trace", "producer.trace"],
        "broker-b": ["n100.trace", "producer.trace"],
    }
