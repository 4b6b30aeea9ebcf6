"""When what a replica has written is flushed, whatever its log goes through."""

from broker.peers.protocol import Frame, RaftFrame
from raft.effects import Role
from raft.messages import AppendRequest
from tests.broker.harness import Group

INTERVAL_S = 0.5


def with_another_no_op() -> tuple[Group, str]:
    """A group, and a node that has the no-op of its leader in the place of its own, which is as long and was flushed;
    no time has passed since.
    """
    group = Group.elected(3, storage={"flush_interval_ms": round(INTERVAL_S * 1000)})
    group.converge()
    node = group.follower
    replica = group.node(node).replica
    log = replica.store.log

    # It leads and appends, and nobody else gets it.
    def is_lost(source: str, target: str, frame: Frame) -> bool:
        return source == node and isinstance(frame, RaftFrame) and isinstance(frame.message, AppendRequest)

    group.lose = is_lost
    leader = group.leader
    group.node(leader).replica.raft.transfer_leadership(node, group.now_ns)
    group.members[leader].due_ns = group.now_ns
    group.run_until(lambda: replica.raft.role is Role.LEADER, "it leads")
    group.advance(INTERVAL_S)
    cut_index, cut_term, end_position = log.last_index, log.last_term, log.end_position
    assert log.durable_index == cut_index

    # The others go on without it; what they have takes the place of that, and is all that comes.
    group.partition(node)
    assert group.elect() != node
    group.heal()
    group.run_until(lambda: log.last_term > cut_term, "its log is that of the others")
    assert (log.last_index, log.end_position) == (cut_index, end_position)
    return group, node


def test_what_takes_the_place_of_entries_that_were_cut_is_flushed_at_the_interval() -> None:
    group, node = with_another_no_op()
    log = group.node(node).replica.store.log
    group.partition(node)
    assert log.durable_index < log.last_index
    group.advance(INTERVAL_S)
    assert log.durable_index == log.last_index


def test_what_takes_the_place_of_as_many_entries_is_acknowledged() -> None:
    """The log ends where it did, and its new end is held nevertheless."""
    group, node = with_another_no_op()
    leader = group.node(group.leader).replica
    group.settle()
    [peer] = [peer for peer in leader.raft.status(group.now_ns).peers if peer.node == node]
    assert peer.match_index == leader.store.log.last_index
