"""Looks, after each power failure, whether the group has lost something for good: that ends the run.

What may be lost `power_losses` decides; here stands when to look, and what a loss means for the run: nothing that could
be waited for is left, so it ends with a `DataLoss`, which is told and is no finding.
"""

from __future__ import annotations

from simulation.journal import Journal, Violation
from simulation.judges.client_judge import ClientJudge
from simulation.judges.group_model import GroupModel
from simulation.judges.power_losses import DataLoss, PowerLosses
from simulation.machines.broker_host import BrokerHost
from simulation.scheduler import Scheduler


class DataLossWatch:
    """Hears of machines that go dark (`broker_host.PowerWatcher`), and ends the run if that lost something for good."""

    def __init__(
        self,
        scheduler: Scheduler,
        journal: Journal,
        losses: PowerLosses,
        model: GroupModel,
        judge: ClientJudge,
    ) -> None:
        self.data_loss: DataLoss | None = None
        """The loss that has ended the run."""
        self._scheduler = scheduler
        self._journal = journal
        self._losses = losses
        self._model = model
        self._judge = judge

    def power_failed(self, host: BrokerHost, before: dict[int, bytes], fault: str) -> None:
        """A machine went dark. What the group lost is looked at when all that go dark with it have."""
        try:
            self._losses.power_failed(host, before, fault, self._scheduler.now_ns)
        except Violation as violation:
            self._journal.found(violation)
        else:
            self._scheduler.after(0, self.look)

    def pages_left(self, host: BrokerHost, before: dict[int, bytes]) -> None:
        """A process has ended behind a failed flush, maybe with the only copy of something."""
        try:
            self._losses.pages_left(host, before, self._scheduler.now_ns)
        except Violation as violation:
            self._journal.found(violation)
        else:
            self._scheduler.after(0, self.look)

    def look(self) -> None:
        """Ends the run if no voter holds some committed entry any more. Raises Violation if none of it may be lost."""
        lost = self._losses.data_loss()
        if lost is not None and self.data_loss is None:
            first_index, nodes = lost
            model = self._model
            acknowledged = self._judge.acknowledged_from(model.positions[first_index])
            loss = DataLoss(first_index, model.last_index + 1 - first_index, acknowledged, nodes)
            self.data_loss = loss
            self._journal.note("group", f"DATA LOST {loss.describe()}")
            self._scheduler.stopped = True
