"""Backups: a client reads a consistent copy of this node's log and state while the node goes on (docs/backup.md).

A backup is a place in the log: every entry up to it, and the replicated state behind exactly that entry. All of that is
committed, so it does not matter which node is read, nor who leads meanwhile. What is committed never changes; only
retention could take entries that are still to be read. So a backup under way holds them: from the entry that was read
last on, until it ends. It ends with its connection, or when nothing was read for a minute
(`InnerLimits.backup_lease_ms`).

Reading costs the node no more than a consumer of old messages does: slices of the mapping, brought into memory by a
worker where they are cold, one at a time. The reader decides how fast.

    INVALID_PARAMETER 29    no such place in this backup
    SYSTEM_BUSY 2           not now: another backup is under way, or this node has not applied enough yet
    ILLEGAL_OPERATION 604   no backup is under way on this connection: it has ended, or the log began anew
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

import msgspec

from broker.node.listeners import Listeners
from broker.remoting.backup_description import BackupDescription
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import Int64, RemotingCommand
from broker.remoting.pieces import Pieces
from broker.replica.applied import AppliedState
from broker.replica.loads import Loads
from broker.requests.connection import Connection
from broker.requests.deadline import MS, NEVER, Time
from broker.requests.errors import RequestError
from broker.requests.long_bodies import while_wanted
from broker.requests.processing import HandledOn, Route
from broker.requests.responses import reply
from broker.settings.tables import NodeSettings
from broker.state.release import Release
from log.entries.entry_log import EntryLog
from log.entries.entry_reads import check_run
from log.errors import DamagedLogError, OutOfRangeError

SLICE_BYTES: Final = 1 << 20
"""The most that one response carries, unless a single entry is larger."""


class BackupBeginHeader(msgspec.Struct, rename="camel"):
    """TRIVET_BACKUP_BEGIN 90005: the backup reaches to `commit_index` at least."""

    commit_index: Int64 = -1


class BackupLogHeader(msgspec.Struct):
    """TRIVET_BACKUP_LOG 90006: entries from `index` on."""

    index: Int64


class BackupSnapshotHeader(msgspec.Struct):
    """TRIVET_BACKUP_SNAPSHOT 90007: bytes from `offset` on."""

    offset: Int64


@dataclass(slots=True)
class _Backup:
    """The backup under way: entries up to `last_index` of the log's `epoch`. Those from `needed_from` on are to be read
    yet, or are read now."""

    connection: Connection
    epoch: int
    last_index: int
    needed_from: int
    snapshot: list[bytes | memoryview] = field(default_factory=list)
    """In pieces; none as long as it is being written."""
    begins: list[int] = field(default_factory=list)
    """The offset of each piece: as many as these, the first is 0."""


class BackupProcessor:
    """TRIVET_BACKUP_BEGIN 90005, TRIVET_BACKUP_LOG 90006, TRIVET_BACKUP_SNAPSHOT 90007."""

    def __init__(
        self,
        applied: AppliedState,
        entry_log: EntryLog,
        loads: Loads,
        release: Release,
        names: NodeSettings,
        lease_ms: int,
        time: Time,
        listeners: Listeners,
    ) -> None:
        self._lease_ns = lease_ms * MS
        self._applied = applied
        self._log = entry_log
        self._loads = loads
        self._release = release
        self._time = time
        self._names = names
        self._backup: _Backup | None = None
        """While there is one, and only then, `_lease` is due: one that nobody reads must not hold the log for ever."""
        self._lease = time.add_deadline(self._end, judges_silence=True)
        listeners.disconnects.append(self._disconnected)

    def routes(self) -> Iterable[Route]:
        """Always this node."""
        return (
            Route(RequestCode.TRIVET_BACKUP_BEGIN, self.begin, HandledOn.ANY),
            Route(RequestCode.TRIVET_BACKUP_LOG, self.read_log, HandledOn.ANY),
            Route(RequestCode.TRIVET_BACKUP_SNAPSHOT, self.read_snapshot, HandledOn.ANY),
        )

    @property
    def needed_from_index(self) -> int | None:
        """The first entry that the backup under way may still read; None if there is none."""
        assert (self._backup is None) == (self._lease.due_ns == NEVER), (
            "a backup that never ends would keep the log from being deleted until the disk is full"
        )
        return None if self._backup is None else self._backup.needed_from

    def begin(self, connection: Connection, command: RemotingCommand) -> Iterator[None]:
        """Begins a backup of all that is applied now, and describes it (`BackupDescription`), in steps.

        It takes the place of an earlier one of this connection. Raises `RequestError`.
        """
        wanted = command.decode_fields(BackupBeginHeader).commit_index
        applied, log, node_id = self._applied, self._log, self._names.id
        backup = self._backup
        if backup is not None and backup.connection is not connection:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"a backup of {node_id} by {backup.connection.name} is under way",
            )
        last_index = applied.index
        if not applied.is_of_one_place(wanted) or last_index < log.first_index:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"{node_id} has applied up to {last_index}, not {wanted} yet",
            )
        # The state as it is now: its steps write that, however much is applied meanwhile.
        written = applied.written()
        self._backup = backup = _Backup(connection, log.epoch, last_index, log.first_index)
        self._renew()
        description = BackupDescription(
            group=self._names.group,
            cluster=self._names.cluster,
            node=node_id,
            release=self._release.name,
            format=applied.metadata.format,
            data_file_bytes=log.file_bytes,
            first_index=log.first_index,
            first_position=log.first_position,
            base_term=log.base_term,
            last_index=last_index,
            end_position=log.end_of(last_index),
            snapshot_bytes=0,
        )
        state = yield from while_wanted(written, lambda: self._backup is backup)
        if state is None or self._backup is not backup:
            raise RequestError(ResponseCode.ILLEGAL_OPERATION, "the backup has ended meanwhile")
        backup.snapshot = state.all()
        lengths = list(map(len, backup.snapshot))
        backup.begins = [0, *accumulate(lengths[:-1])]
        self._renew()
        description = msgspec.structs.replace(description, snapshot_bytes=sum(lengths))
        reply(connection, command, ResponseCode.SUCCESS, body=msgspec.json.encode(description))

    def read_log(self, connection: Connection, command: RemotingCommand) -> None:
        """Answers with whole entries that follow each other, from the one asked for on, all of one data file.

        The fields are `lastIndex` and `position`, of the first byte. Entries before `index` are not held any longer.
        Raises `RequestError`.
        """
        index = command.decode_fields(BackupLogHeader).index
        backup = self._of(connection)
        log = self._log
        if not log.first_index <= index <= backup.last_index:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"entry {index} is not one of {log.first_index}..{backup.last_index}",
            )
        backup.needed_from = index
        self._renew()
        begin = log.position_of(index)
        last = min(begin + SLICE_BYTES, log.end_of(backup.last_index)) - 1

        def loaded() -> None:
            if backup is not self._backup or backup.epoch != log.epoch:
                reply(connection, command, ResponseCode.ILLEGAL_OPERATION, "the backup has ended meanwhile")
                return
            try:
                run = log.run(index, backup.last_index, SLICE_BYTES)
                check_run(log, index, run)
            except DamagedLogError as error:
                # It is repaired meanwhile, if somebody has it whole.
                reply(connection, command, ResponseCode.SYSTEM_BUSY, str(error))
                return
            except OutOfRangeError as error:
                # Its reader has asked for a later one meanwhile, and so has not held it any longer.
                reply(connection, command, ResponseCode.INVALID_PARAMETER, str(error))
                return
            fields = {"lastIndex": str(run.last_index), "position": str(run.position)}
            reply(connection, command, ResponseCode.SUCCESS, None, fields, run.body)

        # A slice may lie in two windows.
        loads, now_ns = self._loads, self._time.now_ns
        loads.when_loaded(begin, lambda: loads.when_loaded(last, loaded, self._time.now_ns), now_ns)

    def read_snapshot(self, connection: Connection, command: RemotingCommand) -> None:
        """Answers with bytes of the state behind the last entry. Raises `RequestError`."""
        offset = command.decode_fields(BackupSnapshotHeader).offset
        backup = self._of(connection)
        length = backup.begins[-1] + len(backup.snapshot[-1]) if backup.snapshot else 0
        if not 0 <= offset < length:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"byte {offset} is not in the {length} bytes of the snapshot"
            )
        self._renew()
        body, left = Pieces(), SLICE_BYTES
        first = bisect_right(backup.begins, offset) - 1
        for begin, piece in zip(backup.begins[first:], backup.snapshot[first:], strict=True):
            part = memoryview(piece)[max(0, offset - begin) :][:left]
            body.write(part)
            left -= len(part)
            if not left:
                break
        reply(connection, command, ResponseCode.SUCCESS, body=body)

    def _of(self, connection: Connection) -> _Backup:
        backup = self._backup
        if backup is None or backup.connection is not connection:
            raise RequestError(ResponseCode.ILLEGAL_OPERATION, "no backup is under way on this connection")
        if backup.epoch != self._log.epoch:
            self._end()
            raise RequestError(
                ResponseCode.ILLEGAL_OPERATION,
                f"the log of {self._names.id} began anew, from the leader's",
            )
        return backup

    def _renew(self) -> None:
        self._lease.due_ns = self._time.now_ns + self._lease_ns

    def _disconnected(self, connection: Connection) -> None:
        if self._backup is not None and self._backup.connection is connection:
            self._end()

    def _end(self) -> None:
        self._backup = None
        self._lease.due_ns = NEVER
