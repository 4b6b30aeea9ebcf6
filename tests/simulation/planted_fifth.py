"""A fifth ten, chosen as the fourth was: from other systems' trackers, by whoever had read the product's code alone.

docs/planted-mistakes.md tells of them.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.delayed.timers import TimerService
from broker.offsets.dead_offsets import DeadOffsets
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.replica.applied import AppliedState
from broker.requests.connection import Connection
from broker.requests.errors import OverloadedError, RequestError
from broker.requests.responses import reply
from broker.state.snapshot import StateSnapshot
from broker.state.topic_rules import SCHEDULE_TOPIC
from broker.transactions.decisions import Decisions
from log.dispatching.dispatch import Dispatch, Dispatcher
from log.errors import DiskFullError
from log.notes.incoming import Incoming
from log.queues.consume_queue import ConsumeQueue
from log.store import Store
from raft.election import Election
from raft.follower import Follower
from raft.messages import VoteRequest
from tests.simulation.planting import planted


@planted(
    "whoever stands by its leader's order has the whole log",
    "RedisLabs/raft #6, tikv/raft-rs #234",
    part="consensus",
)
def whoever_stands_by_order_has_the_whole_log(patch: pytest.MonkeyPatch) -> None:
    """A voter does not compare logs then, though the order may be late: its leader has given up and gone on."""
    original = Election._may_grant

    def may_grant(self: Election, request: VoteRequest, now: int) -> bool:
        with pytest.MonkeyPatch.context() as inner:
            if request.leadership_transfer:
                inner.setattr(Election, "_has_more_than", lambda *_: False)
            return original(self, request, now)

    patch.setattr(Election, "_may_grant", may_grant)


@planted(
    "a leader's snapshot is applied up to where its log begins",
    "etcd #20426",
    part="consensus",
)
def snapshot_is_applied_up_to_where_the_log_begins(patch: pytest.MonkeyPatch) -> None:
    """The state in it reflects more: the commands in between are carried out twice by who has begun anew from it."""
    original = AppliedState.reset

    def reset(self: AppliedState, state: StateSnapshot, _: int, first_index: int, now_ns: int) -> None:
        original(self, state, first_index - 1, first_index, now_ns)

    patch.setattr(AppliedState, "reset", reset)


@planted("a follower acknowledges all that it has", "adjoint-io/raft #130", part="consensus")
def follower_acknowledges_all_that_it_has(patch: pytest.MonkeyPatch) -> None:
    """It answers where its log ends: behind what it has agreed on, entries of an earlier leader may stand there."""
    original = Follower.acknowledge

    def acknowledge(self: Follower) -> None:
        agreed_index, self._agreed_index = self._agreed_index, self._state.log.last_index
        original(self)
        self._agreed_index = agreed_index

    patch.setattr(Follower, "acknowledge", acknowledge)


@planted("dispatch goes on into the queues of before a snapshot", "Redpanda #10232", part="storage")
def dispatch_goes_on_into_queues_of_before_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    """The store that begins anew has other queues by the same names, and the dispatcher remembers the old ones."""
    original = Store.swap

    def swap(self: Store, incoming: Incoming, position: int, base_term: int) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Dispatcher, "forget_topics", lambda _: None)
            original(self, incoming, position, base_term)

    patch.setattr(Store, "swap", swap)


@planted("a queue's new life is taken for a replay", "alibaba/RocketMQ #351, #406", part="storage")
def new_life_of_a_queue_is_taken_for_a_replay(patch: pytest.MonkeyPatch) -> None:
    """Of a topic that was deleted and made again: whoever builds its queue from the log keeps the units of before."""
    patch.setattr(ConsumeQueue, "_is_behind", lambda *_: False)


@planted("a delay begins when its queue is built", "beanstalkd #62", part="storage")
def delay_begins_when_its_queue_is_built(patch: pytest.MonkeyPatch) -> None:
    """Not when the message was stored: on a node that is late, or builds its queues again, it waits anew."""
    original, append = Dispatcher.run, ConsumeQueue.append

    def run(self: Dispatcher, first_index: int, to_index: int, now_ms: int, **options: Any) -> Dispatch:
        def append_now(queue: ConsumeQueue, offset: int, physical_offset: int, size: int, code: int) -> bool:
            if queue.topic == SCHEDULE_TOPIC:
                code = now_ms + self._delay(queue.queue_id)
            return append(queue, offset, physical_offset, size, code)

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ConsumeQueue, "append", append_now)
            return original(self, first_index, to_index, now_ms, **options)

    patch.setattr(Dispatcher, "run", run)


@planted("a forward that nobody answers was not done", "RedisLabs/redisraft #23", part="broker")
def forward_that_nobody_answers_was_not_done(patch: pytest.MonkeyPatch) -> None:
    """So its client is told, when the leader that may have done it is lost: nobody is asked any more."""

    def reply_not_done(connection: Connection, command: RemotingCommand) -> None:
        reply(
            connection,
            command,
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "the leader was lost; nothing was stored, try again",
        )

    patch.setattr("broker.node.forwarding.reply_unknown", reply_not_done)


@planted(
    "transaction: a second decision succeeds, whatever it says",
    "RocketMQ: EndTransactionProcessor",
    part="broker",
)
def second_decision_succeeds_whatever_it_says(patch: pytest.MonkeyPatch) -> None:
    """A producer is told that it has rolled back what was committed before."""
    original = Decisions._end

    def end(self: Decisions, connection: Connection, command: RemotingCommand) -> None:
        try:
            original(self, connection, command)
        except RequestError as error:
            if error.code != ResponseCode.TRANSACTION_FAILED:
                raise
            reply(connection, command, ResponseCode.SUCCESS)

    patch.setattr(Decisions, "_end", end)


@planted("timers that broke off come again from the first", "RocketMQ #6984", part="broker")
def timers_that_broke_off_come_again(patch: pytest.MonkeyPatch) -> None:
    """A batch for whose rest there was no room is written again, all of it."""
    original = TimerService._deliver

    def deliver(self: TimerService, *arguments: Any) -> None:
        steps = self._steps
        try:
            original(self, *arguments)
        except (OverloadedError, DiskFullError):
            self._steps = steps
            raise

    patch.setattr(TimerService, "_deliver", deliver)


@planted("offsets of who is away are forgotten before their messages", "kop #303, KAFKA-4682", part="broker")
def offsets_of_who_is_away_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Of a consumer group that had no client for a while, whether or not something waits for it."""
    patch.setattr(DeadOffsets, "_leads_nowhere", lambda *_: True)
