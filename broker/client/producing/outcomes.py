"""The outcome that a response to a send tells: stored, and where; not stored; or that nobody knows."""

from itertools import count

from broker.client.message import MessageQueue, SendResult, SendStatus
from broker.client.producing.outgoing import Outgoing
from broker.client.transport.core import BUSY_CODES
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import RemotingError
from broker.remoting.headers import SendMessageResponseHeader
from broker.trace import TraceWriter

STORED = {int(status): status for status in SendStatus}
# After these codes the message is certainly not stored and another attempt may succeed: TOPIC_NOT_EXIST and
# NO_PERMISSION because another member of a failing-over cluster may know better, NO_BUYER_ID and NOT_IN_CURRENT_UNIT
# as in RocketMQ's DefaultMQProducer.retryResponseCodes.
NOT_STORED_RETRY = BUSY_CODES | {
    ResponseCode.NO_PERMISSION,
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.NO_BUYER_ID,
    ResponseCode.NOT_IN_CURRENT_UNIT,
    ResponseCode.ONCE_UNDECIDABLE,
}
ILLEGAL = frozenset((ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER))


def read_results(response: RemotingCommand, target: MessageQueue, unique_keys: list[str]) -> list[SendResult]:
    """Return where the messages are that a response with a code of `STORED` is about. Raises RemotingError."""
    stored = response.decode_fields(SendMessageResponseHeader)
    if stored.queue_id != target.queue_id:
        target = target._replace(queue_id=stored.queue_id)
    offset, message_id, status = stored.queue_offset, stored.message_id, STORED[response.code]
    if len(unique_keys) == 1:
        return [SendResult(unique_keys[0], message_id, target, offset, status, stored.transaction_id)]
    ids = message_id.split(",")
    if len(ids) != len(unique_keys):
        ids = [message_id] * len(unique_keys)
    return [
        SendResult(unique_key, one_id, target, queue_offset, status)
        for unique_key, one_id, queue_offset in zip(unique_keys, ids, count(offset))
    ]


def record_response(
    trace: TraceWriter, now_ns: int, operation: int, outgoing: Outgoing, response: RemotingCommand
) -> None:
    """Put into the trace what a response says of its attempt: stored at an offset, not stored, or unknown."""
    if response.code == ResponseCode.SUCCESS:
        try:
            stored = response.decode_fields(SendMessageResponseHeader)
        except RemotingError as error:
            trace.info(now_ns, operation, str(error))
        else:
            if stored.once is None and outgoing.waits:
                trace.info(now_ns, operation, "stored, and delivered later")
            elif stored.once is None:
                trace.ok_append(now_ns, operation, stored.queue_offset)
            else:  # what stored the message was another attempt
                trace.fail(now_ns, operation, "stored by an earlier attempt")
    elif response.code in NOT_STORED_RETRY or response.code in ILLEGAL:
        trace.fail(now_ns, operation, f"code {response.code}")
    else:
        trace.info(now_ns, operation, f"code {response.code}: {response.remark}")
