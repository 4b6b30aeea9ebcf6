"""Judges read a damaged log as it was written, without a trace in it, and see all that no fault explains."""

from __future__ import annotations

from random import Random

import pytest

from log.entries.entry_log import EntryLog
from log.errors import DamagedEntryError
from log.formats.layout import HEADER_BYTES, UNIT_BYTES, file_name
from log.options import StoreOptions
from simulation.journal import Violation
from simulation.judges.as_written import Damage
from simulation.judges.group_model import GroupModel
from simulation.machines.inode import PAGE_BYTES
from simulation.machines.simulated_disk import SimulatedDisk
from tests.log.messages import make_record

OPTIONS = StoreOptions(data_file_bytes=2 * PAGE_BYTES, index_file_units=PAGE_BYTES // UNIT_BYTES, hot_bytes=0)
ENTRIES = 200


class Node:
    """A log in which everything may have come from the disk again, held to what the group has committed."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk(Random(1))
        log, _ = EntryLog.open(self.disk, "log", OPTIONS)
        for _ in range(ENTRIES):
            log.append(1, make_record(log.next_position(len(make_record(0))) + HEADER_BYTES))
        self.model = GroupModel()
        index = 0
        while index < ENTRIES:
            run = log.run(index, ENTRIES - 1)
            self.model.image += bytes(run.position - len(self.model.image)) + bytes(run.body)
            index = run.last_index + 1
        self.log, _ = EntryLog.open(self.disk, "log", OPTIONS, clean_stop=True, checkpoint_index=ENTRIES - 1)

    def overwrite(self, kind: str, byte: int, content: bytes) -> tuple[int, bytes]:
        """Other bytes come to stand at a byte of the log or of its index; returns their page as it was."""
        size = OPTIONS.data_file_bytes if kind == "data" else PAGE_BYTES
        at = byte % size
        path = f"log/{kind}/{file_name(byte - at)}"
        page = at - at % PAGE_BYTES
        before = self.disk.medium.page(path, page).content
        file = self.disk.open(path, size, create=False)
        file.buffer[at : at + len(content)] = content
        return byte - at + page, before

    def compare(self) -> None:
        self.model.compare("n0", self.log, 0, ENTRIES - 1, "state machine safety")


@pytest.fixture
def node() -> Node:
    return Node()


def test_headers_of_a_damaged_page_are_those_that_were_written(node: Node) -> None:
    """Seed 700009: the log could not find an entry of the page, and the judge's read of it ended its node."""
    page = node.overwrite("data", PAGE_BYTES, bytes(PAGE_BYTES))
    node.model.damage = lambda name: Damage(data=(page,))
    node.compare()
    assert not node.log.damage.entries, "the node has not heard of it"
    with pytest.raises(DamagedEntryError):
        node.log.run(0, ENTRIES - 1, PAGE_BYTES + PAGE_BYTES // 2)


@pytest.mark.parametrize("content", [bytes(PAGE_BYTES), bytes(8)], ids=["a page", "a word"])
def test_units_of_a_damaged_page_are_those_that_were_written(node: Node, content: bytes) -> None:
    page = node.overwrite("index", 0, content)
    node.model.damage = lambda name: Damage(units=(page,))
    node.compare()
    assert node.log.unit_unchecked(0 if len(content) < PAGE_BYTES else 5) is None, "nobody has made them anew"


def test_what_no_fault_has_damaged_is_seen_beside_what_one_has(node: Node) -> None:
    page = node.overwrite("data", PAGE_BYTES, bytes(PAGE_BYTES))
    node.model.damage = lambda name: Damage(data=(page,))
    node.overwrite("data", 2 * PAGE_BYTES + 100, b"x")
    with pytest.raises(Violation, match="state machine safety"):
        node.compare()
