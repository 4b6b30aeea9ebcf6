"""Faults of single Raft messages, between a link and the node that it hands them to.

TCP loses, repeats and reorders nothing, but Raft must bear all three; so messages can be dropped, doubled or held back
here, for longer than the connection that they came on, and their bytes can change as TCP's own checksum lets one change
in many through.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from broker.node.node import Node
from broker.node.running import RunningNode
from broker.peers.protocol import BrokenPeerError, Frame, RaftFrame
from raft.messages import AppendRequest, Message, TimeoutNow
from simulation.journal import Journal
from simulation.machines.network import Network
from simulation.scheduler import MICROSECOND, MILLISECOND


class _Process(Protocol):
    """The process that frames come to."""

    node: Node
    running: RunningNode

    def begin(self) -> None: ...

    def wake(self) -> None: ...

    def call_after(self, delay_ns: int, callback: Callable[..., object]) -> Any: ...


class FrameWatcher(Protocol):
    """Is told of what nodes say to each other. Each hook may raise `Violation`."""

    def heard(self, message: Message) -> None:
        """A Raft message is handed to its target now."""

    def taken(self, frame: RaftFrame) -> None:
        """The target of a Raft message has taken it, or refused it."""


@dataclass(frozen=True, slots=True, eq=False)
class FrameFaults:
    """Probabilities, per Raft message, on the links of one node."""

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    corruption: float = 0.0
    """The share of messages with entries in which a bit flips."""
    source: str | None = None
    """The node whose messages these happen to; None: all."""
    late_ns_max: int = 30 * MILLISECOND
    """The longest time for which a message is held back, or its double."""
    told: Callable[[], object] = lambda: None
    """Called for each message to which one of these happens."""


class PeerFrames:
    """The frames that come to one process: `deliver` stands between its links and `Node.peer_received`."""

    def __init__(
        self,
        process: _Process,
        name: str,
        network: Network,
        journal: Journal,
        watcher: FrameWatcher,
        faults: Sequence[FrameFaults],
    ) -> None:
        """`name` is the node's own."""
        self._process = process
        self._node = process.node
        self._name = name
        self._network = network
        self._journal = journal
        self._watcher = watcher
        self._faults = faults

    def deliver(self, source: str, frame: Frame) -> bool:
        """Hands a frame to the node, as the faults will have it. Returns False when the frame wants no turn."""
        if isinstance(frame, RaftFrame):
            for faults in reversed(self._faults):
                if faults.source in (None, source):
                    self._deliver_with_faults(source, frame, faults)
                    return True
        return self._received(source, frame)

    def _received(self, source: str, frame: Frame) -> bool:
        if isinstance(frame, RaftFrame):
            self._watcher.heard(frame.message)
        try:
            wants_turn = self._node.peer_received(source, frame)
        except BrokenPeerError as error:
            raise AssertionError(f"{source} is broken, says {self._name}: {error}") from error
        if isinstance(frame, RaftFrame):
            self._watcher.taken(frame)
        return wants_turn

    def call_to_arms(self, leader: str, term: int) -> bool:
        """A `TimeoutNow` of that leader and term arrives late, or twice. Returns False when its link is down."""
        if leader not in self._process.running.links.accepted:
            return False
        delay = self._network.link(leader, self._name).random.randrange(MICROSECOND, MILLISECOND)
        self._deliver_after(delay, leader, RaftFrame(TimeoutNow(leader, self._name, term)))
        return True

    def _deliver_with_faults(self, source: str, frame: RaftFrame, faults: FrameFaults) -> None:
        random = self._network.link(source, self._name).random
        is_append = isinstance(frame.message, AppendRequest) and bool(frame.body)
        if is_append and random.random() < faults.corruption:
            self._journal.fired("message corruption")
            faults.told()
            body = bytearray(frame.body)
            body[random.randrange(len(body))] ^= 1 << random.randrange(8)
            frame = frame._replace(body=body)
        # One draw for all three: a message is hit by one of them at most.
        drawn = random.random()
        for probability, fault in (
            (faults.loss, "message loss"),
            (faults.reordering, "message reordering"),
            (faults.duplication, "message duplication"),
        ):
            if drawn < probability:
                self._journal.fired(fault)
                faults.told()
                if fault != "message loss":
                    self._deliver_after(random.randrange(MICROSECOND, faults.late_ns_max), source, frame)
                if fault != "message duplication":
                    return
                break
            drawn -= probability
        self._received(source, frame)

    def _deliver_after(self, delay_ns: int, source: str, frame: RaftFrame) -> None:
        process, accepted = self._process, self._process.running.links.accepted

        def deliver() -> None:
            if source in accepted:  # another connection will do: the network has kept the message for so long
                process.begin()
                self._received(source, frame)
                process.wake()

        process.call_after(delay_ns, deliver)
