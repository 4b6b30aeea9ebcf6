"""Room in a message's properties for what brokers and consumers add to them later.

A record holds 32,767 bytes of properties. A message that was taken with so many could be read, but not sent back: a
retry has to say where it comes from (RETRY_TOPIC) and where it goes when its delay is over (REAL_TOPIC, REAL_QID), and
its consumer would try for ever. So a producer's own properties may have 31 KiB, and what is added fits into the rest,
however long the names of topics and consumer groups are:

    always          UNIQ_KEY 67
    for a time      TIMER_OUT_MS 27
    transactions    PGROUP up to 189 (else the half message is refused), __transactionId__ 75, its queue offset 47
    retries         RETRY_TOPIC 268, DELAY 9, REAL_TOPIC and REAL_QID 287

Beyond that everything is told that can be done without (`_OPTIONAL`): it is left out where it does not fit.
"""

from typing import Final

from log.formats.properties import (
    CLUSTER,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    MESSAGE_REGION,
    ORIGIN_MESSAGE_ID,
    TRACE_ON,
    without_properties,
)
from log.formats.record import MAX_PROPERTIES_BYTES

SENT_BYTES_MAX: Final = 31 * 1024
"""Properties that a producer may give a message."""

RETRY_BYTES: Final = 268 + 9 + 287
"""The bytes that a retry adds at most and cannot do without, with names of 255 bytes."""

_ADDED_BYTES: Final = 67 + 27 + (189 + 75 + 47) + RETRY_BYTES
"""The bytes of all that is in the table above."""
assert SENT_BYTES_MAX + _ADDED_BYTES <= MAX_PROPERTIES_BYTES, (
    "a message would be taken that cannot be sent back"
)

_OPTIONAL: Final = (
    CLUSTER,
    TRACE_ON,
    MESSAGE_REGION,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    ORIGIN_MESSAGE_ID,
)
"""Properties by which brokers only inform; the first is missed least."""


def fitted(properties: bytes, bytes_max: int = MAX_PROPERTIES_BYTES) -> bytes:
    """The properties without as much of what they need not tell as does not fit; they may be too long all the same."""
    for name in _OPTIONAL:
        if len(properties) <= bytes_max:
            break
        properties = without_properties(properties, name)
    return properties
