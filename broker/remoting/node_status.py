"""A node's report to an operator about its replica: the body of the response to TRIVET_NODE_STATUS (code 90001).

The reference scatters these figures over its runtime table and its DLedger tools; here one request without fields
answers them all, on any node and in any role, so that lag and roles can be compared at a glance. JSON, because
scripts read it too; unknown fields are ignored, so that fields can be added.
"""

from typing import Final, Literal

import msgspec

Role = Literal["leader", "follower", "candidate", "pre-candidate", "learner", "outside"]
"""A learner is a follower without a vote; a node outside is no member of the group, not yet or not any more."""


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A leader's knowledge of one peer; a follower reports none."""

    id: str
    match_index: int
    """Last index known to be on the peer; -1 if none is."""
    state: str = ""
    """The way in which the leader replicates to it: probe, replicate, or snapshot."""
    last_contact_ms: int | None = None
    """Milliseconds since the peer was last heard; None if it never was."""


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that the node's process knows, or the operating system of it; None where it does not say."""

    open_files: int | None = None
    open_files_max: int | None = None
    certificate_expires_ms: int | None = None
    """The time at which the first certificate that clients are shown expires, in milliseconds since 1970; None without
    one."""
    accounts: str | None = None
    """The digest of the accounts in force (`broker.access.accounts`); None where everyone may do everything."""


class KnownLeader(msgspec.Struct, frozen=True, kw_only=True):
    """A leader that a node heard of, and when: by the group's time, in milliseconds since 1970."""

    node: str
    term: int
    at_ms: int


_LOSS_IN_WORDS: Final = {
    "entries": "the last entries of its log that it acknowledged",
    "vote": "the votes that it gave before its disk was replaced",
    "all": "its votes and all entries of its log, as its disk was empty or came from a backup",
}


def loss_in_words(recovering: str) -> str:
    """Says what a node may lack whose `NodeStatus.recovering` is this; a word of a newer release stands for itself."""
    return _LOSS_IN_WORDS.get(recovering, recovering)


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One replica at one moment. Indices count entries from 0; -1 means none."""

    node: str
    group: str
    role: Role
    term: int
    leader: str | None
    commit_index: int
    applied_index: int
    first_index: int
    last_index: int
    last_position: int
    """Byte position of the log's end."""
    serving: bool = False
    """True if a leader has committed an entry of its term and takes requests."""
    durable_index: int | None = None
    peers: tuple[PeerStatus, ...] = ()
    cluster: str = ""
    address: str = ""
    """The address that clients are told to connect to."""
    process_id: int = 0
    store_path: str = ""
    recovering: str | None = None
    """The things that this node may lack of what it acknowledged (entries, vote, all); None when it is a full
    member.
    """
    disk_full: bool = False
    """True while this node takes nothing for want of space on its disk."""
    damage_left: int = 0
    """Entries that the node's disk has damaged since it started, and that it has not from a peer yet."""
    scrubbed_ms: int | None = None
    """The end of the node's last pass over old files, in milliseconds since 1970; None if none since its start."""
    voters: tuple[str, ...] = ()
    """Ids of the members with a vote, as this node knows them."""
    learners: tuple[str, ...] = ()
    """Ids of those that receive the log without a vote."""
    configuration_index: int = -1
    """The entry that made these the members; -1 of a group's first ones."""
    peer_addresses: dict[str, str] = {}
    """The addresses at which the members listen for each other."""
    release: str = ""
    """The release of Trivet that the node runs."""
    format: int = 1
    """The format of what its group writes, as far as it has applied (docs/upgrading.md)."""
    wall_ms: int | None = None
    """The node's wall clock when it answered, in milliseconds since 1970; None of nodes before 0.2."""
    disk_free_bytes: int | None = None
    disk_total_bytes: int | None = None
    """The size of the file system that holds the store."""
    process: ProcessFacts = ProcessFacts()
    leaders: tuple[KnownLeader, ...] = ()
    """The latest leaders that this process has heard of, the newest last."""
    recovered: tuple[str, ...] = ()
    """Damage that was found in the files at start and what was done about it, one sentence each."""

    def encode(self) -> bytes:
        """Encodes it as the response's body."""
        return msgspec.json.encode(self)


def decode_node_status(body: bytes | memoryview) -> NodeStatus:
    """Reads a response's body. Raises `msgspec.DecodeError` if it is not one."""
    try:
        return _decode(body)
    except (ValueError, RecursionError) as error:  # no UTF-8, and brackets in a field of a newer release
        raise msgspec.DecodeError(str(error)) from error


# Made here and not at its first use, which may be in several threads at once: see `json_body.make_decoder`.
_decode = msgspec.json.Decoder(NodeStatus).decode
