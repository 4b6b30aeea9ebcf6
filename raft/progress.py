"""A leader's view of one peer's log, and the limit on how much it sends ahead of answers.

A peer is in one of three states, as in etcd's tracker:

- PROBE: it is unknown how far its log agrees with ours. One request at a time is open; an answer moves
  `next_index`, and success leads to REPLICATE.
- REPLICATE: requests are sent ahead of their answers, up to a window. `next_index` runs ahead of `match_index`. A
  refusal says that something was lost or overtaken, and leads back to PROBE.
- SNAPSHOT: it needs entries that our log no longer has. No entries until it has begun anew.

`match_index` only rises while all is well, but it may be taken back: a peer that flushes later than it acknowledges
can come back from a power failure with less than it had promised. Taking it back is always safe, because a match
index does nothing but raise the commit index.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from raft.terms import LogTerms


class PeerState(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(slots=True, eq=False)
class Progress:
    """Replication to one peer; see the module."""

    node: str
    # Always match_index < next_index: we never send what the peer holds (figure 2). In SNAPSHOT `next_index` says
    # nothing: it is where the peer was when its next entry was found to be deleted.
    next_index: int
    last_contact: int
    match_index: int = -1
    state: PeerState = PeerState.PROBE
    # Last indices of the requests with entries that are not acknowledged as durable, oldest first; by a peer that
    # recovers, which may withhold that until they are committed, not even as held. Only REPLICATE has any, all of them
    # above match_index and below next_index.
    inflight: deque[int] = field(default_factory=deque)
    # PROBE: the one request is on its way, or was lost; heartbeats bring the answer that is missing.
    probe_sent: bool = False
    sent_commit_index: int = -1
    acknowledged_round: int = 0
    # Acknowledgements that have not seen this heartbeat round are of a former life of the peer: not to be counted.
    trusted_round: int = 0
    # The peer may lack what it had promised, and so might not vote; True until an acknowledgement denies it.
    recovering: bool = True
    # What it said last of that; that its connection was lost since changes nothing.
    said_recovering: bool = True
    # The end of our log at some time, (index, time): until the peer holds that, it is behind since then.
    mark: tuple[int, int] = field(init=False)
    # That it is slow was told, and it has not caught up with the mark since.
    is_slow: bool = False
    connected: bool = True
    # Its node takes no messages for want of room: nobody hands over to it unasked.
    lacks_room: bool = False
    # When to offer a snapshot again that was sent and not answered; None while it is being made.
    snapshot_deadline: int | None = None
    # Index of the configuration that removes this peer, which still has to hear of its commit.
    leaving_index: int | None = None

    def __post_init__(self) -> None:
        self.mark = (-1, self.last_contact)

    def stood_still(self, duration: int, now: int) -> None:
        """Takes note that this leader could hear nobody for so long until now."""
        self.last_contact = min(now, self.last_contact + duration)
        self.mark = (self.mark[0], min(now, self.mark[1] + duration))

    def become_probe(self, next_index: int) -> None:
        """Asks anew, from `next_index` on, how far the logs agree."""
        assert next_index > self.match_index, f"a probe at {next_index}, behind {self.match_index}"
        self.state = PeerState.PROBE
        self.next_index = next_index
        self.inflight.clear()
        self.probe_sent = False
        self.snapshot_deadline = None

    def become_snapshot(self) -> None:
        """Sends no entries until the peer has begun anew from a snapshot."""
        self.state = PeerState.SNAPSHOT
        self.inflight.clear()
        self.snapshot_deadline = None

    def becomes_slow(self, last_index: int, patience: int, now: int) -> int | None:
        """Returns for how long the peer has been behind or silent when that begins to be too long; else None."""
        if self.match_index >= self.mark[0]:
            # It has what our log ended with then: from now on it is behind once it lacks today's end for too long.
            self.mark = (last_index, now)
        slow = now - min(self.mark[1], self.last_contact)
        was_slow, self.is_slow = self.is_slow, slow > patience
        return slow if self.is_slow and not was_slow else None

    def sent_entries(self, last_index: int) -> None:
        """A request with entries up to `last_index` is on its way."""
        if self.state is PeerState.PROBE:
            self.probe_sent = True
        else:
            self.inflight.append(last_index)
            self.next_index = last_index + 1

    def acknowledge(self, match_index: int, held_index: int, first_index: int) -> bool:
        """Takes the peer's word that it agrees with us up to `held_index`, durably up to `match_index`; our log begins
        at `first_index`.

        Returns True when more is durable by it.
        """
        assert match_index <= held_index, "more is durable on the peer than it has agreed to"
        advanced = match_index > self.match_index
        if advanced:
            self.match_index = match_index
        if self.state is PeerState.REPLICATE:
            # A peer that withholds (`Recovery.withholds`) may need what is beyond the window to withhold no more: the
            # configuration that makes it one of two voters, or so much of an earlier term that nothing is committed
            # before an entry of ours, which it lacks.
            inflight, settled = self.inflight, held_index if self.recovering else match_index
            while inflight and inflight[0] <= settled:
                inflight.popleft()
            if self.next_index <= held_index:
                self.next_index = held_index + 1
        # An older answer may still arrive: the open probe is answered only by one that covers the entry before it, and
        # a snapshot only by one that reaches our log.
        elif held_index >= (self.next_index if self.state is PeerState.PROBE else first_index) - 1:
            self.state = PeerState.REPLICATE
            self.next_index = held_index + 1
            self.snapshot_deadline = None
        return advanced

    def refuse(self, refused_index: int, hint_index: int, hint_term: int, log: LogTerms) -> None:
        """Takes the peer's word that it has no entry at `refused_index` like ours: probes where its hint says that the
        logs may agree.

        The hint is that of `AppendResponse`; it passes over a whole term at a time (the end of 5.3).
        """
        # It refuses a heartbeat: it has not begun anew yet, which says nothing of how far its log agrees.
        if self.state is PeerState.SNAPSHOT:
            return
        if self.state is PeerState.REPLICATE:
            # A refusal below the match index was overtaken by an acknowledgement.
            stale = refused_index < self.match_index or refused_index >= self.next_index
        else:
            # Only one request is open, so that anything else answers an older one.
            stale = refused_index != self.next_index - 1
        if stale:
            return
        # Before the first entry of all logs agree, whatever a hint says.
        agreed_at_most = max(-1, min(refused_index - 1, log.last_not_after(hint_index, hint_term)))
        self.match_index = min(self.match_index, agreed_at_most)
        self.become_probe(agreed_at_most + 1)

    def disconnected(self) -> None:
        """Forgets all that is under way, which is lost; the peer may come back as another process."""
        self.connected = False
        self.forget()

    def forget(self) -> None:
        """Takes back what the peer has acknowledged: it may not be there any more."""
        # Where it was is the best guess where its log ends: a refusal corrects that.
        self.become_probe(self.match_index + 1 if self.match_index >= 0 else self.next_index)
        self.match_index = -1
        self.recovering = True
