"""Messages of a leader whose parts do not go together: refused before raft hears of them, with what does not."""

from typing import Any

import pytest

from broker.peers.protocol import BrokenPeerError, Frame, RaftFrame
from raft.configuration import Configuration
from raft.messages import AppendRequest, SnapshotRequest
from tests.broker.harness import Group
from tests.broker.replica.test_swap import behind


def is_append(frame: Frame) -> bool:
    return (
        isinstance(frame, RaftFrame)
        and isinstance(frame.message, AppendRequest)
        and bool(frame.message.spans)
    )


def is_snapshot(frame: Frame) -> bool:
    return isinstance(frame, RaftFrame) and isinstance(frame.message, SnapshotRequest)


def refused(group: Group, target: str, frame: RaftFrame, why: str) -> None:
    """A node closes the link on which that comes, and nothing of it is in its log."""
    node = group.node(target)
    log, term = node.replica.store.log, node.replica.term
    before = (log.first_index, log.last_index)
    node.begin(group.now_ns, group.wall_ms)
    with pytest.raises(BrokenPeerError, match=why):
        node.peer_received(frame.message.source, frame)
    assert (log.first_index, log.last_index, node.replica.term) == (*before, term)
    assert node.replica.from_peers.snapshots.source is None


APPENDS: dict[str, tuple[dict[str, Any], str]] = {
    "terms fall": ({"prev_term": 9, "term": 9}, "entries of term 1 behind one of term 9"),
    "a term to come": ({"spans": ((9, 1),)}, "entries of term 9, and its sender is in term 1"),
    "a configuration of an earlier entry": (
        {"configurations": -1},
        "configuration of entry .*, which is none of",
    ),
    "a configuration of a later entry": (
        {"configurations": 2},
        "configuration of entry .*, which is none of",
    ),
}


@pytest.mark.parametrize("case", APPENDS)
def test_an_append_that_no_leader_sends_is_refused(case: str) -> None:
    changes, why = APPENDS[case]
    group, seen = Group.elected(3), list[RaftFrame]()
    client = group.connect()
    client.create_topic("T")
    target = group.follower

    def see(source: str, to: str, frame: Frame) -> bool:
        if to == target and is_append(frame):
            assert isinstance(frame, RaftFrame)
            seen.append(frame)
            return True
        return False

    group.lose = see
    client.send("T", b"x")
    frame = seen[0]
    message = frame.message
    assert isinstance(message, AppendRequest)
    assert (message.spans, message.term) == (((1, 1),), 1)
    if "configurations" in changes:
        index = message.last_index + changes["configurations"]
        changes = {"configurations": ((index, Configuration(tuple(group.members))),)}
    refused(group, target, frame._replace(message=message._replace(**changes)), why)
    group.lose = lambda source, to, other: False
    group.converge()


SNAPSHOTS: dict[str, tuple[dict[str, Any], str]] = {
    "a term to come": ({"prev_term": 9}, "ends with an entry of term 9, and its sender is in term"),
    "a configuration of a later entry": (
        {"configuration_index": 1 << 20},
        "the configuration of entry 1048576, and its snapshot ends before",
    ),
}


@pytest.mark.parametrize("case", SNAPSHOTS)
def test_a_snapshot_that_no_leader_sends_is_refused(case: str) -> None:
    changes, why = SNAPSHOTS[case]
    group, away = behind(1, 10)
    seen: list[RaftFrame] = []

    def see(source: str, to: str, frame: Frame) -> bool:
        if to == away and is_snapshot(frame):
            assert isinstance(frame, RaftFrame)
            seen.append(frame)
            return True
        return False

    group.lose = see
    group.restart(away)
    group.run_until(lambda: bool(seen), "a snapshot")
    frame = seen[0]
    refused(group, away, frame._replace(message=frame.message._replace(**changes)), why)
    group.lose = lambda source, to, other: False
    group.converge()
