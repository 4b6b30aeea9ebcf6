"""Reading a queue for a pull: from the units of the ConsumeQueue to slices of the log's mapping.

Per message there is one unit to look at and one slice to make.
"""

from typing import Final

from broker.node.ports import State
from broker.offsets.resets import OffsetResets
from broker.reading.subscriptions import SQL_WORK_MAX, Filter, SqlFilter
from broker.remoting.codes import ResponseCode
from broker.remoting.headers import PullMessageHeader
from log.entries.entry_reads import check_record
from log.errors import DamagedEntryError, OutOfRangeError
from log.formats.record import is_message_at, peek
from log.queues.consume_queue import NO_RECORD_BYTES, ConsumeQueue

COUNT_MAX: Final = 1024
"""Messages of one response."""
BYTES_MAX_REQUESTED: Final = 4 * 1024 * 1024

RESET: Final = "OFFSET_RESET"
"""The status where an administrator's order sends the consumer group elsewhere."""


class PullResult:
    """The result of reading a queue: response code, status name, offset to go on at, and the records.

    Records are there if and only if the code is SUCCESS.
    """

    __slots__ = (
        "code",
        "cold",
        "is_damaged",
        "max_offset",
        "min_offset",
        "next_offset",
        "position",
        "queue",
        "records",
        "size",
        "status",
    )

    def __init__(self, code: int, status: str, next_offset: int, queue: ConsumeQueue | None) -> None:
        self.queue = queue
        self.code = code
        self.status = status
        self.next_offset = next_offset
        self.min_offset = 0 if queue is None else queue.min_offset
        self.max_offset = 0 if queue is None else queue.max_offset
        self.records: list[memoryview] = []
        self.cold: list[tuple[int, int, int]] = []
        """The records that may have come from the disk since they were checked (`EntryLog.checked_position`), or whose
        units may, each as number, physical offset, and offset in the queue. They are checked before they are sent
        (`whole_part`)."""
        self.is_damaged = False
        """The first message is damaged, or its unit: there is nothing to say of the queue."""
        self.position = 0
        """The position of the first record in the log."""
        self.size = 0
        """Bytes of all records."""


class QueueReads:
    """Reads queues as far as messages are committed and dispatched on this node."""

    def __init__(self, state: State, resets: OffsetResets) -> None:
        self._state = state
        self._bytes_max = state.limits.pull_bytes_max
        self._resets = resets

    def read(self, header: PullMessageHeader, wanted: Filter) -> PullResult:
        """Reads from the offset that a pull names, or says why there is nothing at it.

        Codes and statuses are those of RocketMQ's `DefaultMessageStore.getMessage`.
        """
        queue = self._state.store.queues.get(header.topic, header.queue_id)
        offset = header.queue_offset
        # Before all else: an order stands wherever the consumer is.
        reset = self._resets.target(header.consumer_group, header.topic, header.queue_id)
        if reset is not None:
            return PullResult(ResponseCode.PULL_OFFSET_MOVED, RESET, reset, queue)
        if queue is None:
            # At 0 a consumer may wait for the first message; elsewhere it is sent to the beginning
            # (`PullMessageProcessor`).
            code = ResponseCode.PULL_NOT_FOUND if offset == 0 else ResponseCode.PULL_OFFSET_MOVED
            return PullResult(code, "NO_MATCHED_LOGIC_QUEUE", 0, None)
        end = queue.max_offset
        if end == 0:
            code = ResponseCode.PULL_NOT_FOUND if offset == 0 else ResponseCode.PULL_OFFSET_MOVED
            return PullResult(code, "NO_MESSAGE_IN_QUEUE", 0, queue)
        if offset < queue.min_offset:
            return PullResult(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", queue.min_offset, queue)
        if offset == end:
            return PullResult(ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", offset, queue)
        if offset > end:
            return PullResult(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", end, queue)
        return self._scan(queue, header, wanted)

    def _scan(self, queue: ConsumeQueue, header: PullMessageHeader, wanted: Filter) -> PullResult:
        # How much one response takes and looks at: the first message comes whatever its size.
        count = max(1, min(header.max_message_count, COUNT_MAX))
        bytes_max = self._bytes_max
        if header.max_message_bytes is not None and header.max_message_bytes > 0:
            bytes_max = min(header.max_message_bytes, BYTES_MAX_REQUESTED)
        # A filter that little passes must not keep the node's turn: the consumer is told to go on behind what was
        # looked at, as by `DefaultMessageStore.getMessage`.
        scanned = max(self._state.limits.scanned_units, count)
        tags, sql = (None, wanted) if isinstance(wanted, SqlFilter) else (wanted, None)
        work_left = SQL_WORK_MAX

        log = self._state.store.log
        bytes_at, checked, checked_offset = log.bytes_at, log.checked_position, queue.last_file_begin
        result = PullResult(ResponseCode.SUCCESS, "FOUND", header.queue_offset, queue)
        records = result.records
        offset = header.queue_offset
        end = min(result.max_offset, offset + scanned)
        size = 0
        removed = damaged = False
        while offset < end and len(records) < count:
            # Each pass gives the units of one file of the queue.
            for physical_offset, length, tags_code in queue.units(offset, end - offset):
                if tags is not None and tags_code not in tags:
                    offset += 1
                    continue
                # To move the end up here leaves both loops.
                if records and size + length > bytes_max:
                    end = offset
                    break
                try:
                    record = bytes_at(physical_offset, length)
                    # A condition is asked about bytes that are right; what is only passed on is checked when it is in
                    # memory (`whole_part`).
                    if sql is not None:
                        if work_left <= 0:
                            end = offset
                            break
                        if physical_offset < checked or offset < checked_offset:
                            check_record(log, physical_offset)
                        properties = _properties(record)
                        work_left -= sql.work(len(properties))
                        if not sql.matches(properties):
                            offset += 1
                            continue
                    if physical_offset < checked or offset < checked_offset:
                        result.cold.append((len(records), physical_offset, offset))
                    records.append(record)
                    if len(records) == 1:
                        result.position = physical_offset
                except OutOfRangeError:
                    unit = physical_offset, length, tags_code
                    # What retention has deleted meanwhile is passed over; any other unit that leads nowhere is damaged.
                    if length != NO_RECORD_BYTES and not self._state.store.is_gone(queue, unit):
                        log.damage.doubt_units()
                        damaged = True
                        end = offset
                        break
                    removed = True
                    offset += 1
                    continue
                except DamagedEntryError:
                    damaged = True
                    end = offset
                    break
                size += length
                offset += 1
                if len(records) == count:
                    break
        if offset == header.queue_offset:
            assert damaged, "a consumer that is told to go on gets further"
            result.is_damaged = True
            result.code, result.status = ResponseCode.PULL_RETRY_IMMEDIATELY, "DAMAGED"
            return result
        result.size = size
        result.next_offset = offset
        if not records:
            # The consumer goes on behind what it does not want, at once: more may be there.
            result.code = ResponseCode.PULL_RETRY_IMMEDIATELY
            result.status = "MESSAGE_WAS_REMOVING" if removed else "NO_MATCHED_MESSAGE"
        return result


def whole_part(state: State, header: PullMessageHeader, result: PullResult) -> bool:
    """Leaves in a result what comes before the first damaged message or unit; returns False if nothing does.

    To be called when the bytes are in memory. What is damaged is noted in the log, and is put right.
    """
    log = state.store.log
    for number, physical_offset, offset in result.cold:
        record = result.records[number]
        try:
            is_right = check_record(log, physical_offset) == len(record) and is_message_at(
                record, header.topic, header.queue_id, offset
            )
            if not is_right:
                log.damage.doubt_units()  # the unit leads to another message
        except (DamagedEntryError, OutOfRangeError):  # damaged, or deleted since the pull was read
            is_right = False
        if not is_right:
            result.records = result.records[:number]
            result.size = sum(map(len, result.records))
            result.next_offset = offset
            return number > 0
    return True


def _properties(record: memoryview) -> bytes:
    """The properties of a record that the log holds."""
    head = peek(record)
    return bytes(record[head.properties_begin : head.properties_end])
