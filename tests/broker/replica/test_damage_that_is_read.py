"""Damage on a running node's disk that a reader meets: nobody is given the bytes, and they are put back."""

from collections.abc import Iterable

import pytest
from structlog.testing import capture_logs

from broker.peers.protocol import EntriesWanted, Frame
from broker.remoting.codes import PullSysFlag, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.state.topic_rules import HALF_TOPIC, SCHEDULE_TOPIC
from broker.statistics.events import EventKind
from log.entries.entry_reads import index_at
from log.formats.layout import HEADER_BYTES
from log.formats.record import SYS_FLAG_PREPARED
from tests.broker.fields import pull_fields
from tests.broker.harness import Group, Pulled
from tests.broker.replica.damage import (
    FILE,
    MESSAGES,
    OPTIONS,
    Damage,
    entry_of,
    group_of,
    old_files_are_the_same,
    replica_of,
    same_files,
)


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_reader_is_never_given_damaged_bytes_and_has_them_repaired(role: str) -> None:
    group = group_of(scrubbed=False)
    node = group.leader if role == "leader" else group.follower
    damage = Damage(group, node)
    damage.entry(entry_of(damage.replica, 5), HEADER_BYTES + 600)
    client = group.connect(node)
    refused, part = client.start_pull("T", "g", 5), client.start_pull("T", "g", 0, count=32)
    assert client.wait(refused).code == ResponseCode.SYSTEM_BUSY
    first = Pulled.of(client.wait(part))
    assert [body[:2] for body in first.bodies] == [b"%02d" % number for number in range(5)]
    assert first.next_offset == 5
    group.run_until(lambda: damage.replica.repairs.repaired == 1, "it is repaired")
    assert [body[:2] for body in client.pull("T", "g", 5, count=2).bodies] == [b"05", b"06"]


@pytest.mark.parametrize("at", [0, 6], ids=["magic", "size"])
def test_dispatch_has_damage_repaired_that_it_meets_in_what_counts_as_in_memory(at: int) -> None:
    """The node ended, and told of a bug."""
    group = group_of(scrubbed=False)
    damage = Damage(group, group.follower)
    replica, client = damage.replica, group.connect(group.leader)
    for number in range(8):
        client.send("T", b"new %d" % number + bytes(100))
    index = replica.applied.index + 1
    log = replica.store.log
    assert index + 1 < replica.committed.index, "a follower rests between two dispatches"
    assert log.position_of(index) >= log.checked_position
    damage.entry(index, at)
    with capture_logs() as lines:
        group.run_until(lambda: replica.repairs.repaired >= 1, "it is repaired")
    (told,) = [line for line in lines if line["event"] == "damage found"]
    start = log.position_of(index) - log.position_of(index) % FILE
    assert (told["source"], told["offset"]) == (
        damage.path_of_data(start),
        log.position_of(index) - start,
    )
    group.run_until(lambda: same_files(group, "consumequeue/T"), "its units are those of the others")
    assert log.checked_position == log.end_position, "from then on all is checked"


def test_a_reader_with_a_condition_is_given_what_comes_before_damage() -> None:
    group = group_of(scrubbed=False)
    damage = Damage(group, group.leader)
    damage.entry(entry_of(damage.replica, 5), HEADER_BYTES + 600)
    client = group.connect(group.leader)

    def ask(offset: int) -> RemotingCommand:
        fields = pull_fields(queueOffset=offset, sysFlag=PullSysFlag.SUBSCRIPTION, expressionType="SQL92")
        return client.call(RequestCode.PULL_MESSAGE, fields | {"subscription": "KEYS is not null"})

    first = Pulled.of(ask(0))
    assert [body[:2] for body in first.bodies] == [b"%02d" % number for number in range(5)]
    assert first.next_offset == 5
    group.run_until(lambda: damage.replica.repairs.repaired == 1, "it is repaired")
    assert [body[:2] for body in Pulled.of(ask(5)).bodies][:2] == [b"05", b"06"]


def test_a_unit_that_leads_to_another_message_gives_nobody_that_one() -> None:
    group = group_of(scrubbed=False)
    damage = Damage(group, group.leader)
    queue = damage.replica.store.queues.get("T", 0)
    assert queue is not None
    unit = queue.unit(9)
    assert unit is not None
    queue.correct(2, unit)
    client = group.connect(group.leader)
    assert client.wait(client.start_pull("T", "g", 2)).code == ResponseCode.SYSTEM_BUSY
    group.run_until(lambda: damage.replica.repairs.repaired == 1, "a hurried pass has put it right")
    assert len(client.pull("T", "g", 0, count=8).bodies) == 8


@pytest.mark.parametrize("offset", [0, 2, 3])
def test_units_that_are_zero_have_a_reader_pass_no_message(offset: int) -> None:
    group = group_of(scrubbed=False)
    damage = Damage(group, group.leader)
    queue = damage.replica.store.queues.get("T", 0)
    assert queue is not None
    for zeroed in range(offset, 5):
        queue.correct(zeroed, (0, 0, 0))
    client = group.connect(group.leader)
    assert client.wait(client.start_pull("T", "g", 4)).code == ResponseCode.SYSTEM_BUSY
    group.run_until(
        lambda: damage.replica.repairs.repaired == 5 - offset, "a hurried pass has put them right"
    )
    assert [body[:2] for body in client.pull("T", "g", 4, count=2).bodies] == [b"04", b"05"]


@pytest.mark.parametrize("at", [HEADER_BYTES + 600, 0, 24], ids=["body", "magic", "position"])
@pytest.mark.parametrize("offset", [0, 3, 5])
def test_damaged_entries_are_not_sent_to_a_follower_that_lacks_them(at: int, offset: int) -> None:
    group = group_of(scrubbed=False)
    away = group.follower
    group.kill(away)
    group.replace_disk(away)
    damage = Damage(group, group.leader)
    damage.entry(entry_of(damage.replica, offset), at)
    refused = []

    def watch(source: str, target: str, frame: Frame) -> bool:
        refused.append(group.node(target).events.count(EventKind.DAMAGED_FRAME))
        return False

    group.lose = watch
    group.restart(away)
    group.converge()
    assert damage.replica.repairs.repaired == 1
    assert not any(refused), "no peer was sent anything that it had to refuse"


@pytest.mark.parametrize("many", [1, 3])
def test_entries_whose_headers_and_units_are_both_damaged_are_sent_when_they_are_repaired(many: int) -> None:
    group = group_of(scrubbed=False)
    away = group.follower
    group.kill(away)
    group.replace_disk(away)
    damage = Damage(group, group.leader)
    first = entry_of(damage.replica, 5)
    places = [damage.replica.store.log.position_of(index) for index in range(first, first + many)]
    for index, position in enumerate(places, first):
        damage.flip(damage.path_of_data(0), position + 8)
        damage.unit(index, 20)
    group.restart(away)
    group.converge()
    repairs = damage.replica.repairs
    assert (repairs.found, repairs.left) == (repairs.repaired, 0)
    assert repairs.found >= many
    group.run_until(old_files_are_the_same(group), "all have the same")


def test_old_entries_are_sent_while_all_their_units_are_made_a_few_for_each_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("log.entries.unit_repair.PIECES_AT_ONCE", 1)
    monkeypatch.setattr("log.entries.unit_repair._PIECE_UNITS", 4)
    group = group_of(scrubbed=False)
    away = group.follower
    group.kill(away)
    group.replace_disk(away)
    damage = Damage(group, group.leader)
    for index in range(OPTIONS.index_file_units):
        damage.unit(index, 20)
    group.restart(away)
    group.converge()
    assert damage.replica.repairs.left == 0
    group.run_until(lambda: same_files(group, f"/index/{0:020d}"), "the units are those of the others")


def test_a_damaged_message_by_its_id_is_refused_and_repaired() -> None:
    group = group_of(scrubbed=False)
    damage = Damage(group, group.leader)
    index = entry_of(damage.replica, 5)
    offset = damage.replica.store.log.position_of(index) + HEADER_BYTES
    client = group.connect(group.leader)
    for at in (HEADER_BYTES + 600, 0):
        damage.entry(index, at)
        answer = client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
        assert answer.code == ResponseCode.SYSTEM_BUSY
        group.run_until(lambda: damage.replica.repairs.left == 0, "it is repaired")
        assert (
            client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}).code == ResponseCode.SUCCESS
        )


def test_what_nobody_holds_whole_is_said_once_and_all_else_is_served() -> None:
    group = group_of(scrubbed=False)
    for node in group.members:
        damage = Damage(group, node)
        damage.entry(entry_of(damage.replica, 5), HEADER_BYTES + 600)
    asked = 0

    def watch(source: str, target: str, frame: Frame) -> bool:
        nonlocal asked
        asked += isinstance(frame, EntriesWanted)
        return False

    group.lose = watch
    client = group.connect(group.leader)
    assert client.wait(client.start_pull("T", "g", 5)).code == ResponseCode.SYSTEM_BUSY
    group.advance(100)
    leader = group.node(group.leader)
    assert leader.replica.repairs.left == 1
    assert leader.events.count(EventKind.DAMAGE_LEFT) == 1
    assert asked <= 3 * 2 * 7, "it is asked for less and less often"
    assert len(client.pull("T", "g", 6, count=8).bodies) == 8


def test_deliveries_that_wait_for_a_damaged_message_say_so() -> None:
    group = group_of(scrubbed=False)
    client = group.connect(group.leader)
    for _ in range(2):
        client.send("T", b"late", properties={"DELAY": "2"})
    for _ in range(30):
        client.send("T", bytes(1000))
    group.converge()
    for node in group.members:
        damage = Damage(group, node)
        queue = damage.replica.store.queues.get(SCHEDULE_TOPIC, 1)
        assert queue is not None
        unit = queue.unit(0)
        assert unit is not None
        damage.entry(index_at(damage.replica.store.log, unit[0] - HEADER_BYTES), HEADER_BYTES + 90)
    with capture_logs() as lines:
        group.advance(8)
    (told,) = [line for line in lines if line["event"] == "deliveries wait"]
    assert (told["reason"], told["log_level"]) == ("level 2", "warning")
    assert group.node(group.leader).events.count(EventKind.DELIVERIES_WAIT) >= 1
    assert replica_of(group, group.leader).metadata.delays == {}, "nothing was passed"


def damage_unread(group: Group, topic: str, queue_id: int, nodes: Iterable[str]) -> None:
    """Damages the first message of one of the broker's queues in all that these nodes have of it."""
    for node in nodes:
        damage = Damage(group, node)
        queue = damage.replica.store.queues.get(topic, queue_id)
        assert queue is not None
        unit = queue.unit(0)
        assert unit is not None
        damage.entry(index_at(damage.replica.store.log, unit[0] - HEADER_BYTES), HEADER_BYTES + 90)


def test_damage_at_a_takeover_keeps_only_its_level_waiting() -> None:
    group = group_of(scrubbed=False)
    client = group.connect(group.leader)
    client.send("T", b"first", properties={"DELAY": "1"})
    client.send("T", b"other level", properties={"DELAY": "3"})
    group.advance(2)
    for _ in range(30):
        client.send("T", bytes(1000))
    client.send("T", b"second", properties={"DELAY": "1"})
    group.converge()
    gone = group.leader
    damage_unread(group, SCHEDULE_TOPIC, 0, [node for node in group.members if node != gone])
    group.kill(gone)
    group.advance(15)

    def delivered() -> list[bytes]:
        client = group.connect(group.leader)
        client.heartbeat("g")
        bodies = client.pull("T", "g", MESSAGES, count=100).bodies
        return [body for body in bodies if len(body) < 100]

    assert delivered() == [b"first", b"other level"]
    assert group.node(group.leader).events.count(EventKind.DELIVERIES_WAIT) >= 1
    group.restart(gone)
    group.converge()
    group.advance(5)
    assert delivered() == [b"first", b"other level", b"second"], "it is put back, and the level goes on"


def test_a_leader_that_comes_back_while_a_level_waits_for_damage_takes_over_all_others() -> None:
    group = group_of(scrubbed=False)
    client = group.connect(group.leader)
    client.send("T", b"first", properties={"DELAY": "1"})
    group.advance(2)
    for _ in range(30):
        client.send("T", bytes(1000))
    group.converge()
    gone = group.leader
    first, second = (node for node in group.members if node != gone)
    damage_unread(group, SCHEDULE_TOPIC, 0, [first, second])
    group.kill(gone)
    group.elect()
    for node in (first, second, first):
        if group.leader != node:
            group.transfer_leadership(node)
        group.advance(2)
    client = group.connect(first)
    client.heartbeat("g")
    client.send("T", b"of another level", properties={"DELAY": "2"})
    group.advance(7)
    assert group.node(first).events.count(EventKind.DELIVERIES_WAIT) >= 1, "the damaged level waits"
    bodies = client.pull("T", "g", MESSAGES, count=100).bodies
    assert [body for body in bodies if len(body) < 100] == [b"first", b"of another level"]


def test_a_transaction_check_that_waits_for_damage_is_counted() -> None:
    group = Group.elected(3, options=OPTIONS, broker={"transaction_check_interval_ms": 10_000})
    client = group.connect(group.leader)
    client.create_topic("T")
    client.send("T", b"undecided", 0, {"TRAN_MSG": "true", "PGROUP": "P"}, sysFlag=SYS_FLAG_PREPARED)
    for _ in range(40):
        client.send("T", bytes(1000))
    group.converge()
    group.advance(1)
    damage_unread(group, HALF_TOPIC, 0, group.members)
    with capture_logs() as lines:
        group.advance(25)
    told = [line for line in lines if line["event"] == "deliveries wait"]
    assert {line["reason"] for line in told} == {"transactions"}
    assert group.node(group.leader).events.count(EventKind.DELIVERIES_WAIT) >= 1


@pytest.mark.parametrize("position", [1 << 40, 0])
def test_a_damaged_unit_of_a_half_message_does_not_end_its_transaction(position: int) -> None:
    group = Group.elected(3, options=OPTIONS, broker={"transaction_check_interval_ms": 10_000})
    client = group.connect(group.leader)
    client.create_topic("T")
    client.send("T", b"undecided", 0, {"TRAN_MSG": "true", "PGROUP": "P"}, sysFlag=SYS_FLAG_PREPARED)
    replica = replica_of(group, group.leader)
    queue = replica.store.queues.get(HALF_TOPIC, 0)
    assert queue is not None
    unit = queue.unit(0)
    assert unit is not None
    queue.correct(0, (position, *unit[1:]))
    group.advance(25)
    assert replica.repairs.repaired == 1
    assert replica.metadata.transactions.first_open(queue.max_offset) == 0


@pytest.mark.parametrize("at", [1, 3, 7, 8, 11], ids=["far", "beyond", "near", "size", "other size"])
def test_a_damaged_unit_of_an_older_file_gives_nobody_other_bytes(at: int) -> None:
    group = group_of(scrubbed=False)
    damage = Damage(group, group.leader)
    damage.queue_unit(3, at)
    client = group.connect(group.leader)
    first = Pulled.of(client.wait(client.start_pull("T", "g", 0)))
    assert [body[:2] for body in first.bodies] == [b"00", b"01", b"02"]
    assert first.next_offset == 3
    client.wait(client.start_pull("T", "g", 3))
    group.run_until(lambda: damage.replica.repairs.repaired == 1, "a hurried pass has put it right")
    assert [body[:2] for body in client.pull("T", "g", 3, count=2).bodies] == [b"03", b"04"]
