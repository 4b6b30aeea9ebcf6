"""A node's report on itself: its replica and its figures.

These are answered by the node that is asked, in whatever role it is: an operator wants to see this one.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, cast

from broker.node.listeners import Listeners
from broker.node.machine import Machine
from broker.node.ports import State
from broker.remoting.bodies import KeyValueTable
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import OWN_VERSION, RemotingCommand
from broker.remoting.node_status import KnownLeader, NodeStatus, PeerStatus, Role
from broker.replica.report import ReplicaReport
from broker.requests.connection import Connection
from broker.requests.deadline import MS, Time
from broker.requests.processing import HandledOn, Route
from broker.requests.responses import reply, reply_json
from broker.settings.live import LiveSettings
from broker.state.commands import Command, DeleteGroup, DeleteTopic, Several
from broker.state.metadata import DelayProgress
from broker.state.topic_rules import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from broker.statistics.stats import Stats
from broker.statistics.windows import MINUTE
from log.dispatching.dispatch import Arrival
from log.errors import LogFault
from log.formats.layout import HEADER_BYTES
from log.queues.timer_index import Step, add_step

LEADERS_MAX: Final = 16
"""A node remembers so many leaders, the latest: each is in every status."""


class StatusProcessor:
    """TRIVET_NODE_STATUS 90001 and GET_BROKER_RUNTIME_INFO 28.

    `report` tells of the replica at a monotonic time;
    `address` is what clients are told to connect to; `recovered` what was repaired at the start, a sentence each.
    """

    def __init__(
        self,
        state: State,
        report: Callable[[int], ReplicaReport],
        settings: LiveSettings,
        stats: Stats,
        time: Time,
        listeners: Listeners,
        machine: Machine,
        *,
        address: str,
        recovered: tuple[str, ...],
    ) -> None:
        self._state = state
        self._report = report
        self._settings = settings
        self._time = time
        self._address = address
        self._recovered = recovered
        self._stats = stats
        self._machine = machine
        self._leaders: deque[KnownLeader] = deque(maxlen=LEADERS_MAX)
        """The leaders that this node has followed, or was, one a term; their terms rise."""
        self._next_sample = time.add_deadline(self._sample, stats.next_sample_ns)
        listeners.arrivals.append(self._arrived)
        listeners.role_changes.append(self._role_changed)
        listeners.commands.append(self._command_applied)

    def _role_changed(self) -> None:
        raft = self._report(self._time.now_ns).raft
        leader, term = raft.leader, raft.term
        self._stats.leader_known(leader)
        last_term = self._leaders[-1].term if self._leaders else -1
        if leader is not None and last_term != term:
            assert last_term < term, f"a leader of term {term} behind one of term {last_term}"
            self._leaders.append(KnownLeader(node=leader, term=term, at_ms=self._time.group_ms))
        now_s = self._time.now_ns // 1_000_000_000
        self._stats.stored.role_changed(self._state.serving, self._state.store.queues, now_s)

    def _arrived(self, arrivals: Iterable[Arrival]) -> None:
        if self._stats.stored.arrived(arrivals):
            self._stats.stored.count(self._state.store.queues, self._time.now_ns // 1_000_000_000)

    def _command_applied(self, command: Command) -> None:
        """Forgets the totals of topics and consumer groups that are gone."""
        for single in command.commands if isinstance(command, Several) else (command,):
            if isinstance(single, DeleteTopic):
                self._stats.forget_topic(single.topic)
            elif isinstance(single, DeleteGroup):
                self._stats.forget_group(single.group)

    def _sample(self) -> None:
        hour = self._machine.hour_of_day(self._time.group_ms)
        self._stats.sample(self._time.now_ns, hour, self._state.store.queues)
        self._next_sample.due_ns = self._stats.next_sample_ns

    def routes(self) -> Iterable[Route]:
        """Always this node."""
        return (
            Route(RequestCode.TRIVET_NODE_STATUS, self.node_status, HandledOn.ANY),
            Route(RequestCode.GET_BROKER_RUNTIME_INFO, self.runtime_info, HandledOn.ANY),
        )

    def status(self) -> NodeStatus:
        """The replica at this moment."""
        state, report = self._state, self._report(self._time.now_ns)
        raft, log = report.raft, state.store.log
        usage = self._machine.disk.usage()
        # A leader alone hears of its peers: others tell of none, and a reader puts the responses of all nodes together.
        return NodeStatus(
            node=raft.node,
            group=self._settings.current.node.group,
            role=self._role(report),
            term=raft.term,
            leader=raft.leader,
            commit_index=raft.commit_index,
            applied_index=state.applied_index,
            first_index=log.first_index,
            last_index=log.last_index,
            last_position=log.end_position,
            serving=state.serving,
            durable_index=log.durable_index,
            peers=tuple(
                PeerStatus(
                    id=peer.node,
                    match_index=peer.match_index,
                    state=peer.state,
                    last_contact_ms=peer.silence_ns // MS,
                )
                for peer in raft.peers
            ),
            cluster=self._settings.current.node.cluster,
            address=self._address,
            process_id=self._machine.process_id(),
            store_path=self._settings.current.storage.path,
            recovering=raft.recovering,
            disk_full=report.disk_full,
            damage_left=report.damage_left,
            scrubbed_ms=report.scrubbed_ms,
            voters=raft.configuration.voters,
            learners=raft.configuration.learners,
            configuration_index=raft.configuration_index,
            peer_addresses=report.peer_addresses,
            release=report.release,
            format=state.metadata.format,
            wall_ms=report.wall_ms,
            disk_free_bytes=usage.free_bytes,
            disk_total_bytes=usage.total_bytes,
            process=self._machine.process_facts(),
            leaders=tuple(self._leaders),
            recovered=self._recovered,
        )

    def _role(self, report: ReplicaReport) -> Role:
        raft = report.raft
        if not self._state.serving and not report.is_member:
            return "outside"
        if raft.node in raft.configuration.learners:
            return "learner"
        return cast(Role, raft.role)

    def node_status(self, connection: Connection, command: RemotingCommand) -> None:
        """Tells the replica's state as JSON."""
        reply(connection, command, ResponseCode.SUCCESS, body=self.status().encode())

    # ------------------------------------------------------------------ RocketMQ's tables

    def runtime_info(self, connection: Connection, command: RemotingCommand) -> None:
        """Tells the figures that mqadmin prints, as texts by RocketMQ's names."""
        reply_json(connection, command, KeyValueTable(self._runtime_table()))

    def _runtime_table(self) -> dict[str, str]:
        stats = self._stats
        now_ns = self._time.now_ns
        state, log = self._state, self._state.store.log
        put, got, found, missed = stats.rates(now_ns)
        stored = stats.stored
        stored.count(state.store.queues, now_ns // 1_000_000_000)
        run_s = (now_ns - stats.started_ns) // 1_000_000_000
        (put_yesterday, got_yesterday), (put_today, got_today) = stats.mornings
        usage = self._machine.disk.usage()
        used_ratio = 1 - usage.free_bytes / max(usage.total_bytes, 1)
        table = {
            "brokerVersionDesc": "Trivet",
            "brokerVersion": str(OWN_VERSION),
            "brokerActive": "true",
            "putTps": _in_words(put),
            "getTransferedTps": _in_words(got),
            "getTransferredTps": _in_words(got),
            "getFoundTps": _in_words(found),
            "getMissTps": _in_words(missed),
            "getTotalTps": _in_words(map(sum, zip(found, missed, strict=True))),
            "msgPutTotalTodayNow": str(stats.put),
            "msgPutTotalTodayMorning": str(put_today),
            "msgPutTotalYesterdayMorning": str(put_yesterday),
            "msgGetTotalTodayNow": str(stats.got),
            "msgGetTotalTodayMorning": str(got_today),
            "msgGetTotalYesterdayMorning": str(got_yesterday),
            "putMessageTimesTotal": str(stats.put),
            "putMessageFailedTimes": str(stats.puts_failed),
            "putMessageAverageSize": str(stored.record_bytes / max(stored.messages, 1)),
            "putMessageDistributeTime": str(stats.put_times),
            "putMessageEntireTimeMax": str(stats.put_times.longest_ms),
            "getMessageEntireTimeMax": str(stats.get_ms_longest),
            "commitLogMinOffset": str(log.first_position),
            "commitLogMaxOffset": str(log.end_position),
            "commitLogDiskRatio": f"{used_ratio:.4f}",
            "consumeQueueDiskRatio": f"{used_ratio:.4f}",
            "commitLogDirCapacity": f"Total : {_size(usage.total_bytes)}, Free : {_size(usage.free_bytes)}.",
            "dispatchMaxBuffer": "0",  # what is committed is dispatched in the same turn
            "remainTransientStoreBufferNumbs": "2147483647",  # no pool of them that could be used up, as in 5.x without
            "dispatchBehindBytes": str(log.bytes_after(state.applied_index)),
            "remainHowManyDataToFlush": _size(log.bytes_after(log.durable_index)),
            "bootTimestamp": str(stats.started_wall_ms),
            "startAcceptSendRequestTimeStamp": str(self._settings.current.broker.accept_sends_from_ms),
            "runtime": f"[ {run_s // 86_400} days, {run_s // 3600 % 24} hours, {run_s // 60 % 60} minutes, "
            f"{run_s % 60} seconds ]",
            "earliestMessageTimeStamp": str(self._earliest_store_time()),
            "pageCacheLockTimeMills": "0",
            **self._delays(),
            "halfMessages": str(self._open_transactions()),
            **self._timers(),
        }
        for queue in (
            "sendThreadPoolQueue",
            "pullThreadPoolQueue",
            "queryThreadPoolQueue",
            "EndTransactionQueue",
        ):
            # Requests are handled as they come: there is no queue before a pool of threads.
            table |= {f"{queue}Size": "0", f"{queue}Capacity": "0", f"{queue}HeadWaitTimeMills": "0"}
        table["EndTransactionThreadPoolQueueCapacity"] = "0"
        return table

    def _delays(self) -> dict[str, str]:
        """Returns for each delay level the first message that is not known to be delivered, and the end of the
        queue.
        """
        state = self._state
        table = {}
        for level in range(1, len(self._settings.current.broker.delay_level_ms) + 1):
            progress = state.metadata.delays.get(level, DelayProgress())
            queue = state.store.queues.get(SCHEDULE_TOPIC, level - 1)
            end = 0 if queue is None else queue.max_offset
            table[f"scheduleMessageOffset_{level}"] = f"{progress.offset},{end}"
        return table

    def _open_transactions(self) -> int:
        """Counts the half messages that nobody has decided; a figure of Trivet's own."""
        half = self._state.store.queues.get(HALF_TOPIC, 0)
        return 0 if half is None else self._state.metadata.transactions.count_before(half.max_offset)

    def _timers(self) -> dict[str, str]:
        """Returns the figures of messages for a time of their own: seconds that the first is late, how many wait,
        rates.

        What was announced last counts as delivered. Deliveries are the leader's.
        """
        index, progress = self._state.store.timers, self._state.metadata.timers
        # Who does not deliver lets some thousands come together first.
        index.catch_up(progress.floor, progress.steps)
        steps = progress.steps
        if progress.batch is not None:
            steps = add_step(steps, Step(*progress.batch.step))
        next_ms = index.next_due_ms(steps)
        now_s = self._time.now_ns // 1_000_000_000
        stored = self._stats.stored.by_topic.get(TIMER_TOPIC)
        enqueued = 0.0 if stored is None else stored.total(now_s, MINUTE).times / 60
        return {
            "timerReadBehind": str(0 if next_ms is None else max(0, self._time.group_ms - next_ms) // 1000),
            "timerOffsetBehind": str(index.behind),
            "timerCongestNum": str(index.waiting(steps)),
            "timerEnqueueTps": f"{enqueued:.3f}",
            "timerDequeueTps": f"{self._stats.timed_delivered.total(now_s, MINUTE).per_second:.3f}",
        }

    def _earliest_store_time(self) -> int:
        store = self._state.store
        try:
            return store.store_time_of(store.log.first_position + HEADER_BYTES)
        except LogFault:
            return -1  # an empty log


def _in_words(rates: Iterable[float]) -> str:
    return " ".join(f"{rate:.3f}" for rate in rates)


def _size(count: int) -> str:
    """Writes a number of bytes as RocketMQ does, for people."""
    if count < 1 << 10:
        return f"{count} B"
    size, unit = count / (1 << 10), 0
    while size >= 1 << 10 and unit < 3:
        size, unit = size / (1 << 10), unit + 1
    return f"{size:.1f} {'KMGT'[unit]}iB"
