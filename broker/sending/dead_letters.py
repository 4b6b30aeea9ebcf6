"""What a dead letter tells of where it comes from (storage.md 1.3).

A dead letter lies in its group's %DLQ% topic under an id of its own. Whoever looks into it later finds the topic that
it was sent to and the id that its producer was given in two properties of 5.x, whatever its retries have changed.
"""

from typing import Final

from log.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC, get_property, with_property

_ORIGINS: Final = ((b"DLQ_ORIGIN_TOPIC", RETRY_TOPIC), (b"DLQ_ORIGIN_MESSAGE_ID", ORIGIN_MESSAGE_ID))


def dead_letter_properties(properties: bytes, bytes_max: int) -> bytes:
    """The properties with the origin that the retries have noted; without it where that would exceed `bytes_max`.

    That a dead letter is stored matters more than what it tells.
    """
    told = properties
    for name, noted_as in _ORIGINS:
        noted = get_property(properties, noted_as)
        if noted is not None:
            told = with_property(told, name, noted)
    return told if len(told) <= bytes_max else properties
