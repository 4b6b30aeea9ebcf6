"""The effects that the caller of `Raft` has to carry out, in the order of the list.

Write before send (figure 2: stable storage is updated before an RPC is answered): the effects are carried out one
after the other, and

- `SaveHardState`, `ResetLog` and `RecoveryChanged` must be on the disk before the next effect is begun: an answer
  that follows may promise a vote, and a promise must survive a power failure;
- `TruncateLog`, `AcceptEntries`, `AppendNoop` and `AppendConfiguration` must be written (a later reader of the log
  sees them) before the next effect, but need not be on the disk: the caller reports that with `Raft.persisted`, and
  no acknowledgement counts an entry before;
- all effects taken must be carried out before the next `propose` or `replicate`, which read the log.

If a write fails, the node must stop: nothing here can be undone.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from raft.configuration import Configuration
from raft.messages import AppendRequest, Message, SnapshotRequest
from raft.reasons import Cause
from raft.recovery_loss import Loss


class Role(Enum):
    """A learner is a follower whose configuration gives it no vote."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class SaveHardState:
    """Make term and vote durable before anything that follows (5.1, 5.2: at most one vote in a term)."""

    term: int
    vote: str | None


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """Remove all entries after `last_index`; none of them is committed."""

    last_index: int


@dataclass(frozen=True, slots=True)
class AcceptEntries:
    """Write the entries of `message` (the very object given to `step`) from `first_index` on: skip its first `skip`."""

    message: AppendRequest
    first_index: int
    skip: int


@dataclass(frozen=True, slots=True)
class ResetLog:
    """Drop the log and its state; install what came with the snapshot and begin anew at `first_index`.

    Durable before anything that follows. `base_term` is the term before the first entry; `configuration`, of index
    `configuration_index`, is in force there and must be found again at a restart.
    """

    first_index: int
    base_term: int
    configuration_index: int
    configuration: Configuration


@dataclass(frozen=True, slots=True)
class AppendNoop:
    """Leader: write an entry that says nothing: the one that begins its term (5.4.2, 8), or one for a node that has
    lost its votes (recovery.py).
    """

    index: int
    term: int


@dataclass(frozen=True, slots=True)
class AppendConfiguration:
    """Leader: encode and write this configuration as the entry at `index`."""

    index: int
    term: int
    configuration: Configuration


class Run(Protocol):
    """Entries of the log as one append carries them; raft reads nothing of it but where it ends."""

    @property
    def last_index(self) -> int:
        """The last entry's index."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send to `message.target`; may be lost. `run` has the entries of an append, as `clip` cut them from the log."""

    message: Message
    run: Run | None = None


@dataclass(frozen=True, slots=True)
class SnapshotNeeded:
    """Send `message` with a snapshot of the state to its target, then call `snapshot_sent` or `snapshot_failed`."""

    message: SnapshotRequest


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """This node's role, its term or the leader that it knows has changed, for that cause.

    `before` is its role until now. `lost_leader` is the other node that it followed until now, if it does so no more.
    """

    role: Role
    term: int
    leader: str | None
    cause: Cause
    before: Role
    lost_leader: str | None


@dataclass(frozen=True, slots=True)
class Committed:
    """All entries up to `index` are committed: they never change again and may be applied."""

    index: int


@dataclass(frozen=True, slots=True)
class ReadReady:
    """A read with this token is linearizable once `index` is applied (dissertation 6.4)."""

    token: object
    index: int


@dataclass(frozen=True, slots=True)
class ReadLost:
    """This node stopped leading before it could confirm the read; ask the next leader."""

    token: object


@dataclass(frozen=True, slots=True)
class ConfigurationChanged:
    """The group's members, as they count from now on; `committed` tells when they are final."""

    index: int
    configuration: Configuration
    committed: bool


@dataclass(frozen=True, slots=True)
class RecoveryChanged:
    """Keep `loss`, the part of its promises that this node lacks, for the next start. None says that the mode is over.

    It must be durable before anything that follows. Until it is None, every start must be given the last value.
    """

    loss: Loss | None


@dataclass(frozen=True, slots=True)
class PeerSlow:
    """Leader: the peer has been silent, or has not held what it was sent, for `since_ns`; it lacks `lag` entries.

    Told once until it catches up.
    """

    node: str
    since_ns: int
    lag: int


Effect = (
    SaveHardState
    | TruncateLog
    | AcceptEntries
    | ResetLog
    | AppendNoop
    | AppendConfiguration
    | Send
    | SnapshotNeeded
    | RoleChanged
    | Committed
    | ReadReady
    | ReadLost
    | ConfigurationChanged
    | RecoveryChanged
    | PeerSlow
)
