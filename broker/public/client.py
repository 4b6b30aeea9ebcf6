"""The client as programs import it: `trivet` hands these names on.

This module imports the whole client, so `trivet` imports it with the first name that somebody asks for.
"""

from broker.client.admin import AdminClient, BrokerStatus, QueueStatus
from broker.client.consuming.consumer import Consumer
from broker.client.consuming.intake import FetchLimits
from broker.client.consuming.listening import Handled, listen
from broker.client.consuming.offset_file import OffsetFile
from broker.client.consuming.order_locks import LockTimes
from broker.client.consuming.ordered_listening import listen_orderly
from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.consuming.strategies import (
    allocate_averagely,
    allocate_by_circle,
    allocation_by_machine_room,
    allocation_nearby,
    consistent_hash_allocation,
    fixed_allocation,
)
from broker.client.consuming.subscription import SqlFilter
from broker.client.errors import (
    BrokerBusy,
    BrokerError,
    CallTimeout,
    ClientClosed,
    ClientError,
    ConnectFailed,
    ConnectionFailed,
    ConnectionLost,
    DamagedMessage,
    DamagedOffsets,
    MessageRejected,
    NameServerUnavailable,
    NoGroup,
    NoRoute,
    NotDelivered,
    OffsetsNotStored,
    OutboxFull,
    PortionUndecidable,
    ReplyTimeout,
    SendOutcomeUnknown,
    SendsFailed,
    TransactionUndecided,
    UsageError,
)
from broker.client.message import Message, MessageQueue, MessageView, SendResult, SendStatus
from broker.client.producing.latency import CLASSES_OF_4, LatencyClasses
from broker.client.producing.outbox import Outbox, Sending
from broker.client.producing.portion import Portion
from broker.client.producing.producer import Producer
from broker.client.producing.transactions import Decision, Transaction, TransactionalProducer
from broker.client.transport.credentials import Credentials

__all__ = [
    "CLASSES_OF_4",
    "AdminClient",
    "BrokerBusy",
    "BrokerError",
    "BrokerStatus",
    "CallTimeout",
    "ClientClosed",
    "ClientError",
    "ConnectFailed",
    "ConnectionFailed",
    "ConnectionLost",
    "Consumer",
    "Credentials",
    "DamagedMessage",
    "DamagedOffsets",
    "Decision",
    "FetchLimits",
    "Handled",
    "LatencyClasses",
    "LockTimes",
    "Message",
    "MessageQueue",
    "MessageRejected",
    "MessageView",
    "NameServerUnavailable",
    "NoGroup",
    "NoRoute",
    "NotDelivered",
    "OffsetFile",
    "OffsetsNotStored",
    "Outbox",
    "OutboxFull",
    "Portion",
    "PortionUndecidable",
    "Producer",
    "PullConsumer",
    "QueueStatus",
    "ReplyTimeout",
    "SendOutcomeUnknown",
    "SendResult",
    "SendStatus",
    "Sending",
    "SendsFailed",
    "SqlFilter",
    "Transaction",
    "TransactionUndecided",
    "TransactionalProducer",
    "UsageError",
    "allocate_averagely",
    "allocate_by_circle",
    "allocation_by_machine_room",
    "allocation_nearby",
    "consistent_hash_allocation",
    "fixed_allocation",
    "listen",
    "listen_orderly",
]
