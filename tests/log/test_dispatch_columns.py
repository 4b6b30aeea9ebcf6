"""Runs that are dispatched as columns leave the same bytes as those that are walked, whatever is in them."""

import sys
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from log.dispatching import dispatch, dispatch_columns
from log.dispatching.dispatch import Arrival
from log.dispatching.dispatch_columns import hashes_of
from log.formats.layout import HEADER_BYTES
from log.store import Store
from tests.log.bursts import OPTIONS, dispatched
from tests.log.memory_disk import MemoryDisk
from tests.log.messages import NOW, Writer


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_columns_leave_what_the_walk_leaves(seed: int, full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    found = {}

    def counted(prefix: bytes, keys: tuple[NDArray[np.uint8], ...]) -> NDArray[np.int32]:
        runs.append(len(keys[0]))
        return hashes_of(prefix, keys)

    monkeypatch.setattr(dispatch, "hashes_of", counted)
    for run_from in (10**9, 2):
        for module in (dispatch, dispatch_columns):
            monkeypatch.setattr(module, "RUN_FROM", run_from)
        found[run_from] = list(dispatched(seed, full=full))
    assert runs, "some are taken as columns"
    assert found[2] == found[10**9]


def test_a_batch_is_one_run() -> None:
    """What a batch of RocketMQ's own client leaves is no longer walked."""
    store, _ = Store.open(MemoryDisk(), replace(OPTIONS, data_file_bytes=1 << 20, index_file_units=4096), NOW)
    writer = Writer(store)
    for number in range(256):
        writer.send(
            "T",
            body=bytes(number),
            properties=b"UNIQ_KEY\x01%032X\x02TAGS\x01TagA\x02WAIT\x01true\x02" % number,
        )
    (last, run), *others = dispatch_columns.runs_of(store.log, 0, 255)
    assert (last, others) == (255, [])
    assert run is not None
    kind = dispatch_columns.kind_of(run)
    assert kind is not None
    assert (kind.messages, kind.topic, kind.tag) == (256, b"T", b"TagA")
    outcome = store.dispatch(255, NOW)
    assert outcome.arrivals == [Arrival("T", 0, 0, 256)]
    assert store.find_by_key("T", f"{77:032X}", 9) == [store.log.position_of(77) + HEADER_BYTES]


def test_entries_are_looked_at_once_however_many_records_it_stops_at() -> None:
    """A command ends a dispatch, and behind it the next one begins: what was seen to be no run is not seen anew."""
    assert _lines_for(2_000) < 2.2 * _lines_for(1_000)


def _lines_for(commands: int) -> int:
    """Returns the lines of Python that dispatch takes for so many commands, each applied before what is behind it."""
    options = replace(OPTIONS, data_file_bytes=1 << 20, index_file_units=4096, dispatch_entries=4096)
    store, _ = Store.open(MemoryDisk(), options, NOW)
    writer = Writer(store)
    for number in range(commands):
        writer.send("TRIVET_SYS_RAFT_LOG", body=bytes(number % 7), properties=b"TAGS\x01command\x02")
    lines = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    seen = 0
    sys.settrace(trace)
    try:
        while store.dispatched_index < commands - 1:
            seen += len(store.dispatch(commands - 1, NOW, stop_at_internal=True).internal)
    finally:
        sys.settrace(None)
    assert seen == commands
    return lines
