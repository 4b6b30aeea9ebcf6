"""A backup read from a running group by an administrator's client: from which node, how fast, and what if one fails.

A follower is read where there is one: the leader has enough to do. When a node fails, the copy goes on at another one.
"""

from collections.abc import Callable
from typing import Final

import trio

from broker.backups.copying import BackupCopy
from broker.backups.directory import BackupWriter
from broker.backups.errors import BackupError
from broker.client.admin import AdminClient
from broker.client.errors import BrokerBusy, BrokerError, ClientError, ConnectionFailed
from broker.client.transport.core import broker_error
from broker.remoting.codes import ResponseCode

_BUSY_S: Final = 10.0
"""Seconds for which a node that cannot begin yet is asked again."""
_ASK_AGAIN_S: Final = 0.1


async def read_backup(
    admin: AdminClient,
    directory: BackupWriter,
    *,
    group: str | None,
    source: str | None,
    bytes_per_s: float | None,
    begun: Callable[[BackupCopy], None],
) -> BackupCopy:
    """Reads all that the group's leader has committed by now, and returns the copy, which is complete.

    `source` is the address of the node to read, None for any; `begun` is told of the copy as soon as there is one.
    Raises BackupError if no node could be read to the end, ClientError if no leader is found, OSError.
    """
    leader = await admin.members(group)
    copy = BackupCopy(directory, leader.group, leader.commit_index)
    begun(copy)
    if source is not None:
        addresses = [source]
    else:
        leading, *others = await admin.addresses(leader.group)
        addresses = [*others, leading]  # which has enough to do
    failures: list[str] = []
    for address in addresses:
        copy.restart()
        try:
            await _read_from(admin, address, copy, bytes_per_s)
        except (ConnectionFailed, BrokerError) as error:
            failures.append(str(error))
        else:
            return copy
    raise BackupError(
        f"{'; '.join(failures)}. What was copied, up to entry {directory.last_index}, is kept: run the command again "
        "to go on"
        if not directory.is_empty
        else "; ".join(failures)
    )


async def _read_from(admin: AdminClient, address: str, copy: BackupCopy, bytes_per_s: float | None) -> None:
    """Reads from one node until the copy is complete. Raises ConnectionFailed, BrokerError, BackupError, OSError."""
    started_s, begun_bytes = trio.current_time(), copy.read_bytes
    while (request := copy.next_request()) is not None:
        response = await admin.call(address, *request)
        if response.code != ResponseCode.SUCCESS:
            failure: ClientError = broker_error(response, address)
            waited_s = trio.current_time() - started_s
            if isinstance(failure, BrokerBusy) and copy.description is None and waited_s < _BUSY_S:
                await trio.sleep(_ASK_AGAIN_S)
                continue
            raise failure
        copy.answered(response)
        if bytes_per_s is not None:
            await trio.sleep_until(started_s + (copy.read_bytes - begun_bytes) / bytes_per_s)
