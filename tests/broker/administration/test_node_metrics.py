"""The metrics of nodes of a group, without servers."""

from __future__ import annotations

from broker.administration.metrics import QUEUES_AT_ONCE
from broker.assembly import told_to_operators
from broker.remoting.codes import RequestCode
from broker.remoting.node_status import decode_node_status
from broker.shell.metrics import SAMPLES_AT_ONCE, MetricsPage
from broker.statistics.events import EventKind
from broker.statistics.families import ALL, ROCKETMQ_PREFIX
from broker.statistics.histogram import BOUNDS_NS, Histogram
from broker.statistics.totals import OTHERS, Totals
from log.formats.record import SYS_FLAG_PREPARED
from raft.messages import AppendRequest
from tests.broker.group_changes import add
from tests.broker.harness import SECOND, Client, Group
from tests.prometheus_text import parse


class Told:
    """What a node tells now, by metric and labels."""

    def __init__(self, group: Group, node_id: str) -> None:
        member = group.members[node_id]
        _, metrics = told_to_operators(member.process, member.disk)
        self.samples: dict[str, dict[tuple[str, ...], float | Histogram]] = {}
        self.pauses = 0
        for told in metrics.told():
            if told is None:
                self.pauses += 1
                continue
            metric, samples = told
            assert ALL[metric.name] is metric
            assert metric.name not in self.samples, f"{metric.name} is told twice"
            table = self.samples[metric.name] = {}
            for labels, sample in samples:
                assert len(labels) == len(metric.labels), metric.name
                assert labels not in table, f"{metric.name}{labels} is told twice"
                assert isinstance(sample, Histogram) == (metric.kind == "histogram")
                table[labels] = sample

    def value(self, name: str, *labels: str) -> float:
        sample = self.samples[name][labels]
        assert not isinstance(sample, Histogram)
        return sample

    def count(self, name: str) -> int:
        sample = self.samples[name][()]
        assert isinstance(sample, Histogram)
        return sample.count


def test_what_the_group_took_is_told_once_by_the_leader_of_the_time(group: Group) -> None:
    """Before and after a failover: the sum over all nodes is what clients sent."""
    client = group.connect()
    client.create_topic("T")
    client.send("T", b"one")
    first = group.leader
    group.kill(first)
    group.elect()
    client = group.connect(group.leader)
    client.send("T", b"two")
    client.send("T", b"three")
    group.advance(1)
    told = {node: Told(group, node) for node in group.members if node != first}
    taken = [one.samples["rocketmq_messages_in_total"].get(("T", "false"), 0) for one in told.values()]
    assert taken in ([0, 2], [2, 0])
    leader = told[group.leader]
    assert leader.value("trivet_server_leader_changes_seen_total") == 2
    assert leader.value("trivet_events_total", "leader_lost") == 1
    assert leader.value("trivet_event_reasons_total", "leader_lost", "connection lost") == 1
    assert leader.count("trivet_send_duration_seconds") >= 2
    other = next(node for node in told if node != group.leader)
    assert leader.value("trivet_peer_lag_entries", other) == 0
    assert leader.value("trivet_network_active_peers", other) == 1
    assert leader.value("trivet_network_active_peers", first) == 0
    assert leader.value("trivet_peer_last_contact_seconds", first) >= 1
    assert "rocketmq_consumer_lag_messages" not in told[other].samples


def commit(client: Client, group: str, topic: str, offset: int, queue_id: int = 0) -> None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset}
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def test_a_consumer_that_lags_is_told_in_messages_and_milliseconds() -> None:
    group = Group.elected(1)
    client = group.connect()
    client.create_topic("T")
    for _ in range(3):
        client.send("T", b"body")
    assert len(client.pull("T", "G", 0).bodies) == 3
    commit(client, "G", "T", 1)
    group.advance(5)
    told = Told(group, group.leader)
    labels = ("G", "T", "0", "false", "false")
    assert told.value("rocketmq_consumer_lag_messages", *labels) == 2
    assert 5_000 <= told.value("rocketmq_consumer_lag_latency", *labels) <= 7_000
    assert told.value("rocketmq_messages_out_total", "T", "G", "false", "false") == 3
    assert told.count("trivet_pull_duration_seconds") == 1
    commit(client, "G", "T", 3)
    group.advance(5)
    told = Told(group, group.leader)
    assert told.value("rocketmq_consumer_lag_messages", *labels) == 0
    assert told.value("rocketmq_consumer_lag_latency", *labels) == 0


def in_group(group: Group, node_id: str) -> dict[str, float]:
    """What a node says of itself as a member of its group, without the ends of its log."""
    told = Told(group, node_id)
    names = ("has_leader", "is_leader", "is_learner", "serving", "recovering")
    return {name: told.value(f"trivet_server_{name}") for name in names}


def test_a_node_says_what_it_is_in_its_group(group: Group) -> None:
    group.converge()
    leader, follower = group.leader, group.follower
    as_follower = {"has_leader": 1, "is_leader": 0, "is_learner": 0, "serving": 0, "recovering": 0}
    assert in_group(group, leader) == as_follower | {"is_leader": 1, "serving": 1}
    assert in_group(group, follower) == as_follower
    group.join("n3")
    add(group.connect(), "n3")
    group.converge()
    assert in_group(group, "n3") == as_follower | {"is_learner": 1}
    for node_id in group.members:
        if node_id != follower:
            group.kill(node_id)
    group.advance(5)
    assert in_group(group, follower) == as_follower | {"has_leader": 0}


def test_a_node_with_an_empty_disk_and_its_leader_say_that_it_recovers(group: Group) -> None:
    away = group.follower
    group.kill(away)
    group.replace_disk(away)
    # What makes it whole again does not come: the leader hears of it, and sends it no entries.
    group.lose = lambda source, target, frame: (
        target == away and isinstance(getattr(frame, "message", None), AppendRequest)
    )
    group.restart(away)
    group.advance(1)
    leader = group.leader
    other = next(node for node in group.members if node not in {leader, away})

    def recovering() -> list[float]:
        told = Told(group, leader)
        own = (Told(group, node).value("trivet_server_recovering") for node in (away, leader))
        return [*own, *(told.value("trivet_peer_recovering", node) for node in (away, other))]

    assert recovering() == [1, 0, 1, 0]
    group.lose = lambda source, target, frame: False
    group.converge()
    group.run_until(lambda: recovering() == [0, 0, 0, 0], "it is whole")


def test_the_log_of_a_node_is_told_by_its_ends(group: Group) -> None:
    client = group.connect()
    client.create_topic("T")
    client.send("T", b"body")
    group.converge()
    for node_id in group.members:
        told, replica = Told(group, node_id), group.node(node_id).replica
        entries = replica.store.log.last_index + 1
        assert told.value("trivet_server_proposals_committed_total") == entries
        assert told.value("trivet_server_proposals_applied_total") == entries
        assert told.value("trivet_server_proposals_pending") == 0
        assert told.value("trivet_server_term") == replica.term
        assert told.value("trivet_log_end_position_bytes") == replica.store.log.end_position
    for node_id in group.members:
        if node_id != group.leader:
            group.kill(node_id)
    client.start_send("T", b"nobody else has it")
    told = Told(group, group.leader)
    assert told.value("trivet_server_proposals_pending") == 1
    assert told.value("trivet_server_proposals_committed_total") == entries


def test_beyond_the_limit_the_rest_is_summed_up_and_that_is_said() -> None:
    group = Group.elected(1, observe={"metrics_series_max": 3})
    client = group.connect()
    topics = [f"T{number}" for number in range(6)]
    for topic in topics:
        client.create_topic(topic)
        for _ in range(2):
            client.send(topic, b"body")
        client.pull(topic, "G", 0)
        commit(client, "G", topic, 1)
    group.advance(1)
    told = Told(group, group.leader)
    for name, others in (
        ("rocketmq_messages_in_total", (OTHERS, "false")),
        ("rocketmq_messages_out_total", (OTHERS, OTHERS, "false", "false")),
        ("rocketmq_consumer_lag_messages", (OTHERS, OTHERS, OTHERS, "false", "false")),
    ):
        samples = told.samples[name]
        assert len(samples) == 4, name
        each = 1 if name == "rocketmq_consumer_lag_messages" else 2
        assert told.value(name, *others) == 3 * each, name
        assert told.value("trivet_metrics_summed_up", name) == 1
    assert len(told.samples["rocketmq_consumer_lag_latency"]) == 3
    # A topic that is deleted gives its place to the next one that something is counted of.
    client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T0"})
    client.send("T5", b"body")
    group.advance(1)
    taken = Told(group, group.leader).samples["rocketmq_messages_in_total"]
    assert taken[("T5", "false")] == 1
    assert ("T0", "false") not in taken


def test_messages_that_wait_are_told_by_what_they_wait_for() -> None:
    group = Group.elected(1)
    client = group.connect()
    client.create_topic("T")
    client.send("T", b"delayed", properties={"DELAY": "5"})
    client.send("T", b"timed", properties={"TIMER_DELAY_SEC": "3600"})
    client.send("T", b"half", properties={"TRAN_MSG": "true", "PGROUP": "p"}, sys_flag=SYS_FLAG_PREPARED)
    told = Told(group, group.leader)
    assert told.value("trivet_delay_level_messages", "5") == 1
    assert told.value("trivet_delay_level_messages", "4") == 0
    assert told.value("rocketmq_timing_messages") == 1
    assert told.value("rocketmq_half_messages") == 1
    assert told.value("rocketmq_messages_in_total", "SCHEDULE_TOPIC_XXXX", "true") == 1


def test_a_long_metric_is_written_in_pieces_and_reads_as_one() -> None:
    group = Group.elected(1)
    running = group.members["n0"].process
    for number in range(2 * SAMPLES_AT_ONCE + 1):
        running.node.stats.stored.led.add((f"T{number}",), 1, 10)
    _, metrics = told_to_operators(running, group.members["n0"].disk)
    pieces = list(MetricsPage(metrics.told, lambda: metrics.labels).pieces())
    scrape = parse(b"".join(pieces).decode())
    assert len(scrape.values("rocketmq_messages_in_total")) == 2 * SAMPLES_AT_ONCE + 1
    assert sum(piece.count(b"rocketmq_messages_in_total{") > 0 for piece in pieces) == 3


def test_many_offsets_are_read_in_pieces() -> None:
    group = Group.elected(1)
    client = group.connect()
    client.create_topic("T", queues=QUEUES_AT_ONCE)
    client.pull("T", "G", 0)
    before = Told(group, group.leader).pauses
    for queue_id in range(QUEUES_AT_ONCE):
        client.send("T", b"x", queue_id=queue_id)
        commit(client, "G", "T", 0, queue_id)
    group.advance(10)
    assert Told(group, group.leader).pauses == before + 1


def test_a_node_is_ready_when_clients_can_use_it(group: Group) -> None:
    group.converge()

    def problems(node_id: str) -> dict[str, str]:
        health, _ = told_to_operators(group.members[node_id].process, group.members[node_id].disk)
        assert not [check for check in health.live() if check.problem]
        return {check.name: check.problem for check in health.ready() if check.problem}

    leader, follower = group.leader, group.follower
    assert problems(leader) == problems(follower) == {}
    group.node(leader).replica.disk_space.refuses_sends = True
    assert problems(leader) == {"disk": "it is full: sends are refused"}
    for node_id in group.members:
        if node_id != follower:
            group.kill(node_id)
    group.advance(5)
    assert problems(follower) == {"leader": "none is known"}


def test_status_readiness_and_metrics_say_the_same_of_the_disk(group: Group) -> None:
    """All the time, not only when retention has looked: what found no room is known at once, and for as long."""
    group.converge()
    node = group.follower
    group.kill(node)
    group.replace_disk(node)
    group.restart(node)
    disk = group.members[node].disk
    disk.free_pages, disk.free_bytes = 0, 0
    events = group.node(node).events

    def told() -> list[bool]:
        health, _ = told_to_operators(group.members[node].process, disk)
        status = decode_node_status(group.connect(node).ok(RequestCode.TRIVET_NODE_STATUS).body)
        ready = {check.name: check.problem for check in health.ready()}
        return [
            status.disk_full,
            ready["disk"] == "it is full: something found no room",
            Told(group, node).value("trivet_disk_full") == 1,
        ]

    group.run_until(lambda: events.count(EventKind.DISK_FULL) > 0)
    for _ in range(80):
        assert told() == [True, True, True]
        group.advance(0.1)
    disk.free_pages, disk.free_bytes = None, disk.total_bytes
    group.advance(4)
    group.converge()
    assert told() == [False, False, False]


def test_a_node_without_turns_does_not_live() -> None:
    group = Group.elected(1)
    running = group.members["n0"].process
    health, _ = told_to_operators(running, group.members["n0"].disk)
    running.node.begin(running.due_ns + 4 * SECOND, group.wall_ms)
    assert [check.problem for check in health.live()] == [""]
    running.node.begin(running.due_ns + 6 * SECOND, group.wall_ms)
    assert [check.problem for check in health.live()] == ["6.0 s overdue"]


def test_a_time_falls_into_the_class_of_the_first_bound_that_it_does_not_pass() -> None:
    histogram = Histogram()
    for took_ns in (0, BOUNDS_NS[0], BOUNDS_NS[0] + 1, BOUNDS_NS[-1], BOUNDS_NS[-1] + 1):
        histogram.observe(took_ns)
    histogram.observe(BOUNDS_NS[1], 3)
    assert histogram.counts[:2] == [2, 4]
    assert histogram.counts[-2:] == [1, 1]
    assert histogram.count == 8


def test_totals_keep_their_places() -> None:
    totals = Totals(2)
    for labels in (("a",), ("b",), ("c",), ("a",), ("d",)):
        totals.add(labels, 1, 10)
    assert list(totals) == [(("a",), 2, 20), (("b",), 1, 10), (None, 2, 20)]
    totals.forget(lambda labels: labels == ("a",))
    totals.add(("c",), 1, 10)
    assert list(totals) == [(("b",), 1, 10), (("c",), 1, 10), (None, 2, 20)]


def test_metrics_that_etcd_has_are_called_as_there() -> None:
    of_etcd = [
        "server_has_leader",
        "server_is_leader",
        "server_is_learner",
        "server_proposals_committed_total",
        "server_proposals_applied_total",
        "server_proposals_pending",
        "server_healthcheck",
        "network_active_peers",
        "server_leader_changes_seen_total",
        "disk_wal_fsync_duration_seconds",
        "disk_wal_write_duration_seconds",
        "disk_backend_snapshot_duration_seconds",
    ]
    assert {f"trivet_{name}" for name in of_etcd} < ALL.keys()


def test_metrics_say_what_they_are_by_their_names() -> None:
    for metric in ALL.values():
        assert metric.name.startswith((ROCKETMQ_PREFIX, "trivet_"))
        if metric.kind == "histogram":
            assert metric.name.endswith("_seconds")
