"""Transactions: a message that is delivered if, and only if, something else was done as well.

    async def check(message: MessageView) -> Decision:
        return Decision.COMMIT if await orders.exist(message.keys[0]) else Decision.ROLLBACK

    async with TransactionalProducer("127.0.0.1:9876", group="orders", check=check) as producer:
        async with producer.transaction(Message("paid", body, keys=[number])):
            await orders.store(number)

The message is stored first, where no consumer sees it. When the block is left it is committed; when the block raises it
is rolled back. Between the two this process may die, or the broker's leader, or the decision may get lost: then the
broker asks some member of the producer group what became of the transaction, and `check` answers by looking at what was
done. So `check` must be able to tell from the message alone, on any process of the producer group, also hours later.

A decision may be repeated freely, and is, until a broker has confirmed it or its time limit is over; then it raises
`TransactionUndecided`, and the broker will ask. A block that is cancelled decides nothing, since its work may be done
or not; the broker asks then, too.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from broker.client.checks import check_kind, check_seconds, check_whole
from broker.client.errors import BrokerError, ClientError, MessageRejected, TransactionUndecided, UsageError
from broker.client.message import Message, MessageQueue, MessageView, SendResult
from broker.client.producing.one_send import OneSend
from broker.client.producing.producer import SEND_TIMEOUT_S, SHORTEST_S, Producer
from broker.client.producing.sender import QueueChoice
from broker.client.transport.connection import Connection
from broker.client.transport.core import CoreBlock
from broker.client.transport.credentials import Credentials
from broker.client.transport.patient_calls import PatientCalls
from broker.client.transport.runtime import Runtime
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.codes import TransactionOutcome as Decision
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import RemotingError
from broker.remoting.headers import CheckTransactionStateHeader, EndTransactionHeader
from log.errors import RecordError
from log.formats.message_id import parse_offset_message_id
from log.formats.record import SYS_FLAG_PREPARED

__all__ = ["Decision", "Transaction", "TransactionalProducer"]

log = structlog.get_logger("trivet.client")

Check = Callable[[MessageView], Awaitable[Decision]]
"""Returns what became of the transaction of a message; after `Decision.UNKNOWN` the broker asks again later."""

CHECKS_MAX: Final = 64
"""Number of questions that are answered at the same time; further ones are ignored, and the broker asks again."""


@dataclass(eq=False)
class Transaction:
    """A message that waits for its decision. Exactly one of `commit` and `rollback` decides; either may be repeated."""

    _producer: TransactionalProducer
    half: SendResult
    """The place of the half message; its ``queue`` is the one in which the message will be delivered."""
    decision: Decision = Decision.UNKNOWN
    """The decision that was asked for so far."""

    @property
    def message_id(self) -> str:
        """The message's unique key, the same before and after the commit."""
        return self.half.message_id

    async def commit(self) -> None:
        """Decide that the message is delivered, and wait until a broker has confirmed it.

        Raises TransactionUndecided when none confirms it in time (the broker will ask `check`), UsageError when this
        transaction was rolled back, and BrokerError when the broker refuses: with code 4 if it has another decision,
        with another code if the message cannot be committed now, for example because its topic is gone.
        """
        await self._decide(Decision.COMMIT)

    async def rollback(self) -> None:
        """Decide that the message is never delivered, and wait for that, too. Raises what `commit` raises."""
        await self._decide(Decision.ROLLBACK)

    async def _decide(self, decision: Decision) -> None:
        if self.decision not in (Decision.UNKNOWN, decision):
            raise UsageError(f"the transaction is decided: {self.decision.name.lower()}")
        self.decision = decision
        await self._producer.decide(self.half, decision)


class TransactionalProducer(CoreBlock):
    """Sends messages whose delivery depends on something else that is done; the head of this module has an example.

    - ``check``: is asked what became of a transaction whose decision no broker knows.
    - ``check_after_s``: the broker does not ask before a transaction is so old, in whole seconds; by default its
      setting `transactionTimeOut` holds. The broker refuses a decision that comes later, and asks.
    - ``decision_timeout_s``: bounds a commit or rollback with all its repetitions, in seconds.

    All other options are those of `Producer`. `producer` sends messages without a transaction. Half messages are no
    appends to their topic, so nothing is traced. Raises what the constructor of `Producer` raises.
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
        check_kind(Callable, check=check)
        if check_after_s is not None:
            check_whole(1, check_after_s=check_after_s)
        check_seconds(SHORTEST_S, decision_timeout_s=decision_timeout_s)
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
        self.core = self.producer.core
        self.core.on_request(RequestCode.CHECK_TRANSACTION_STATE, self._asked)
        self._calls = PatientCalls(self.core, decision_timeout_s, decision_timeout_s / 3)
        self._checking = 0

    @asynccontextmanager
    async def transaction(
        self, message: Message, *, queue: QueueChoice = None, timeout_s: float | None = None
    ) -> AsyncIterator[Transaction]:
        """Store the message, and commit it at the end of the block unless the block has decided itself.

        An exception that leaves the block rolls the message back. If that fails it is logged, and the broker will ask.
        Raises what `begin` and `Transaction.commit` raise. ``queue`` and ``timeout_s`` are those of `Producer.send`.
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
        """Store the message where no consumer sees it, and return the transaction to be decided.

        ``queue`` and ``timeout_s`` are those of `Producer.send`. Raises what that raises, and MessageRejected for a
        delayed message. After an error nothing is delivered; except if the message was stored after all, and ``check``
        commits it.
        """
        if message.is_delivered_later:
            raise MessageRejected("a message in a transaction cannot be delayed")
        for name in ("TRAN_MSG", "PGROUP"):
            if name in message.properties:  # it would count in place of the client's own
                raise MessageRejected(f"property {name!r} of a transaction is the client's own")
        outgoing = self.producer.preparer.message(message)
        # By these a broker knows a half message, and whom to ask about it.
        properties = f"{outgoing.properties}TRAN_MSG\x01true\x02PGROUP\x01{self.group}\x02"
        if self._check_after_s is not None:
            properties += f"CHECK_IMMUNITY_TIME_IN_SECONDS\x01{self._check_after_s}\x02"
        half = msgspec.structs.replace(
            outgoing, properties=properties, sys_flag=outgoing.sys_flag | SYS_FLAG_PREPARED, waits=True
        )
        (stored,) = await OneSend(self.producer.sender, half, message, queue, timeout_s).run()
        return Transaction(self, stored)

    async def decide(self, half: SendResult, decision: Decision) -> None:
        """Tell the broker a decision, until it confirms.

        Raises as `Transaction.commit`, and ClientClosed outside the block.
        """
        self.core.check_open()
        try:
            _, commit_log_offset = parse_offset_message_id(half.offset_message_id)
        except RecordError as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, str(error), half.queue.broker_name) from error
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
            # No broker has confirmed it in time, and none has refused it: one of them will ask.
            if error.retry_may_help:
                raise TransactionUndecided(half.message_id, error) from error
            raise

    # Questions -----------------------------------------------------------------------------------------------------

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
        # The record in the body is the half message with the topic and queue that it is for.
        message.queue = MessageQueue(topic, header.broker_name or "", head.queue_id)
        self._checking += 1
        self.core.tasks.start_soon(self._answer, connection, header, message)

    async def _answer(
        self, connection: Connection, header: CheckTransactionStateHeader, message: MessageView
    ) -> None:
        """Ask ``check`` and tell the broker its decision, once: if there is none, or it gets lost, the broker asks
        again."""
        try:
            decision = await self._decided(message)
            if decision is Decision.UNKNOWN:
                return
            decided = EndTransactionHeader(
                producer_group=self.group,
                half_queue_offset=header.half_queue_offset,
                commit_log_offset=header.commit_log_offset,
                outcome=int(decision),
                message_id=header.message_id or "",
                from_transaction_check=True,
                transaction_id=header.transaction_id,
            )
            await connection.call(RequestCode.END_TRANSACTION, decided)
        except ClientError as error:
            log.info("decision of a transaction lost", message=header.message_id, reason=str(error))
        finally:
            self._checking -= 1

    async def _decided(self, message: MessageView) -> Decision:
        """Return what ``check`` decides; UNKNOWN where it fails, with whatever: that must not end the producer."""
        try:
            return Decision(await self._check(message))
        except Exception:
            log.exception("check failed: the transaction stays undecided", message=message.message_id)
            return Decision.UNKNOWN
