"""The messages between the members of a group.

Every message names its source, its target and a term, and consists of integers, booleans, strings, tuples of these
and `Configuration`, so that another room can encode it as it likes. No message carries entry bytes: an append names
the range and the terms of its entries, and its sender attaches the bytes of that range.

They are named tuples: there are some appends and acknowledgements in every turn, and frozen dataclasses take eight
times as long to make. Two messages of different kinds can therefore be equal; tell them apart by their types.

Indices start at 0, -1 is the place before the first entry; terms start at 1, term 0 belongs to index -1.
"""

from typing import NamedTuple

from raft.configuration import Configuration


class VoteRequest(NamedTuple):
    """A candidate asks for a vote (5.2); with `pre_vote` it asks if it would get one (dissertation 9.6).

    `term` is the term that the candidate is in, or, with `pre_vote`, the one that it would enter.
    `leadership_transfer`: the old leader asked for this election, so that its followers need not defend it.
    """

    source: str
    target: str
    term: int
    last_index: int
    last_term: int
    pre_vote: bool = False
    leadership_transfer: bool = False


class VoteResponse(NamedTuple):
    """`term` is the voter's own, `request_term` that of the request answered (greater in a pre-vote).

    `recovering`: the voter may lack what it acknowledged; its vote counts only if all voters grant theirs, and so do
    `lost_voters`, those of configurations that it has lost (recovery.py).
    """

    source: str
    target: str
    term: int
    request_term: int
    granted: bool
    pre_vote: bool = False
    recovering: bool = False
    lost_voters: tuple[str, ...] = ()


class AppendRequest(NamedTuple):
    """The entries after `prev_index`, in runs of one term; none in a heartbeat (5.3).

    `spans` are (term, count) with count > 0. `configurations` are those among the entries. `round` numbers the
    leader's heartbeat rounds of this term from 1; an empty request of round 0 tells a commit index and is not
    answered unless it is refused.
    """

    source: str
    target: str
    term: int
    prev_index: int
    prev_term: int
    spans: tuple[tuple[int, int], ...]
    commit_index: int
    round: int
    configurations: tuple[tuple[int, Configuration], ...] = ()

    @property
    def last_index(self) -> int:
        """The index of its last entry; `prev_index` when it carries none."""
        index = self.prev_index
        for _, count in self.spans:
            index += count
        return index

    @property
    def contradiction(self) -> str:
        """Says by what in it no leader can have sent this; empty where nothing is."""
        last_term = self.prev_term
        for term, _ in self.spans:
            if term < last_term:
                return f"it has entries of term {term} behind one of term {last_term}"
            if term > self.term:
                return f"it has entries of term {term}, and its sender is in term {self.term}"
            last_term = term
        last_index = self.prev_index
        for index, _ in self.configurations:
            if not last_index < index <= self.last_index:
                return f"it has a configuration of entry {index}, which is none of {last_index + 1}..{self.last_index}"
            last_index = index
        return ""


class AppendResponse(NamedTuple):
    """A follower's acknowledgement or refusal.

    In a success, `log_index` is the last index up to which its log is known to agree with the leader's. Of that, the
    entries up to `match_index` are on its disk, and only those count. In a refusal, `log_index` is the refused
    prev_index. `hint_index` and `hint_term` then name the last of its entries, at or before that index, whose term is
    not greater than the refused one: no entry after it can agree (the end of 5.3). `round` is the latest round that
    the follower has seen. `recovering` says that it may lack what it once acknowledged or promised, and does not vote
    as others do.
    """

    source: str
    target: str
    term: int
    success: bool
    match_index: int
    log_index: int
    round: int
    hint_index: int = -1
    hint_term: int = 0
    recovering: bool = False


class SnapshotRequest(NamedTuple):
    """The leader's log begins after what the follower holds: start over at `first_index`.

    `prev_term` is the term of the entry before it, `configuration` with its index the one in force there. All
    before `first_index` is committed. The sender attaches the state that the follower cannot rebuild from the log.
    """

    source: str
    target: str
    term: int
    first_index: int
    prev_term: int
    configuration_index: int
    configuration: Configuration

    @property
    def contradiction(self) -> str:
        """Says by what in it no leader can have sent this; empty where nothing is."""
        if self.prev_term > self.term:
            return f"its snapshot ends with an entry of term {self.prev_term}, and its sender is in term {self.term}"
        if self.configuration_index >= self.first_index:
            return (
                f"it has the configuration of entry {self.configuration_index}, and its snapshot ends before entry "
                f"{self.first_index}"
            )
        return ""


class SnapshotResponse(NamedTuple):
    """The follower agrees with the leader up to `match_index`, durably."""

    source: str
    target: str
    term: int
    match_index: int


class TimeoutNow(NamedTuple):
    """The leader asks the target, which holds its whole log, to start an election at once (dissertation 3.10)."""

    source: str
    target: str
    term: int


class RecoveryRequest(NamedTuple):
    """A node that may have lost what it acknowledged asks what it must hold; see recovery.py.

    `term` is its own, 0 while that is unknown; it does not make anyone enter it. `nonce` comes back in the answer.
    `lost_votes`: it does not know which votes it gave, so a leader appends an entry behind this question.
    """

    source: str
    target: str
    term: int
    nonce: int
    lost_votes: bool = False


class RecoveryResponse(NamedTuple):
    """The answer to a `RecoveryRequest`.

    `has_history` is False if the node has never had a term, but for that of a log from a backup. `leads` says that it
    leads `term`, has forgotten what the asker had acknowledged, and has committed nothing beyond `commit_index` with
    its help, nor has a configuration beyond it (-1 unless it leads); to one that has lost its votes it is the index of
    the entry that was appended for it. `voters` are those of the last configuration that it knows to be committed, and
    of each later one in its log, each with its index; none while it recovers itself.
    """

    source: str
    target: str
    term: int
    nonce: int
    has_history: bool
    leads: bool = False
    commit_index: int = -1
    voters: tuple[tuple[int, tuple[str, ...]], ...] = ()


Message = (
    AppendRequest
    | AppendResponse
    | VoteRequest
    | VoteResponse
    | SnapshotRequest
    | SnapshotResponse
    | TimeoutNow
    | RecoveryRequest
    | RecoveryResponse
)
