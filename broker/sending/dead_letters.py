"""The origin of a dead letter, told in its properties.

A dead letter lies in its consumer group's %DLQ% topic under an id of its own. Two properties of 5.x tell the topic that
it was sent to and the id that its producer was given, whatever its retries have changed.
"""

from typing import Final

from log.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC, get_property, with_property

_ORIGINS: Final = ((b"DLQ_ORIGIN_TOPIC", RETRY_TOPIC), (b"DLQ_ORIGIN_MESSAGE_ID", ORIGIN_MESSAGE_ID))


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
