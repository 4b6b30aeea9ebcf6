"""A seventh ten, chosen as those before were, by whoever had read the product's code alone, and neither the simulator
nor what was planted before: each is a few words of one method, changed as in a hurried commit.

docs/planted-mistakes.md tells of them.
"""

from __future__ import annotations
import __future__

import inspect

import pytest

from broker.client.consuming.rebalance import Assignment
from broker.reading.pull_processor import PullProcessor
from broker.replica.applied import AppliedState
from broker.replica.replica import Replica
from broker.sending import repeated_sends
from broker.state.topic_rules import HALF_TOPIC, SCHEDULE_TOPIC
from broker.transactions.decisions import Decisions
from log.entries import entry_log
from log.store import Store
from raft.configuration import ConfigurationHistory
from raft.succession import Succession
from tests.simulation.planting import planted


def _rewritten(patch: pytest.MonkeyPatch, owner: object, name: str, old: str, new: str) -> None:
    """Puts `new` in the place of `old` in the text of a function or method, in which that must stand once."""
    function = vars(owner)[name]
    source = inspect.getsource(function)
    assert source.count(old) == 1, f"{name} has it {source.count(old)} times: {old}"
    changed = source.replace(old, new)
    if changed.startswith(" "):
        changed = f"if True:\n{changed}"  # a method, as deep as it stands in its class
    path = inspect.getsourcefile(function) or "<changed>"
    code = compile(changed, path, "exec", __future__.annotations.compiler_flag, dont_inherit=True)
    made: dict[str, object] = {}
    exec(code, function.__globals__, made)
    patch.setattr(owner, name, made[name])


@planted(
    "a leader waits for the heir that it has asked",
    "etcd-io/etcd raft: proposals dropped while leadTransferee stays set",
    part="consensus",
)
def leader_waits_for_heir_that_it_has_asked(patch: pytest.MonkeyPatch) -> None:
    """A transfer is given up only as long as TimeoutNow is not sent. One that gets lost, or whose heir has died or does
    not stand, leaves a leader that beats and takes nothing, for ever."""
    _rewritten(
        patch,
        Succession,
        "end_overdue",
        "            self.transfer = None\n",
        "            if self.transfer.is_sent:\n"
        "                self.transfer.deadline = now + self._state.options.election_timeout_min_ns\n"
        "            else:\n"
        "                self.transfer = None\n",
    )


@planted(
    "a truncation right behind a configuration takes it, too",
    "hashicorp/raft: latest configuration put back to the committed one by a truncation behind it",
    part="consensus",
)
def truncation_right_behind_configuration_takes_it(patch: pytest.MonkeyPatch) -> None:
    """A follower whose log is cut so that it ends with a change of members goes on with the members of before."""
    _rewritten(
        patch,
        ConfigurationHistory,
        "truncate",
        "self._entries[-1][0] > last_index:",
        "self._entries[-1][0] >= last_index:",
    )


@planted(
    "a log that was cut and is as long again counts as told",
    "etcd-io/etcd raft: unstable offset kept across a truncation",
    flush="async",
    part="consensus",
)
def log_cut_and_as_long_again_counts_as_told(patch: pytest.MonkeyPatch) -> None:
    """Where as many entries take the place of those that were cut, raft does not hear that they are here: the node
    acknowledges none of them until another entry comes, which a new leader that needs it never appends."""
    _rewritten(patch, Replica, "_truncate_log", "        self.durability.cut()\n", "")


@planted(
    "a deletion of a topic that comes again takes the queues of its new life",
    "apache/rocketmq: a ConsumeQueue lost after its topic was deleted and created again",
    part="storage",
)
def deletion_that_comes_again_takes_new_queues(patch: pytest.MonkeyPatch) -> None:
    """A start that applies the deletion anew removes queues that a checkpoint vouches for: what was sent to the topic
    since it was made again is built no more on this node."""
    _rewritten(
        patch,
        Store,
        "remove_topic",
        "        if self.dispatched_index < self._dispatcher.built_index:\n"
        "            self.queues.discard_empty(topic)\n"
        "        else:\n"
        "            self.queues.remove(topic)\n",
        "        self.queues.remove(topic)\n",
    )


@planted(
    "what a start finds in the page cache is flushed and not stored again",
    "PostgreSQL fsyncgate, scylladb and rabbitmq/ra after a failed fsync",
    flush="sync",
    part="storage",
)
def found_in_page_cache_is_not_stored_again(patch: pytest.MonkeyPatch) -> None:
    """Behind a flush that failed the pages are clean: the start's own flush writes none of them, and what it takes for
    durable goes with the next power failure."""
    _rewritten(
        patch,
        entry_log,
        "recover",
        "            unsure = max(scan.noted_end - start, 0)\n"
        "            found = min(scan.end - start, data.file_bytes)\n"
        "            if unsure < found and not clean_stop:\n"
        "                data.mapping(start).rewrite(unsure, found)\n",
        "",
    )


@planted(
    "a state from a leader's snapshot hears the commands that it reflects again",
    "etcd 3.5.0 to 3.5.2: entries applied twice, as the consistent index was behind the state",
    part="storage",
)
def state_hears_again_what_it_reflects(patch: pytest.MonkeyPatch) -> None:
    """The snapshot is newer than the beginning of the log that comes with it. What lies between is applied to it once
    more: counts are too high, what was deleted or decided is back."""
    _rewritten(
        patch,
        AppliedState,
        "reset",
        "        self._metadata_index = state_index\n        self.index = first_index - 1\n",
        "        self._metadata_index = self.index = first_index - 1\n",
    )


@planted(
    "repeated sends are not looked for among timed messages",
    "apache/rocketmq: features that forget the timer topic beside the schedule topic",
    part="broker",
)
def repeated_sends_not_looked_for_among_timed(patch: pytest.MonkeyPatch) -> None:
    """A timed message whose sender heard nothing of it is stored, and delivered, once for each attempt."""
    patch.setattr(repeated_sends, "_HIDDEN_TOPICS", (SCHEDULE_TOPIC, HALF_TOPIC))


@planted(
    "a consumer asks for its offset while it waits for the order lock",
    "apache/rocketmq orderly consumers after a rebalance: offset read before the lock is held",
    part="broker",
)
def offset_asked_while_waiting_for_order_lock(patch: pytest.MonkeyPatch) -> None:
    """It saves a round trip. The member before goes on meanwhile, and stores where it ended when it hands over: the
    next one begins before that."""
    find = (
        "            stored = await self._stored.find(queue, zero_if_young=not self._first_offsets.is_time)\n"
    )
    lock = (
        "            if self._locks is not None:\n"
        "                await self._locks.acquire(queue)\n"
        "            if fixed_start is not None:\n"
        "                return fixed_start\n"
    )
    _rewritten(patch, Assignment, "_start_reader", lock + find, find + lock)


@planted(
    "that an offset is outside its queue is said without a barrier",
    "apache/rocketmq and dledger: a broker that was master resets consumers to its own end",
    part="broker",
)
def offset_outside_queue_is_said_without_barrier(patch: pytest.MonkeyPatch) -> None:
    """A leader that was deposed and does not know it yet sends back a consumer that has read more at the next one."""
    _rewritten(
        patch,
        PullProcessor,
        "_pull",
        "        else:\n            assert result.code in {",
        "        elif result.code == ResponseCode.PULL_OFFSET_MOVED:\n"
        "            self._responses.respond(connection, command, header, result)\n"
        "        else:\n            assert result.code in {",
    )


@planted(
    "decisions under way outlive their leadership",
    "Kafka: pending transaction state not cleared when the coordinator resigns",
    part="broker",
)
def decisions_under_way_outlive_leadership(patch: pytest.MonkeyPatch) -> None:
    """A node that leads again takes a decision for under way that was lost with its former term, or was applied under
    another leader: whoever decides waits for it, and the producer is asked no more."""
    _rewritten(patch, Decisions, "_role_changed", "            self._deciding.clear()\n", "")
