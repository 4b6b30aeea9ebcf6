"""Dead letters: when a message becomes one, and how it tells where it comes from.

A dead letter lies in its consumer group's %DLQ% topic under an id of its own. Two properties of 5.x tell the topic that
it was sent to and the id that its producer was given, whatever its retries have changed.
"""

from typing import Final

from broker.remoting.bodies import SubscriptionGroupConfig
from broker.remoting.codes import Version
from log.formats.properties import (
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    get_property,
    with_property,
)

_ORIGINS: Final = ((DLQ_ORIGIN_TOPIC, RETRY_TOPIC), (DLQ_ORIGIN_MESSAGE_ID, ORIGIN_MESSAGE_ID))


def becomes_dead_letter(
    retried: int, group: SubscriptionGroupConfig, client_version: int, wanted_max: int | None
) -> bool:
    """Tells whether a message that was retried so often, and failed again, becomes a dead letter.

    The consumer group says how many retries there are. Clients from 3.4.9 on may say so themselves, with `wanted_max`
    (`AbstractSendMessageProcessor`).
    """
    if wanted_max is None or wanted_max < 0 or client_version < Version.V3_4_9:
        return retried >= group.retry_max_times
    return retried >= wanted_max


def dead_letter_properties(properties: bytes, bytes_max: int) -> bytes:
    """The properties with the origin that the retries have noted; without it where they would exceed `bytes_max`.

    It matters more that a dead letter is stored than that it tells its origin.
    """
    told = properties
    for name, noted_as in _ORIGINS:
        noted = get_property(properties, noted_as)
        if noted is not None:
            told = with_property(told, name, noted)
    return told if len(told) <= bytes_max else properties
