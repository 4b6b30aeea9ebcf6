"""The health of a node: whether it lives, and whether it is ready, as ``/livez`` and ``/readyz`` answer.

A node that does not live should be started anew; one that is not ready should be sent nobody, and left to become so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from broker.remoting.node_status import loss_in_words

if TYPE_CHECKING:  # a name server has checks, too, and no node
    from collections.abc import Callable

    from broker.node.running import RunningNode
    from broker.replica.report import ReplicaReport

OVERDUE_NS: Final = 5_000_000_000
"""A turn that is so late does not come any more: a node that is merely busy has them many times a second."""


class Check(NamedTuple):
    """One thing that must hold; `problem` says why it does not, and is empty where it does."""

    name: str
    problem: str


class Health:
    """The checks of one node. `report` tells of its replica at a monotonic time."""

    def __init__(self, running: RunningNode, report: Callable[[int], ReplicaReport]) -> None:
        self._running = running
        self._node = running.node
        self._report = report

    def live(self) -> list[Check]:
        """The loop answers this itself, and so goes round; it must have its turns, too."""
        overdue_ns = self._node.time.now_ns - self._running.due_ns
        return [Check("turns", f"{overdue_ns / 1e9:.1f} s overdue" if overdue_ns > OVERDUE_NS else "")]

    def ready(self) -> list[Check]:
        """Tells whether a node can serve clients, as leader or as follower."""
        report = self._report(self._node.time.now_ns)
        raft = report.raft
        # A follower serves by its leader: whom it cannot reach, it cannot forward to.
        leader = "" if report.serving else "none is known"
        if raft.leader == raft.node:
            leader = "" if report.serving else "it leads, and does not serve yet"
        elif raft.leader is not None:
            leader = "" if raft.leader in report.links else f"no link to {raft.leader}"
        disk = ""
        if report.refuses_sends:
            disk = "it is full: sends are refused"
        elif report.disk_full:
            disk = "it is full: something found no room"
        registrars = self._running.registrars
        # One name server that knows the node is enough for clients to find it.
        silent = [registrar.line.address for registrar in registrars if not registrar.is_registered]
        unregistered = (
            "" if not registrars or len(silent) < len(registrars) else f"not at {', '.join(silent)}"
        )
        return [
            Check("member", "it is no member of its group" if self._node.is_outside else ""),
            Check("leader", leader),
            Check(
                "recovered",
                "" if raft.recovering is None else f"it may lack {loss_in_words(raft.recovering)}",
            ),
            Check("disk", disk),
            Check("registered", unregistered),
            Check("running", "it stops" if self._running.is_stopping else ""),
        ]
