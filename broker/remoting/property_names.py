"""The names of properties as text, for whoever has a message's properties by name (RocketMQ's `MessageConst`).

`log.formats.properties` has those that a broker looks up in a record's bytes.
"""

from typing import Final

from log.formats import properties

TAGS: Final = properties.TAGS.decode()
KEYS: Final = properties.KEYS.decode()
UNIQ_KEY: Final = properties.UNIQ_KEY.decode()

DELAY: Final = properties.DELAY.decode()
TIMER_DELAY_SEC: Final = properties.TIMER_DELAY_SEC.decode()
TIMER_DELAY_MS: Final = properties.TIMER_DELAY_MS.decode()
TIMER_DELIVER_MS: Final = properties.TIMER_DELIVER_MS.decode()
TIMER_OUT_MS: Final = properties.TIMER_OUT_MS.decode()

REAL_TOPIC: Final = properties.REAL_TOPIC.decode()
REAL_QUEUE_ID: Final = properties.REAL_QUEUE_ID.decode()

HALF_MESSAGE: Final = properties.HALF_MESSAGE.decode()
PRODUCER_GROUP: Final = properties.PRODUCER_GROUP.decode()

RETRY_TOPIC: Final = properties.RETRY_TOPIC.decode()
ORIGIN_MESSAGE_ID: Final = properties.ORIGIN_MESSAGE_ID.decode()
DLQ_ORIGIN_TOPIC: Final = properties.DLQ_ORIGIN_TOPIC.decode()
DLQ_ORIGIN_MESSAGE_ID: Final = properties.DLQ_ORIGIN_MESSAGE_ID.decode()

CLUSTER: Final = properties.CLUSTER.decode()
MESSAGE_REGION: Final = properties.MESSAGE_REGION.decode()
TRACE_ON: Final = properties.TRACE_ON.decode()
WAIT: Final = properties.WAIT.decode()

CORRELATION_ID: Final = "CORRELATION_ID"
"""The request that a reply is for, as its requester knows it."""
REPLY_TO_CLIENT: Final = properties.REPLY_TO_CLIENT.decode()
TIME_TO_LIVE: Final = "TTL"
"""The time for which a requester waits for the reply, in ms."""
MESSAGE_TYPE: Final = "MSG_TYPE"
