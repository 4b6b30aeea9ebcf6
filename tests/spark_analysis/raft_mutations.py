"""Good events of three replicas, from a small Raft that only knows logs and terms, and ways to break each invariant."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from spark_analysis.checking.replicas.reference import NO_INDEX, ReplicaEvent

Events = list[ReplicaEvent]
NODES = ("n0", "n1", "n2")
DIGEST_EVERY = 8


@dataclass
class Replica:
    """``log``: the term of each entry, the first at index 1; ``committed``: what this life knows."""

    name: str
    term: int = 0
    log: list[int] = field(default_factory=list)
    committed: int = 0

    @property
    def last_index(self) -> int:
        return len(self.log) or NO_INDEX

    def checksum(self, first: int, last: int) -> int:
        """Of entries first..last: an entry is known by its index and term."""
        return zlib.crc32(repr(list(enumerate(self.log, 1))[first - 1 : last]).encode())


class Group:
    """A group that elects, appends, replicates, loses uncommitted entries and restarts, in turns drawn at random."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.replicas = [Replica(name) for name in NODES]
        self.leader: Replica | None = None
        self.events: Events = []
        for one in self.replicas:
            self.start(one)

    def turn(self) -> None:
        choice = self.rng.random()
        if self.leader is None or choice < 0.08:
            self.elect()
        elif choice < 0.45:
            self.append(self.leader, [self.leader.term] * self.rng.randrange(1, 4))
        elif choice < 0.75:
            self.replicate(self.leader)
        elif choice < 0.95:
            self.commit(self.leader)
        else:
            self.restart(self.rng.choice(self.replicas))

    def start(self, one: Replica) -> None:
        one.committed = 0
        self.events.append(ReplicaEvent(one.name, "start", one.term, last_index=one.last_index))

    def restart(self, one: Replica) -> None:
        if one is self.leader:
            self.leader = None
        self.start(one)

    def role(self, one: Replica, role: str) -> None:
        last_term = one.log[-1] if one.log else 0
        self.events.append(
            ReplicaEvent(one.name, "role", one.term, role, last_index=one.last_index, last_term=last_term)
        )

    def elect(self) -> None:
        """A candidate with the votes of a majority: no voter's log is more up to date (section 5.4.1)."""
        voters = self.rng.sample(self.replicas, self.rng.choice([2, 3]))
        elected = max(voters, key=lambda one: (one.log[-1] if one.log else 0, len(one.log)))
        term = max(one.term for one in voters) + 1
        for one in voters:
            one.term = term
            self.role(one, "candidate" if one is elected else "follower")
        self.leader = elected
        self.role(elected, "leader")
        self.append(elected, [term])

    def append(self, one: Replica, terms: list[int]) -> None:
        """Runs of one term each, as a trace has them."""
        while terms:
            length = next((place for place, term in enumerate(terms) if term != terms[0]), len(terms))
            first = len(one.log) + 1
            one.log += terms[:length]
            digest = one.checksum(first, len(one.log))
            self.events.append(
                ReplicaEvent(
                    one.name, "append", terms[0], first_index=first, last_index=len(one.log), digest=digest
                )
            )
            terms = terms[length:]

    def replicate(self, leader: Replica) -> None:
        """A follower gets everything up to some entry; what contradicts the leader's log goes first."""
        follower = self.rng.choice([one for one in self.replicas if one is not leader])
        if follower.term > leader.term:
            self.leader = None
            leader.term = follower.term
            self.role(leader, "follower")
            return
        if follower.term < leader.term:
            follower.term = leader.term
            self.role(follower, "follower")
        pairs = zip(follower.log, leader.log, strict=False)
        common = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
        shared = min(len(follower.log), len(leader.log)) if common is None else common
        if common is not None:
            del follower.log[shared:]
            self.events.append(ReplicaEvent(follower.name, "truncate", last_index=shared or NO_INDEX))
        if len(follower.log) == shared:
            upto = self.rng.randrange(shared, len(leader.log) + 1)
            self.append(follower, leader.log[shared:upto])
        self.learn(follower, min(leader.committed, len(follower.log)))

    def commit(self, leader: Replica) -> None:
        """Commits what a majority holds, if its last entry is of the leader's term (section 5.4.2)."""
        held = sorted(
            next(
                (
                    place
                    for place, pair in enumerate(zip(one.log, leader.log, strict=False))
                    if pair[0] != pair[1]
                ),
                min(len(one.log), len(leader.log)),
            )
            for one in self.replicas
            if one.term <= leader.term
        )
        index = held[-2] if len(held) > 1 else 0
        if index and leader.log[index - 1] == leader.term:
            self.learn(leader, index)

    def learn(self, one: Replica, index: int) -> None:
        if index > one.committed:
            for place in range(one.committed // DIGEST_EVERY + 1, index // DIGEST_EVERY + 1):
                at = DIGEST_EVERY * place
                self.events.append(
                    ReplicaEvent(one.name, "digest", last_index=at, digest=one.checksum(1, at))
                )
            one.committed = index
            self.events.append(ReplicaEvent(one.name, "commit", one.term, last_index=index))


def good_events(rng: random.Random, turns: int) -> Events:
    """Returns the events of three replicas in ``turns`` turns; enough that every mutation finds its place."""
    while True:
        group = Group(rng)
        for _ in range(turns):
            group.turn()
        kinds = [event.kind for event in group.events]
        leaders = [event for event in group.events if event.role == "leader"]
        if kinds.count("digest") > 1 and kinds.count("commit") > 3 and len(leaders) > 1:
            return group.events


def _place(rng: random.Random, events: Events, kind: str, role: str | None = None) -> int:
    return rng.choice(
        [
            place
            for place, event in enumerate(events)
            if event.kind == kind and (role is None or event.role == role)
        ]
    )


def two_leaders(rng: random.Random, events: Events) -> None:
    """Another node says that it is leader of a term that has one."""
    place = _place(rng, events, "role", "leader")
    other = rng.choice([name for name in NODES if name != events[place].node])
    events.insert(place + 1, replace(events[place], node=other))


def term_went_back(rng: random.Random, events: Events) -> None:
    """A node comes back, or changes its role, in an older term."""
    place = _place(rng, events, "role")
    one = events[place]
    older = replace(
        one,
        kind=rng.choice(["start", "role"]),
        role="follower",
        term=(one.term or 0) - 1,
        last_index=max(one.last_index, 0),  # a start without anything is of a new disk
    )
    events.insert(place + 1, older)


def commit_went_back(rng: random.Random, events: Events) -> None:
    """A node's commit index falls while it runs."""
    place = _place(rng, events, "commit")
    events.insert(place + 1, replace(events[place], last_index=events[place].last_index - 1))


def committed_truncated(rng: random.Random, events: Events) -> None:
    """A node removes an entry that it had known committed, in this life or a later one."""
    place = _place(rng, events, "commit")
    one = events[place]
    events.insert(
        rng.randrange(place + 1, len(events) + 1),
        ReplicaEvent(one.node, "truncate", last_index=one.last_index - rng.randrange(1, one.last_index + 1)),
    )


def leader_incomplete(rng: random.Random, events: Events) -> None:
    """A leader of a later term lacks the last entry that was known committed."""
    place = _place(rng, events, "commit")
    later = max(event.term or 0 for event in events) + 1
    events.append(
        ReplicaEvent(rng.choice(NODES), "role", later, "leader", last_index=events[place].last_index - 1)
    )


def leader_stale(rng: random.Random, events: Events) -> None:
    """A leader of a later term has a log as long as you like, which ends in a term before that of a committed entry."""
    begun = {(one.node, one.term): one.last_index for one in events if one.role == "leader"}
    own = [
        one
        for one in events
        if one.kind == "commit" and one.last_index > begun.get((one.node, one.term), one.last_index)
    ]
    lost = rng.choice(own)
    later = max(event.term or 0 for event in events) + 1
    end = max(event.last_index for event in events) + rng.randrange(9)
    other = rng.choice([name for name in NODES if name != lost.node])
    last_term = rng.randrange(lost.term or 0)
    events.append(ReplicaEvent(other, "role", later, "leader", last_index=end, last_term=last_term))


def log_mismatch(rng: random.Random, events: Events) -> None:
    """Another node has other bytes under the same indices and term."""
    place = _place(rng, events, "append")
    one = events[place]
    other = rng.choice([name for name in NODES if name != one.node])
    events.append(replace(one, node=other, digest=(one.digest or 0) ^ 1 << rng.randrange(32)))


def prefix_mismatch(rng: random.Random, events: Events) -> None:
    """A node's committed prefix has other bytes than another's of the same length."""
    place = _place(rng, events, "digest")
    one = events[place]
    other = rng.choice([name for name in NODES if name != one.node])
    events.append(replace(one, node=other, digest=(one.digest or 0) ^ 1 << rng.randrange(32)))


RAFT_MUTATIONS: dict[Callable[[random.Random, Events], None], str] = {
    two_leaders: "two-leaders",
    term_went_back: "term-went-back",
    commit_went_back: "commit-went-back",
    committed_truncated: "committed-truncated",
    leader_incomplete: "leader-incomplete",
    leader_stale: "leader-incomplete",
    log_mismatch: "log-mismatch",
    prefix_mismatch: "prefix-mismatch",
}
