"""Mistakes about what is answered, and when, each put into the real code by a patch; `planted_bugs` lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import broker.node.request_states
from broker.client.errors import ConnectionFailed
from broker.node.node import Node
from broker.reading.queue_reads import PullResult, QueueReads
from broker.reading.subscriptions import Filter
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import PullMessageHeader, SendHeader
from broker.replica.leadership import Leadership
from broker.replica.proposals import Waiter
from broker.replica.replica import Replica
from broker.requests.connection import Connection
from broker.sending.properties import SentProperties
from broker.sending.repeated_sends import RepeatedSends
from log.dispatching.dispatch import Dispatch, Dispatcher
from log.queues.consume_queue import ConsumeQueue
from raft import effects as fx
from raft.leader import Leader
from tests.simulation.planting import planted


@planted("stale read from a deposed leader", "dissertation 6.4")
def stale_read_from_a_deposed_leader(patch: pytest.MonkeyPatch) -> None:
    def handle_after_barrier(self: Node, connection: Any, command: Any, handler: Any) -> None:
        self._handle(connection, command, handler)

    patch.setattr(Node, "handle_after_barrier", handle_after_barrier)


@planted("read index without a round", "dissertation 6.4")
def read_index_without_a_round(patch: pytest.MonkeyPatch) -> None:
    def read_index(self: Leader, token: object) -> None:
        self._state.effects.append(fx.ReadReady(token, self._state.commit_index))

    patch.setattr(Leader, "read_index", read_index)


@planted("serving before the no-op is committed", "dissertation 6.4, step 1")
def serving_before_the_noop_is_committed(patch: pytest.MonkeyPatch) -> None:
    def append_noop(self: Leadership, effect: fx.AppendNoop) -> None:
        original(self, effect)
        self.start_serving()

    original = Leadership.append_noop
    patch.setattr(Leadership, "append_noop", append_noop)


@planted("acknowledged before commit", "ack without a majority")
def acknowledged_before_commit(patch: pytest.MonkeyPatch) -> None:
    original = Replica.turn

    def turn(self: Replica, now_ns: int, group_ms: int, send: Callable[[], None]) -> bool:
        if self.serving:
            self.committed.index = self.store.log.last_index
        return original(self, now_ns, group_ms, send)

    patch.setattr(Replica, "turn", turn)


@planted("arrivals told twice", "exactly once and in order")
def arrivals_told_twice(patch: pytest.MonkeyPatch) -> None:
    original = Dispatcher.run

    def run(self: Dispatcher, *arguments: Any, **options: Any) -> Dispatch:
        done = original(self, *arguments, **options)
        again = [one._replace(first_offset=max(0, one.first_offset - 1)) for one in done.arrivals]
        return done._replace(arrivals=again)

    patch.setattr(Dispatcher, "run", run)


@planted("queues built before commit", "dispatch up to the log's end")
def queues_built_before_commit(patch: pytest.MonkeyPatch) -> None:
    def turn(self: Replica, now_ns: int, group_ms: int, send: Callable[[], None]) -> None:
        committed, last_index = self.committed, self.store.log.last_index
        if self.applied_index < last_index:
            index, committed.index = committed.index, last_index
            committed.apply_and_answer(last_index)
            committed.index = max(index, last_index)
        original_turn(self, now_ns, group_ms, send)

    original_turn = Replica.turn
    patch.setattr(Replica, "turn", turn)


@planted("unit at the wrong place", "queue and log disagree")
def unit_at_the_wrong_place(patch: pytest.MonkeyPatch) -> None:
    original = ConsumeQueue.append

    def append(self: ConsumeQueue, offset: int, physical_offset: int, size: int, tags_code: int) -> bool:
        return original(self, offset, physical_offset + (48 if offset == 37 else 0), size, tags_code)

    patch.setattr(ConsumeQueue, "append", append)


@planted("answer with a message left out", "a scan that steps over a unit")
def answer_with_a_message_left_out(patch: pytest.MonkeyPatch) -> None:
    """Of three messages and more the second one is missing in the answer to a pull."""
    original = QueueReads._scan

    def scan(self: QueueReads, queue: ConsumeQueue, header: PullMessageHeader, wanted: Filter) -> PullResult:
        result = original(self, queue, header, wanted)
        if len(result.records) > 2:
            result.size -= len(result.records.pop(1))
            result.cold = []  # it numbers the records
        return result

    patch.setattr(QueueReads, "_scan", scan)


@planted("queue ends of an earlier term", "DLedger: offsets are the leader's")
def queue_ends_of_an_earlier_term(patch: pytest.MonkeyPatch) -> None:
    """A leader that leads again goes on where the queues ended when it led last."""
    kept: dict[Leadership, dict[tuple[str, int], int]] = {}
    start_serving, stop_leading = Leadership.start_serving, Leadership.stop

    def patched_start(self: Leadership) -> None:
        start_serving(self)
        self.uncommitted.queue_ends = kept.get(self) or self.uncommitted.queue_ends

    def patched_stop(self: Leadership) -> None:
        kept[self] = dict(self.uncommitted.queue_ends) or kept.get(self, {})
        stop_leading(self)

    patch.setattr(Leadership, "start_serving", patched_start)
    patch.setattr(Leadership, "stop", patched_stop)


@planted("send repeated by the broker", "a forwarded send of unknown outcome")
def repeated_by_the_broker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(broker.node.request_states, "ONCE", frozenset())


@planted("duplicate on retry where none is promised", "the client takes a lost answer for a refusal")
def repeated_by_the_client(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ConnectionFailed,
        "request_left",
        property(lambda self: False, lambda self, value: None),
        raising=False,
    )


@planted("repeated send not looked up", "at least once, as the reference")
def repeated_send_not_looked_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RepeatedSends, "_find", lambda self, decision: iter(()))


@planted("late first attempt not looked up", "it comes after the repeated one was stored")
def late_first_attempt_not_looked_up(patch: pytest.MonkeyPatch) -> None:
    decided = RepeatedSends.may_append

    def may_append(
        self: RepeatedSends,
        connection: Connection,
        command: RemotingCommand,
        header: SendHeader,
        properties: SentProperties,
    ) -> bool:
        return not header.again or decided(self, connection, command, header, properties)

    patch.setattr(RepeatedSends, "may_append", may_append)


@planted("repeated send looked up in what is applied", "the first attempt is in the log, not yet committed")
def repeated_send_looked_up_in_what_is_applied(patch: pytest.MonkeyPatch) -> None:
    def when_applied(self: Leadership, waiter: Waiter) -> None:
        """A batch that is under way is waited for: a decision that is told at once would ask again for ever."""
        if self.batches.under_way is not None:
            self.batches.under_way.waiting.append(waiter)
        else:
            waiter.committed()

    patch.setattr(Leadership, "when_applied", when_applied)
