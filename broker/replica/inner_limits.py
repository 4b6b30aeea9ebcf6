"""The numbers at which a node begins to do something else, and which no operator sets.

Each gates a path: only a log of so many entries is covered by a snapshot, only a peer that lacks so many bytes gets
them in several appends. They suit real disks and networks; a simulated group, which lives for a minute, has small ones.
"""

from dataclasses import dataclass

from broker.requests.client_sessions import WORK_AT_ONCE
from broker.state.writing import ROWS_AT_ONCE


@dataclass(frozen=True, slots=True)
class InnerLimits:
    """The defaults are what every node runs with."""

    append_bytes_max: int = 256 * 1024
    """The most that one append carries, unless a single entry is larger."""
    snapshot_interval_entries: int = 200_000
    """A metadata snapshot is written after so many applied entries."""
    state_rows_at_once: int = ROWS_AT_ONCE
    """Rows of the state that one turn writes for a snapshot."""
    catch_up_lag_entries: int = 1000
    """A learner at most this far behind may be promoted (`RaftOptions`)."""
    pull_bytes_max: int = 256 * 1024
    """The messages of one response to a pull, unless the request names another number of bytes (5.x maxMsgBytes)."""
    hour_ms: int = 3_600_000
    """The length of an hour of `retention.reserved_hours`."""
    deliveries_max: int = 256
    delivery_bytes_max: int = 1 << 20
    """The messages that have waited which one command announces, and the length of their records together, but for the
    first (broker/delayed/deliveries.py)."""
    scanned_units: int = 800
    """The units of a queue that are looked at for one response to a pull, or as many as it wants messages."""
    work_at_once: int = WORK_AT_ONCE
    """The work that is done at once of one read from a client, in short requests
    (broker/requests/client_sessions.py)."""
    relayed_work_a_turn: int = 128
    """Requests of other nodes' clients that are handled until the end of a turn, some milliseconds' work; long ones
    count as several (broker/node/unhandled_forwards.py)."""
    told_a_turn: int = 125
    """The number of those who wait until the leader's log is applied that are told in a turn, some 5 ms' work; of those
    who wait for its commit four times as many are (broker/replica/uncommitted.py)."""
    held_at_once: int = 100
    """The weight of the requests that have waited for a leader and go on in one turn: some 5 ms of sends
    (broker/node/forwarding.py)."""
    held_requests_max: int = 4_000
    """The requests that wait at a node for a leader (broker/node/held_requests.py)."""
    forwarded_max: int = 20_000
    """The requests of a node's clients that wait for the leader's response, pulls that it holds for a minute among them
    (broker/node/forwarding.py)."""
    unhandled_max: int = 20_000
    """The requests of other nodes' clients that wait for a turn, of all nodes together
    (broker/node/unhandled_forwards.py)."""
    queues_per_command: int = 500
    """The queues of which one command has offsets or order locks: names have up to 255 characters each, and a command
    is an entry, which must fit into a data file."""
    transactions_at_once: int = 256
    """The half messages that are looked at in one slice (broker/transactions/checks.py)."""
    operations_waiting_max: int = 400
    """So many operations that wait for others are written at once: their offsets nearly fill one message
    (broker/transactions/decisions.py)."""
    unused_offsets_look_ms: int = 600_000
    """A consumer group must be so long without a client before its offsets are forgotten: RocketMQ's
    subscriptionExpiredTimeout (broker/offsets/dead_offsets.py)."""
    writers_kept_ms: int = 30 * 24 * 3_600_000
    """A writer that was not heard of for so long, by the group's time, is forgotten
    (broker/sending/portions_processor.py)."""
    delays_idle_ms: int = 60_000
    """After so much time without deliveries at any delay level the log is told that the last batches are done;
    retention waits for that (broker/delayed/delays.py)."""
    backup_lease_ms: int = 60_000
    """A backup of which nothing was read for so long is over (broker/administration/backup_processor.py)."""

    def __post_init__(self) -> None:
        for name in (
            "append_bytes_max",
            "snapshot_interval_entries",
            "pull_bytes_max",
            "hour_ms",
            "deliveries_max",
            "delivery_bytes_max",
            "scanned_units",
            "work_at_once",
            "relayed_work_a_turn",
            "told_a_turn",
            "held_at_once",
            "held_requests_max",
            "forwarded_max",
            "unhandled_max",
            "queues_per_command",
            "transactions_at_once",
            "operations_waiting_max",
            "unused_offsets_look_ms",
            "writers_kept_ms",
            "delays_idle_ms",
            "backup_lease_ms",
        ):
            assert getattr(self, name) > 0, f"{name} is positive"
        assert 0 < self.state_rows_at_once < 1 << 16, "so many rows have a head of three bytes at most"
        assert self.catch_up_lag_entries >= 0, "nobody is ahead of the leader"
