"""Consumer offsets on their way into the log, many to a command (design, decision 5).

Consumers report offsets far more often than anyone reads them: with every pull, and every five seconds for each
queue. So a report that nobody waits for is staged, and one command takes all that has been staged within
`COALESCE_NS`. A report that wants an answer, or a question for an offset that is staged, sends the command off at
once. What was staged and lost with the leader is reported again by its consumer.
"""

from collections.abc import Callable
from typing import Final

from broker.commands import CommitOffsets
from broker.node import Node
from broker.proposals import ReplicaError
from log.errors import DiskFullError

COALESCE_NS: Final = 100_000_000

OFFSETS_PER_COMMAND: Final = 500
"""Names have up to 255 characters each, and a command is an entry, which must fit into a data file."""

_NEVER: Final = 1 << 62


class OffsetCommits:
    """Staged consumer offsets of the leader."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._staged: dict[tuple[str, str, int], int] = {}
        self._due_ns = _NEVER
        self._waiting: list[tuple[Callable[[], None], Callable[[], None]]] = []
        node.add_timer(lambda: self._due_ns, self.propose)
        node.on_role_change(self._role_changed)

    def stage(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A report that nobody waits for."""
        key = (group, topic, queue_id)
        if not self._staged:
            known = self._node.replica.metadata.offsets.get((group, topic))
            if known is not None and known.get(queue_id) == offset:
                return  # nothing new: an idle consumer must not grow the log
            self._due_ns = min(self._due_ns, self._node.now_ns + COALESCE_NS)
        self._staged[key] = offset

    def commit(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        done: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        """A report that is answered: `done` once it is committed, `lost` when that is unknown."""
        self._staged[(group, topic, queue_id)] = offset
        self._waiting.append((done, lost))
        self._due_ns = self._node.now_ns

    def when_settled(
        self, group: str, topic: str, queue_id: int, ready: Callable[[], None], lost: Callable[[], None]
    ) -> bool:
        """False when nothing is staged for this queue; else the staged goes off and `ready` runs when applied."""
        if (group, topic, queue_id) not in self._staged:
            return False
        self._waiting.append((ready, lost))
        self._due_ns = self._node.now_ns
        return True

    def propose(self) -> None:
        """Sends off what is staged."""
        self._due_ns = _NEVER
        staged, self._staged = self._staged, {}
        waiting, self._waiting = self._waiting, []
        if not staged:
            return
        offsets = [(*key, offset) for key, offset in staged.items()]

        def done(_: object) -> None:
            for ready, _lost in waiting:
                ready()

        def lost() -> None:
            for _ready, is_lost in waiting:
                is_lost()

        try:
            # Whoever waits is told with the last command, behind which all others are applied, too.
            while len(offsets) > OFFSETS_PER_COMMAND:
                command = CommitOffsets(tuple(offsets[:OFFSETS_PER_COMMAND]))
                self._node.replica.propose_command(command, _nothing, _nothing)
                del offsets[:OFFSETS_PER_COMMAND]
            self._node.replica.propose_command(CommitOffsets(tuple(offsets)), done, lost)
        except (ReplicaError, DiskFullError):
            lost()

    def _role_changed(self) -> None:
        if not self._node.replica.serving:
            self._staged.clear()
            self._due_ns = _NEVER
            waiting, self._waiting = self._waiting, []
            for _, lost in waiting:
                lost()


def _nothing(_: object = None) -> None:
    """Nobody waits for this."""
