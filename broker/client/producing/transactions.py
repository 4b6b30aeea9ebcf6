"""Transactions: a message that is delivered if, and only if, something else was done as well.

    async def check(message: MessageView) -> Decision:
        return Decision.COMMIT if await orders.exist(message.keys[0]) else Decision.ROLLBACK

    async with TransactionalProducer("127.0.0.1:9876", group="orders", check=check) as producer:
        async with producer.transaction(Message("paid", body, keys=[number])):
            await orders.store(number)

The message is stored first, where no consumer sees it. When the block is left it is committed; when the block raises it
is rolled back. Between the two this process may die, or the broker's leader, or the decision may get lost: then the
broker asks some producer of the group what became of the transaction, and `check` answers by looking at what was done.
So `check` must be able to tell from the message alone, on any process of the group, also hours later.

A decision may be repeated freely, and is, until a broker has confirmed it or its time limit is over; then it raises
`TransactionUndecided`, and the broker will ask. A block that is cancelled decides nothing, since it may have done its
work or not: the broker asks, too.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final

import msgspec
import structlog

from broker.client.errors import ClientError, MessageRejected, TransactionUndecided, UsageError
from broker.client.message import Message, MessageQueue, MessageView, SendResult
from broker.client.producing.one_send import OneSend
from broker.client.producing.producer import SEND_TIMEOUT_S, Producer
from broker.client.producing.sender import QueueChoice
from broker.client.transport.connection import Connection
from broker.client.transport.credentials import Credentials
from broker.client.transport.patient_calls import PatientCalls
from broker.client.transport.runtime import Runtime
from broker.remoting.codes import RequestCode
from broker.remoting.codes import TransactionOutcome as Decision
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import RemotingError
from broker.remoting.headers import CheckTransactionStateHeader, EndTransactionHeader
from log.errors import RecordError
from log.message_id import parse_offset_message_id
from log.record import SYS_FLAG_PREPARED

__all__ = ["Decision", "Transaction", "TransactionalProducer"]

log = structlog.get_logger("trivet.client")

Check = Callable[[MessageView], Awaitable[Decision]]
"""Says what became of the transaction of a message; `Decision.UNKNOWN` to be asked again later."""

CHECKS_MAX: Final = 64
"""Questions answered at the same time; further ones are left alone, and asked again."""


class Transaction:
    """A message that waits for its decision. Exactly one of `commit` and `rollback` decides; either may be repeated."""

    def __init__(self, producer: TransactionalProducer, half: SendResult) -> None:
        self._producer = producer
        self.half = half
        """Where the half message is; `queue` is where the message will be."""
        self.decision = Decision.UNKNOWN
        """What was asked for so far."""

    @property
    def message_id(self) -> str:
        """The message's unique key, the same before and after the commit."""
        return self.half.message_id

    async def commit(self) -> None:
        """Have the message delivered.

        Raises TransactionUndecided (the broker will ask `check`), BrokerError with code 4 if the broker holds it for
        decided otherwise, with another code if it cannot be committed now (its topic is gone, for example).
        """
        await self._decide(Decision.COMMIT)

    async def rollback(self) -> None:
        """Have the message never delivered. Raises as `commit`."""
        await self._decide(Decision.ROLLBACK)

    async def _decide(self, decision: Decision) -> None:
        if self.decision not in (Decision.UNKNOWN, decision):
            raise UsageError(f"the transaction is decided: {self.decision.name.lower()}")
        self.decision = decision
        await self._producer.decide(self.half, decision)


class TransactionalProducer:
    """Sends messages in transactions; see the head of this module. ``producer`` is for messages without one.

    ``check_after_s`` keeps the broker from asking about a transaction before it is so old (whole seconds); without it
    the broker's `transactionTimeOut` holds. A decision that comes later than that is refused by the broker, which asks
    instead. ``decision_timeout_s`` bounds a commit or rollback with all its repetitions, the other options are those of
    `Producer`. Half messages are no appends to their topic, so nothing is traced.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        group: str,
        check: Check,
        check_after_s: int | None = None,
        send_timeout_s: float = SEND_TIMEOUT_S,
        attempt_timeout_s: float | None = None,
        decision_timeout_s: float = SEND_TIMEOUT_S,
        compress_above: int | None = None,
        runtime: Runtime | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        if check_after_s is not None and check_after_s < 1:
            raise UsageError(f"check_after_s is {check_after_s}: whole seconds, at least 1")
        self.producer = Producer(
            name_servers,
            group=group,
            send_timeout_s=send_timeout_s,
            attempt_timeout_s=attempt_timeout_s,
            compress_above=compress_above,
            runtime=runtime,
            tls=tls,
            credentials=credentials,
        )
        self.group = group
        self._check = check
        self._check_after_s = check_after_s
        self._core = self.producer.core
        self._core.on_request(RequestCode.CHECK_TRANSACTION_STATE, self._asked)
        self._calls = PatientCalls(self._core, decision_timeout_s, decision_timeout_s / 3)
        self._checking = 0

    async def __aenter__(self) -> TransactionalProducer:
        await self.producer.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self.producer.__aexit__(kind, error, traceback)

    @asynccontextmanager
    async def transaction(
        self, message: Message, *, queue: QueueChoice = None, timeout_s: float | None = None
    ) -> AsyncIterator[Transaction]:
        """A block at whose end the message is committed, unless the block has decided itself.

        An exception out of the block rolls it back; one of that rollback is left to the broker, who will ask. Raises as
        `begin`, and as `Transaction.commit`.
        """
        transaction = await self.begin(message, queue=queue, timeout_s=timeout_s)
        try:
            yield transaction
        except Exception:
            if transaction.decision is Decision.UNKNOWN:
                try:
                    await transaction.rollback()
                except ClientError as error:
                    log.warning(
                        "rollback left to the broker", message=transaction.message_id, reason=str(error)
                    )
            raise
        if transaction.decision is Decision.UNKNOWN:
            await transaction.commit()

    async def begin(
        self, message: Message, *, queue: QueueChoice = None, timeout_s: float | None = None
    ) -> Transaction:
        """Store the message where nobody sees it. Raises as `Producer.send`.

        After an error nothing will be delivered, unless ``check`` commits what the broker may have stored after all.
        """
        if message.is_delivered_later:
            raise MessageRejected("a message in a transaction cannot be delayed")
        outgoing = self.producer.preparer.message(message)
        properties = f"{outgoing.properties}TRAN_MSG\x01true\x02PGROUP\x01{self.group}\x02"
        if self._check_after_s is not None:
            properties += f"CHECK_IMMUNITY_TIME_IN_SECONDS\x01{self._check_after_s}\x02"
        half = msgspec.structs.replace(
            outgoing, properties=properties, sys_flag=outgoing.sys_flag | SYS_FLAG_PREPARED, waits=True
        )
        (stored,) = await OneSend(self.producer.sender, half, message, queue, timeout_s).run()
        return Transaction(self, stored)

    async def decide(self, half: SendResult, decision: Decision) -> None:
        """What `Transaction.commit` and `rollback` do."""
        self._core.check_open()
        _, commit_log_offset = parse_offset_message_id(half.offset_message_id)
        header = EndTransactionHeader(
            producer_group=self.group,
            half_queue_offset=half.queue_offset,
            commit_log_offset=commit_log_offset,
            outcome=int(decision),
            message_id=half.message_id,
            from_transaction_check=False,
            transaction_id=half.transaction_id,
        )
        try:
            await self._calls.ask(half.queue, RequestCode.END_TRANSACTION, header)
        except ClientError as error:
            if error.retry_may_help:
                raise TransactionUndecided(half.message_id, error) from error
            raise

    # ------------------------------------------------------------------ questions

    def _asked(self, connection: Connection, command: RemotingCommand) -> None:
        if self._checking >= CHECKS_MAX:
            return
        try:
            header = command.decode_fields(CheckTransactionStateHeader)
            message = MessageView(MessageQueue("", header.broker_name or "", 0), command.body)
            head = message.head
            topic = str(bytes(command.body[head.topic_begin : head.topic_end]), "utf-8", "replace")
        except (RemotingError, RecordError) as error:
            log.warning("unreadable question about a transaction", reason=str(error))
            return
        message.queue = MessageQueue(topic, header.broker_name or "", head.queue_id)
        self._checking += 1
        self._core.tasks.start_soon(self._answer, connection, header, message)

    async def _answer(
        self, connection: Connection, header: CheckTransactionStateHeader, message: MessageView
    ) -> None:
        """To the one who asks, once: an answer that gets lost is asked for again."""
        try:
            decision = await self._check(message)
            if decision is Decision.UNKNOWN:
                return
            answer = EndTransactionHeader(
                producer_group=self.group,
                half_queue_offset=header.half_queue_offset,
                commit_log_offset=header.commit_log_offset,
                outcome=int(decision),
                message_id=header.message_id or "",
                from_transaction_check=True,
                transaction_id=header.transaction_id,
            )
            await connection.call(RequestCode.END_TRANSACTION, answer)
        except ClientError as error:
            log.info("answer about a transaction lost", message=header.message_id, reason=str(error))
        except Exception:
            # The application's: it must not end the producer, and the broker asks again.
            log.exception("check failed", message=header.message_id)
        finally:
            self._checking -= 1
