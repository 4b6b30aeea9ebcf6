"""How a broker process ends in order: what `broker.shell.broker_server` does between SIGTERM and its last line.

It hands leadership over and waits for that, though not for long; says goodbye to the name servers; lets the jobs that
are out come back; and closes its replica. Until the close everything else goes on as before. From the goodbye on it is
one event here: nobody outside could tell how long it took, as the process says nothing any more.

A process that meets an error on its way out closes its replica all the same, as the shell does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.replica.operator_requests import hand_over
from log.errors import LogFault
from simulation.scheduler import SECOND

if TYPE_CHECKING:
    from simulation.machines.broker_host import BrokerProcess

__all__ = ["OrderlyStop"]

_HANDOVER_NS: Final = SECOND
"""As in the shell."""


class OrderlyStop:
    """One process's way out. `before_close` and `stopped` are called right before and behind the close."""

    def __init__(
        self, process: BrokerProcess, before_close: Callable[[], object], stopped: Callable[[], object]
    ) -> None:
        self._process = process
        self._before_close = before_close
        self._stopped = stopped
        self._waits = False
        """For leadership to go."""
        self._closes = False

    def begin(self) -> None:
        """The signal has come."""
        process = self._process
        if process.node.replica.serving:
            process.begin()
            target = hand_over(process.node.replica)
            process.wake()
            if target is not None:
                self._waits = True
                process.call_after(_HANDOVER_NS, self._waited_enough)
                return
        self._leave()

    def turned(self) -> None:
        """After each turn of the process."""
        if self._waits and not self._process.node.replica.serving:
            self._leave()

    def _waited_enough(self) -> None:
        if self._waits:
            self._leave()

    def _leave(self) -> None:
        self._waits = False
        process = self._process
        for registrar in process.registrars:
            registrar.unregister()
        process.await_jobs()
        self._before_close()
        self._close()
        self._stopped()

    def failed(self) -> None:
        """The process ends by an error."""
        if not self._closes:
            self._process.host.disk.arm_power_failure(0)
            try:
                self._close()
            except LogFault as error:
                self._process.host.note(f"cannot close its replica either: {error}")

    def _close(self) -> None:
        self._closes = True
        process = self._process
        replica = process.node.replica
        if replica.raft.commit_index > replica.applied_index:
            # By the last flush; no turn applies it any more, and so no trace tells of it, but the store's notes do.
            host = process.host
            host.surroundings.watcher.committed(host, replica.raft.commit_index, replica.term)
        replica.close(process.host.clock.now_ns())
