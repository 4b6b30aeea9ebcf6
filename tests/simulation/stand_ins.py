"""What judges see of hosts, nodes and links, without a world: each is whole, idle and alone but for what a test says.

A judge that looks at one thing more needs it here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from broker.node.relayed_clients import RelayedClients
from broker.offsets.commits import OffsetCommits
from broker.reading.pull_checks import PullChecks
from broker.reading.pull_responses import PullResponses
from broker.replica.inner_limits import InnerLimits
from broker.replica.read_barriers import ReadBarriers
from broker.sending.repeated_sends import RepeatedSends
from broker.sending.send_processor import SendProcessor
from broker.settings.tables import Settings
from broker.state.metadata import Metadata
from broker.transactions.checks import TransactionChecks
from log.entries.entry_log import EntryLog
from log.options import StoreOptions
from raft.configuration import Configuration
from raft.effects import Role
from raft.messages import Message
from raft.recovery_loss import Loss
from raft.terms import LogTerms

VOTERS = ("n0", "n1", "n2")


def stand_in(**attributes: Any) -> Any:
    """Returns something with these attributes and no others."""
    return SimpleNamespace(**attributes)


class RaftState:
    """The Raft state of a follower of term 1 whose log is empty."""

    def __init__(self, **said: Any) -> None:
        self.role = Role.FOLLOWER
        self.term = 1
        self.vote: str | None = None
        self.node_id = VOTERS[0]
        self.lost_voters: tuple[str, ...] = ()
        self.leader: str | None = None
        self.counted_votes: tuple[str, ...] = ()
        self.recovering: Loss | None = None
        self.recovery: Any = None
        self.commit_index = self.persisted_index = self.agreed_index = -1
        self.log_generation = self.heartbeat_round = 0
        self.configuration = Configuration(VOTERS)
        self.configuration_index = -1
        self.earlier: tuple[str, ...] | None = None
        """The voters before those of `configuration`, if there were others."""
        self.peers: dict[str, Any] = {}
        self.transferee: str | None = None
        self.transfer: Any = None
        self.log: EntryLog | None = None
        """Where a test has given it one, `log_terms` are those of what is in it."""
        self._log_terms = LogTerms(0, -1, ())
        self._configurations: Sequence[tuple[int, Configuration]] = ()
        for name, value in said.items():
            setattr(self, name, value)

    def step(self, message: Message, now: int) -> None:
        """A message changes nothing."""

    @property
    def log_terms(self) -> LogTerms:
        """The terms of its log."""
        log = self.log
        if log is None:
            return self._log_terms
        return LogTerms(log.first_index, log.last_index, log.term_starts(), log.base_term)

    @log_terms.setter
    def log_terms(self, log_terms: LogTerms) -> None:
        self._log_terms = log_terms

    @property
    def configurations(self) -> Sequence[tuple[int, Configuration]]:
        """The configuration in force, behind the one before it; or what a test has said."""
        before = () if self.earlier is None else ((-1, Configuration(self.earlier)),)
        return self._configurations or (*before, (self.configuration_index, self.configuration))

    @configurations.setter
    def configurations(self, configurations: Sequence[tuple[int, Configuration]]) -> None:
        self._configurations = configurations


def raft(**said: Any) -> Any:
    """The Raft state of a follower."""
    return RaftState(**said)


def peer(node: str, **said: Any) -> Any:
    """What a leader knows of a peer, of which it has heard nothing."""
    usual = {"match_index": -1, "next_index": 0, "state": "probe", "acknowledged_round": 0, "last_contact": 0}
    return stand_in(**({"node": node, **usual} | said))


def store(**said: Any) -> Any:
    """A store; whoever looks at its log gives it one."""
    return stand_in(**({"log": None, "snapshot": stand_in(applied_index=-1), "queues": ()} | said))


def applied(index: int = -1, **said: Any) -> Any:
    """The applied state of a node: that of one place in the log."""
    return stand_in(**({"index": index, "metadata": Metadata(), "is_of_one_place": lambda _: True} | said))


def replica(node_id: str = "n0", **said: Any) -> Any:
    """A replica of a node that does not lead and has applied nothing."""
    state, done = said.get("raft", raft()), said.get("applied", applied())
    leadership = {"serving": False, "uncommitted": None, "batches": None, "reads": ReadBarriers()}
    usual = {
        "node_id": node_id,
        "raft": state,
        "limits": InnerLimits(),
        "term": getattr(state, "term", 1),
        "leader": getattr(state, "leader", None),
        "serving": False,
        "links": {},
        "store": store(),
        "applied": done,
        "applied_index": done.index,
        "repairs": stand_in(found=0),
        "leadership": stand_in(**leadership),
        "members": None,
        "clock": None,
        "watch_words": lambda observer: None,
    }
    return stand_in(**(usual | said))


def _sends() -> SendProcessor:
    """What stores sends, and has stored none."""
    sends = SendProcessor.__new__(SendProcessor)
    sends.once = RepeatedSends.__new__(RepeatedSends)
    return sends


def node(*, parts: Mapping[type, Any] | None = None, **said: Any) -> Any:
    """A node that nobody has asked for anything; `parts` are others than it usually has, by their class."""
    has: dict[type, Any] = {
        OffsetCommits: OffsetCommits.__new__(OffsetCommits),
        TransactionChecks: TransactionChecks.__new__(TransactionChecks),
        SendProcessor: _sends(),
        RelayedClients: stand_in(),
        PullChecks: stand_in(subscribed=lambda _: None),
        PullResponses: stand_in(respond=lambda *_: None),
        **(parts or {}),
    }
    usual = {
        "part": has.__getitem__,
        "replica": said.get("replica") or replica(),
        "listeners": stand_in(arrivals=[], role_changes=[], commands=[]),
        "long_requests": stand_in(in_steps=()),
        "waiting_places": stand_in(leader=stand_in(), answer=stand_in(), turn=stand_in(), news=stand_in()),
    }
    return stand_in(**(usual | said))


def process(**said: Any) -> Any:
    """A process that runs, whose node has the links that its replica has, both ways."""
    its_node = said.get("node") or node()
    links = stand_in(accepted=dict(its_node.replica.links))
    usual = {
        "node": its_node,
        "replica": its_node.replica,
        "is_stopping": False,
        "running": stand_in(links=links),
    }
    return stand_in(**(usual | said))


def disk(**said: Any) -> Any:
    """A disk on which nothing is wrong; tests that read or write take a `SimulatedDisk`."""
    return stand_in(
        **(
            {
                "full": False,
                "fillings": 0,
                "failing_flushes": 0,
                "failing_reads": 0,
                "lacks_descriptors": None,
            }
            | said
        )
    )


def host(name: str = "n0", **said: Any) -> Any:
    """A machine on which no process runs, and with which nothing is wrong."""
    usual = {
        "name": name,
        "incarnation": 1,
        "process": None,
        "disk": disk(),
        "settings": Settings(),
        "options": StoreOptions(),
        "limits": InnerLimits(),
        "disk_slowed": None,
        "disk_faulty": False,
        "was_damaged": False,
        "damaged_pages": [],
        "was_harmed": False,
        "kept_index": None,
        "paused": False,
        "frame_faults": [],
        "held_up_until_ns": 0,
    }
    return stand_in(**(usual | said))


def link(**said: Any) -> Any:
    """A link with which nothing is wrong."""
    return stand_in(**({"cut": 0, "clogged": 0, "loss": 0.0, "slowed_by": None} | said))


def journal(**said: Any) -> Any:
    """A journal of a run in which nothing has happened yet."""
    return stand_in(**({"suspensions": [], "work_counts": {}, "did": lambda *_: None} | said))


def context(**said: Any) -> Any:
    """What an actor's invariant sees of a run."""
    judge = stand_in(asked=lambda *_: None, asked_to_store=lambda _: None)
    return stand_in(**({"journal": journal(), "invariants": [], "judge": judge} | said))


def answered(code: int) -> Any:
    """A request to which this was the response."""
    return stand_in(response=stand_in(code=code))
