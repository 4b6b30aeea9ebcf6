"""Checks that sends and replies have in common: when, to which topic and queue, and how long."""

from broker.remoting.bodies import TopicConfig
from broker.remoting.codes import ResponseCode
from broker.requests.errors import RequestError
from broker.settings.tables import BrokerConfig
from broker.state.topic_rules import FORBIDDEN_TO_SEND
from raft.state import RandomSource


def check_time(config: BrokerConfig, wall_ms: int) -> None:
    """Raises `RequestError` for a send that the settings do not let in yet."""
    accept_from_ms = config.broker.accept_sends_from_ms
    if wall_ms < accept_from_ms:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the broker takes no sends until {accept_from_ms} (startAcceptSendRequestTimeStamp), it is {wall_ms}",
        )


def check_topic(topic: str) -> None:
    """Raises `RequestError` for a topic that is the broker's own."""
    if topic in FORBIDDEN_TO_SEND:
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"the topic [{topic}] is the broker's own: producers may not send to it",
        )


def chosen_queue(topic: str, queue_id: int, config: TopicConfig, random: RandomSource) -> int:
    """The queue that a message goes to: the one that its producer names, or any where that is negative.

    Raises `RequestError` for a queue that the topic does not have. One that is only read from still takes messages, of
    producers with an older route.
    """
    if queue_id < 0:
        if config.write_queue_nums <= 0:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"topic {topic} has no queue to write to")
        return random.randrange(0, config.write_queue_nums)
    if queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"request queueId[{queue_id}] is illegal, topic {topic} has {config.write_queue_nums} write queues "
            f"and {config.read_queue_nums} read queues",
        )
    return queue_id


def check_body(size: int, config: BrokerConfig) -> None:
    """Raises `RequestError` for a body of more bytes than the settings allow."""
    if size > config.storage.max_message_bytes:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message body has {size} bytes, at most {config.storage.max_message_bytes} are allowed",
        )
