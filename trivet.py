"""Trivet's public face: ``import trivet`` gives the client, ``python -m trivet`` the command."""

if __name__ == "__main__":  # first, so that the command does not wait for the client to be imported
    from broker.cli import main

    main()

from broker.client.admin import AdminClient, BrokerStatus, QueueStatus
from broker.client.consumer import Consumer
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
    MessageRejected,
    NameServerUnavailable,
    NoRoute,
    NotDelivered,
    ReplyTimeout,
    SendOutcomeUnknown,
    TransactionUndecided,
    UsageError,
)
from broker.client.intake import FetchLimits
from broker.client.listening import Handled, listen
from broker.client.message import Message, MessageQueue, MessageView, SendResult, SendStatus
from broker.client.producer import Producer
from broker.client.pull_consumer import PullConsumer
from broker.client.subscription import SqlFilter
from broker.client.transactions import Decision, Transaction, TransactionalProducer

__all__ = [
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
    "DamagedMessage",
    "Decision",
    "FetchLimits",
    "Handled",
    "Message",
    "MessageQueue",
    "MessageRejected",
    "MessageView",
    "NameServerUnavailable",
    "NoRoute",
    "NotDelivered",
    "Producer",
    "PullConsumer",
    "QueueStatus",
    "ReplyTimeout",
    "SendOutcomeUnknown",
    "SendResult",
    "SendStatus",
    "SqlFilter",
    "Transaction",
    "TransactionUndecided",
    "TransactionalProducer",
    "UsageError",
    "listen",
]
