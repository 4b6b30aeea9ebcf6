"""What a leader has appended: who is told what and when, and that nothing is left when it leads no more."""

from __future__ import annotations

from broker.replica.proposals import CallbackWaiter
from broker.replica.uncommitted import ANSWERS_FOR_ONE, Uncommitted

QUEUE = ("T", 0)


class Told:
    def __init__(self) -> None:
        self.happened: list[object] = []

    def waiter(self, name: str) -> CallbackWaiter:
        return CallbackWaiter(
            lambda result: self.happened.append((name, result)), lambda: self.happened.append(f"{name} lost")
        )


def test_each_is_told_at_its_time_and_in_the_order_of_the_log() -> None:
    told, uncommitted = Told(), Uncommitted(lambda queue: {("T", 0): 4}.get(queue, 0), 250)
    uncommitted.begin_turn()
    uncommitted.add_messages(QUEUE, 1, 1, 100, told.waiter("first"), told_at_commit=True)
    uncommitted.add_messages(QUEUE, 2, 2, 100, told.waiter("second"), told_at_commit=False)
    uncommitted.add(3, 50)
    uncommitted.wait_for_command(3, told.waiter("command"))
    uncommitted.add_messages(QUEUE, 5, 6, 300, told.waiter("batch"), told_at_commit=True)
    uncommitted.wait_for_apply(6, told.waiter("all"))
    assert (uncommitted.bytes, uncommitted.queue_ends) == (550, {QUEUE: 5})
    uncommitted.committed(5)
    assert told.happened == [("first", None)], "the batch is committed with its last entry"
    uncommitted.command_applied(3, "made")
    uncommitted.command_applied(4, "of nobody who waits")
    assert uncommitted.bytes == 550, "what is not dispatched counts"
    uncommitted.applied(5)
    assert told.happened[1:] == [("second", None), ("command", "made")]
    assert uncommitted.bytes == 300
    uncommitted.committed(6)
    uncommitted.applied(6)
    assert told.happened[3:] == [("batch", None), ("all", None)]
    assert uncommitted.bytes == 0


def test_a_waiter_that_appends_is_counted_behind_what_is_done() -> None:
    uncommitted = Uncommitted(lambda queue: {("T", 0): 4}.get(queue, 0), 250)
    uncommitted.begin_turn()
    seen: list[int] = []
    uncommitted.add(1, 100)
    uncommitted.wait_for_apply(1, CallbackWaiter(lambda _: seen.append(uncommitted.bytes), lambda: None))
    uncommitted.applied(1)
    assert seen == [0]


def test_when_leadership_ends_all_are_told_and_nothing_is_left() -> None:
    told, uncommitted = Told(), Uncommitted(lambda queue: {("T", 0): 4}.get(queue, 0), 250)
    uncommitted.begin_turn()
    uncommitted.add_messages(QUEUE, 1, 1, 100, told.waiter("message"), told_at_commit=True)
    uncommitted.wait_for_command(2, told.waiter("command"))
    left: list[object] = []
    uncommitted.wait_for_apply(
        2, CallbackWaiter(lambda _: None, lambda: left.append((uncommitted.bytes, uncommitted.queue_ends)))
    )
    tell = uncommitted.abandon()
    assert not told.happened, "the leadership tells them, in turns"
    uncommitted.command_applied(2, "made")
    uncommitted.applied(2)
    for one in tell:
        one()
    assert told.happened == ["message lost", "command lost"]
    assert left == [(0, {})], "before anybody is told"


def test_a_deleted_topic_s_queues_begin_at_0() -> None:
    uncommitted = Uncommitted(lambda queue: {("T", 0): 4}.get(queue, 0), 250)
    uncommitted.begin_turn()
    for queue in (("T", 0), ("T", 1), ("TT", 0)):
        uncommitted.add_messages(queue, 9, 1, 1, None, told_at_commit=True)
    uncommitted.forget_queues("T")
    assert uncommitted.queue_ends == {("TT", 0): 9}
    assert uncommitted.queue_end(("T", 0)) == 0, "wherever it ends as long as that is not applied"
    uncommitted.abandon()
    assert uncommitted.queue_end(("T", 0)) == 4


def test_of_many_some_are_told_in_each_turn() -> None:
    told, uncommitted = Told(), Uncommitted(lambda queue: 0, 2)
    uncommitted.begin_turn()
    for index in range(10):
        uncommitted.add_messages(QUEUE, index + 1, index, 100, told.waiter("message"), told_at_commit=True)
    for _ in range(3):
        uncommitted.wait_for_apply(9, told.waiter("applied"))
    uncommitted.committed(9)
    assert told.happened == 2 * ANSWERS_FOR_ONE * [("message", None)]
    is_behind = [uncommitted.is_behind]
    uncommitted.applied(9)
    assert uncommitted.bytes == 0, "whoever waits"
    assert told.happened[8:] == 2 * [("applied", None)]
    uncommitted.begin_turn()
    uncommitted.committed(9)
    uncommitted.applied(9)
    assert [*is_behind, uncommitted.is_behind] == [True, False]
    assert told.happened[10:] == [*2 * [("message", None)], ("applied", None)]
    assert not uncommitted.has_waiting


def test_senders_who_were_not_told_of_the_commit_when_leadership_ends_are_told_of_it_then() -> None:
    told, uncommitted = Told(), Uncommitted(lambda queue: 0, 1)
    uncommitted.begin_turn()
    for index in range(ANSWERS_FOR_ONE + 2):
        uncommitted.add_messages(QUEUE, index + 1, index, 100, told.waiter("message"), told_at_commit=True)
    uncommitted.committed(ANSWERS_FOR_ONE)
    told.happened.clear()
    for one in uncommitted.abandon():
        one()
    assert told.happened == [("message", None), "message lost"]
    assert not uncommitted.is_behind
