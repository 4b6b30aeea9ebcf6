"""Pieces that sends, batches and replies share. Callers compare before they ask for a refusal, which costs no call."""

from broker.remoting.bodies import TopicConfig
from broker.remoting.codes import ResponseCode
from broker.remoting.headers import SendHeader
from broker.replica.proposals import NewMessage
from broker.requests.connection import Connection
from broker.requests.errors import RequestError
from broker.state.topic_rules import queues_of
from log.formats.record import Buffer
from raft.state import RandomSource


def sent_message(
    header: SendHeader, connection: Connection, queue_id: int, body: Buffer, properties: bytes
) -> NewMessage:
    """The message that a request has brought, for a queue of its topic."""
    return NewMessage(
        header.topic,
        queue_id,
        header.flag,
        header.sys_flag,
        header.born_timestamp,
        connection.host,
        header.reconsume_times or 0,
        body,
        properties,
    )


def too_early(accept_from_ms: int, group_ms: int) -> RequestError:
    """The refusal of a send that the settings do not let in yet."""
    return RequestError(
        ResponseCode.SYSTEM_ERROR,
        f"the broker takes no sends until {accept_from_ms} (startAcceptSendRequestTimeStamp), it is {group_ms}",
    )


def forbidden_topic(topic: str) -> RequestError:
    """The refusal of a send to one of the broker's own topics."""
    return RequestError(
        ResponseCode.NO_PERMISSION,
        f"the topic [{topic}] is the broker's own: producers may not send to it",
    )


def too_long(size: int, size_max: int) -> RequestError:
    """The refusal of a body of too many bytes."""
    return RequestError(
        ResponseCode.MESSAGE_ILLEGAL,
        f"the message body has {size} bytes, at most {size_max} are allowed",
    )


def choose_queue(topic: str, queue_id: int, config: TopicConfig, random: RandomSource) -> int:
    """Chooses the queue for a message whose producer names none that the topic's messages are written to.

    A negative number means any queue that is written to. A queue that is only read from is taken, too, as of a producer
    with an older route. Raises `RequestError` for a queue that the topic does not have.
    """
    if queue_id < 0:
        if config.write_queue_nums <= 0:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"topic {topic} has no queue to write to")
        return random.randrange(0, config.write_queue_nums)
    if queue_id >= queues_of(config):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"request queueId[{queue_id}] is illegal, topic {topic} has {config.write_queue_nums} write queues "
            f"and {config.read_queue_nums} read queues",
        )
    return queue_id
