"""Errors that the operation of a group can cause.

What only a bug of this node can break is an assertion and not in this tree. Every error here leaves the state machine
as it was; the tree says whose fault it is and whether a retry may help:

    RaftError
    ├── NotLeader                 ask `leader` instead, or again once a leader is known
    ├── LeadershipTransferring    ask again shortly, wherever the leader then is
    ├── ProposalLimit             overload: ask again once earlier proposals are committed
    ├── ImpossibleMessage         no member that works sends this: believe the sender no more
    └── ConfigurationError
        ├── ConfigurationPending  ask again once the change under way, or this term's first entry, is committed
        ├── LearnerBehind         ask again once the learner has caught up
        ├── LearnerRecovering     ask again once it has heard from every voter; remove those that are gone for good
        ├── VotersRecovering      ask again once they have recovered; one that is gone for good may leave meanwhile
        ├── UnknownMember         the caller's mistake: no such member, or not of the kind that is needed
        ├── AlreadyMember         the caller's mistake: nothing to add or to promote
        └── LastVoter             the caller's mistake: a group keeps at least one voter
"""
# ruff: noqa: N818  (the names say what happened; the tree says that they are errors)


class RaftError(Exception):
    """Base of everything that operation, as opposed to a bug, can cause in this package."""


class NotLeader(RaftError):
    """Only the leader can do this; `leader` is the one this node follows, or None while it knows none."""

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"not the leader; the leader is {leader or 'unknown'}")
        self.leader = leader


class LeadershipTransferring(RaftError):
    """The leader is handing over to `target` and takes no proposals until that succeeds or is given up."""

    def __init__(self, target: str) -> None:
        super().__init__(f"leadership is being transferred to {target}")
        self.target = target


class ProposalLimit(RaftError):
    """Too many entries wait for their commit already: `max_uncommitted_entries` is the limit."""

    def __init__(self, uncommitted: int, limit: int) -> None:
        super().__init__(f"{uncommitted} entries are uncommitted, the limit is {limit}")
        self.uncommitted = uncommitted
        self.limit = limit


class ImpossibleMessage(RaftError):
    """A message contradicts what this node knows: its sender is broken, or this node is."""


class ConfigurationError(RaftError):
    """A membership change, or a transfer, was refused."""


class ConfigurationPending(ConfigurationError):
    """Another change is uncommitted, or the leader has committed nothing in its term yet."""


class LearnerBehind(ConfigurationError):
    """The learner lacks `lag` entries, or has not been heard from lately."""

    def __init__(self, node: str, lag: int) -> None:
        super().__init__(f"learner {node} is {lag} entries behind or silent")
        self.node = node
        self.lag = lag


class LearnerRecovering(ConfigurationError):
    """The learner's disk was empty, and no entry has been committed since then that it holds: it cannot vote yet.

    With a vote it would raise the majority that an election needs, and give none: a group could be left without any.
    """

    def __init__(self, node: str) -> None:
        super().__init__(
            f"learner {node} is recovering: nothing that it holds was committed since its disk was empty"
        )
        self.node = node


class VotersRecovering(ConfigurationError):
    """Without `node`, which can vote, too few of the remaining voters could: too many are recovering.

    If this leader failed before the removal is committed, the group could stay without one: a node that has the entry
    of the removal refuses all others its vote, and needs the votes of those that give none.
    """

    def __init__(self, node: str, recovering: tuple[str, ...]) -> None:
        super().__init__(
            f"{node} is needed while {', '.join(recovering)} cannot vote: recovering, or not heard yet"
        )
        self.node = node
        self.recovering = recovering


class UnknownMember(ConfigurationError):
    """The group has no such member, or it is not of the kind that the operation needs."""

    def __init__(self, node: str, needed: str) -> None:
        super().__init__(f"{node} is not {needed} of this group")
        self.node = node


class AlreadyMember(ConfigurationError):
    """The node already is what it was to become."""

    def __init__(self, node: str) -> None:
        super().__init__(f"{node} already is a member of that kind")
        self.node = node


class LastVoter(ConfigurationError):
    """The only voter cannot be removed."""

    def __init__(self, node: str) -> None:
        super().__init__(f"{node} is the only voter")
        self.node = node
