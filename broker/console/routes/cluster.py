"""The cluster's health."""

from broker.console.asking import Order, Question
from broker.console.parameters import BrokerName, NodeId, Nothing, Parameters
from broker.console.seats import Seat
from broker.console.snapshot import Snapshot
from broker.operations.doctor import Diagnosis, diagnose


class Heir(Parameters, frozen=True):
    """The node that is to lead a broker group."""

    group: BrokerName
    node: NodeId


async def cluster(seat: Seat, parameters: Nothing) -> Snapshot:
    """The cluster now."""
    return await seat.live.refresh()


async def doctor(seat: Seat, parameters: Nothing) -> Diagnosis:
    """Return the doctor's findings: what is wrong with the cluster, or will be, and what to do."""
    return await diagnose(seat.admin)


async def transfer(seat: Seat, heir: Heir) -> None:
    """Have another node lead its group. Raises ClientError."""
    await seat.admin.transfer_leadership(heir.node, heir.group)


ROUTES = (
    Question("/api/cluster", Nothing, cluster),
    Question("/api/doctor", Nothing, doctor),
    Order("/api/cluster/transfer", Heir, transfer, "transfer leadership"),
)
