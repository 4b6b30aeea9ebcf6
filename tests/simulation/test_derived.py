"""What a node makes of its log is made a second time: whatever of it is wrong is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from broker.state.commands import CommitOffsets, PutTopic, encode_command
from broker.state.metadata import Metadata
from broker.state.topic_rules import SCHEDULE_TOPIC, TIMER_TOPIC, topic_config
from log.formats.java_hash import java_hash as hash_of_product
from log.index.index_file import ENTRY
from log.options import StoreOptions
from log.queues.timer_index import Step
from log.store import Store
from simulation.journal import Violation
from simulation.judges.derived import INDEX, OFFSETS, QUEUES, TIMERS, Derived, java_hash
from simulation.judges.group_model import GroupModel
from simulation.machines.simulated_disk import SimulatedDisk
from simulation.randomness import stream
from tests.log.messages import NOW, TINY, Writer
from tests.simulation import stand_ins

_OPTIONS: StoreOptions = replace(
    TINY, data_file_bytes=1 << 16, delay_levels_ms=(1000, 5000), timer_run_units=2
)
_MESSAGES = 40


class Node:
    """A node that has applied what its group has committed: messages of several kinds, and two commands."""

    def __init__(self) -> None:
        self.store = store = Store.open(SimulatedDisk(stream("disk")), _OPTIONS, NOW)[0]
        self.metadata = Metadata()
        self.model = GroupModel()
        writer = Writer(store)
        commands = (PutTopic(topic_config("T", 2), NOW), CommitOffsets((("G", "T", 1, 3),)))
        for command in commands:
            raw = encode_command(command)
            self.metadata.apply(command)
            writer.send("TRIVET_SYS_RAFT_LOG", body=raw, properties=b"TAGS\x01command\x02")
        for number in range(_MESSAGES):
            at = NOW + 300 * number
            unique = b"UNIQ_KEY\x01u%d\x02" % number
            writer.send("T", number % 2, properties=b"%sTAGS\x01red\x02KEYS\x01a b" % unique, store_time=at)
            writer.send("T", number % 2, properties=unique, store_time=at)
            writer.send(SCHEDULE_TOPIC, number % 2, properties=unique, store_time=at)
            due = b"TIMER_OUT_MS\x01%d\x02" % (NOW + 1000 * (number % 5))
            writer.send(TIMER_TOPIC, properties=unique + due, store_time=at)
        log = store.log
        _, _, data = log.run(0, log.last_index, 1 << 20)
        self.model.image[:] = data
        self.model.learn("n0", bytes(data), 0)
        self.model.last_index = log.last_index
        while store.dispatched_index < log.last_index:
            store.dispatch(log.last_index, NOW)

    def look(self, first: int = 0) -> None:
        """Looks at it as at the end of a run, with the log from a position on."""
        replica = stand_ins.replica(store=self.store, metadata=self.metadata)
        Derived(self.model).check("n0", replica, _OPTIONS, first)


def test_what_is_made_of_a_log_is_right() -> None:
    node = Node()
    node.look()
    node.look(node.model.positions[20])


def unit_of_another_tag(node: Node) -> None:
    spoil_unit(node, "T", 0)


def delay_from_now(node: Node) -> None:
    spoil_unit(node, SCHEDULE_TOPIC, 1)


def due_at_another_time(node: Node) -> None:
    spoil_unit(node, TIMER_TOPIC, 0)


def spoil_unit(node: Node, topic: str, queue_id: int) -> None:
    """Leads where it led, with another third number."""
    queue = node.store.queues.get(topic, queue_id)
    assert queue is not None
    unit = queue.unit(4)
    assert unit is not None
    queue.correct(4, (*unit[:2], unit[2] + 1))


def queue_of_a_topic_that_is_gone(node: Node) -> None:
    node.store.queues.make("gone", 0).append(0, 48, 100, 0)


def entry_of_another_time(node: Node) -> None:
    spoil_entry(node, 2, 1)


def entry_under_another_hash(node: Node) -> None:
    spoil_entry(node, 0, _OPTIONS.index_slots)  # leads to the same slot


def chain_that_leaves_one_out(node: Node) -> None:
    spoil_entry(node, 3, -1)


def spoil_entry(node: Node, column: int, by: int) -> None:
    """Changes one number of the last entry of the first index file."""
    index = node.store.index
    index.write()
    file = next(iter(index))
    buffer, place = index.map(file).buffer, file.place_of(file.count - 1)
    fields = list(ENTRY.unpack_from(buffer, place))
    fields[column] += by
    ENTRY.pack_into(buffer, place, *fields)


def first_file_is_gone(node: Node) -> None:
    node.store.index.write()
    del node.store.index._files[0]


def slot_leads_nowhere(node: Node) -> None:
    index = node.store.index
    index.write()
    index.empty_copy(next(iter(index)), index.map(next(iter(index))))


def timer_is_lost(node: Node) -> None:
    timers = node.store.timers
    timers.catch_up(0, ())
    del timers._runs[0]


def timer_has_another_time(node: Node) -> None:
    timers = node.store.timers
    timers.catch_up(0, ())
    timers._runs[0].dues[-1] += 1


def timer_is_done_and_known(node: Node) -> None:
    """It stands in the order under a time that is not its own, and is not passed over."""
    node.store.timers.catch_up(0, ())
    node.store.timers._runs[0].dues[:] = NOW + 60_000
    node.metadata.timers = replace(node.metadata.timers, steps=(Step(NOW + 5000, _MESSAGES, _MESSAGES),))


def offset_is_lost(node: Node) -> None:
    node.model.offsets["G", "T", 1].append((0, 4))


def offset_of_nobody(node: Node) -> None:
    node.metadata.apply(CommitOffsets((("H", "T", 0, 1),)))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (unit_of_another_tag, QUEUES),
        (delay_from_now, QUEUES),
        (due_at_another_time, QUEUES),
        (queue_of_a_topic_that_is_gone, QUEUES),
        (entry_of_another_time, INDEX),
        (entry_under_another_hash, INDEX),
        (chain_that_leaves_one_out, INDEX),
        (first_file_is_gone, INDEX),
        (slot_leads_nowhere, INDEX),
        (timer_is_lost, TIMERS),
        (timer_has_another_time, TIMERS),
        (timer_is_done_and_known, TIMERS),
        (offset_is_lost, OFFSETS),
        (offset_of_nobody, OFFSETS),
    ],
)
def test_what_is_wrong_is_told(what: Callable[[Node], None], said: str) -> None:
    node = Node()
    what(node)
    with pytest.raises(Violation, match=said):
        node.look()


@pytest.mark.parametrize("text", ["", "a", "TagA", "polygenelubricants", "häßlich", "😀 mit Tag", "x" * 300])
def test_hashes_are_those_of_java(text: str) -> None:
    assert java_hash(text) == hash_of_product(text)
