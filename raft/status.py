"""A node's state as a status command shows it."""

from dataclasses import dataclass

from raft.configuration import Configuration


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """A leader's view of one peer; until the peer has answered, `match_index` is -1 and it is taken for recovering.

    `lacks_room`: it has said that it would take no messages for want of room.
    """

    node: str
    state: str
    voter: bool
    connected: bool
    match_index: int
    next_index: int
    inflight_appends: int
    silence_ns: int
    recovering: bool
    lacks_room: bool


@dataclass(frozen=True, slots=True)
class Status:
    """Role and peer states are the values of `Role` and `PeerState`; `peers` is empty unless the node leads.

    `recovering` is a value of `Loss` while the node may lack what it acknowledged.
    """

    node: str
    role: str
    term: int
    vote: str | None
    leader: str | None
    first_index: int
    last_index: int
    commit_index: int
    persisted_index: int
    configuration_index: int
    configuration: Configuration
    transferee: str | None
    recovering: str | None
    peers: tuple[PeerStatus, ...]
