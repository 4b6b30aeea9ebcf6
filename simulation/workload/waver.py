"""Transactions whose producer comes to want something else, or does not know for long what it wants.

RocketMQ answers any second decision with success. Here the first one that the group takes is binding, and whoever asks
for another one is told which that was (broker/transactions/decisions.py). So a waverer asks for both, one after the
other, whatever became of the first, or at once; or it decides when the group has asked all its questions and given up.
"""

from typing import Final

from broker.client.errors import ClientError
from broker.client.message import Message, SendResult
from broker.client.producing.transactions import Decision, TransactionalProducer
from broker.client.transport.runtime import Runtime
from broker.trace import TraceWriter
from simulation.workload.context import Context
from simulation.workload.transact import TOPIC, Transactions, answers, decide

_LANES: Final = 3
_AT_ONCE: Final = 0.3
_LATE: Final = 0.3
"""The shares of the transactions that are asked to be both at once, and of those that are decided late; of the others
the producer comes to want the other outcome."""
_LOOK_EVERY_S: Final = 0.2
_OTHER: Final = {Decision.COMMIT: Decision.ROLLBACK, Decision.ROLLBACK: Decision.COMMIT}


async def waver(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Begins transactions for ever, decides them twice or late, and answers what the broker asks."""
    invariant = context.invariant(Transactions)
    random = runtime.random

    async with TransactionalProducer(
        context.name_servers, group="waverers", check=answers(context, runtime), runtime=runtime
    ) as producer:

        async def ask(half: SendResult, decision: Decision) -> None:
            try:
                await decide(context, producer, half, decision)
            except ClientError:
                await runtime.sleep(0.05)

        async def until_decided(half: SendResult) -> None:
            while not (invariant.is_decided(half.queue_offset) or context.load_stopped):
                await runtime.sleep(_LOOK_EVERY_S)

        async def lane() -> None:
            while True:
                await context.pause(runtime, 0.5)
                first = random.choice((Decision.COMMIT, Decision.ROLLBACK))
                is_late, is_both = random.random() < _LATE, random.random() < _AT_ONCE
                name = invariant.new(Decision.UNKNOWN if is_late else first)
                try:
                    half = (await producer.begin(Message(TOPIC, random.randbytes(20), keys=[name]))).half
                except ClientError:
                    await runtime.sleep(0.05)
                    continue
                # Its producer answers questions with "unknown" until then, so that the group mostly has given it up.
                if is_late:
                    await until_decided(half)
                    invariant.want(name, first)
                    await ask(half, first)
                elif is_both:
                    # Noted before either is asked: the log may take the second one first.
                    invariant.want(name, _OTHER[first])
                    async with runtime.task_group() as group:
                        for decision in (first, _OTHER[first]):
                            group.start_soon(ask, half, decision)
                else:
                    await ask(half, first)
                    # Meanwhile the group may ask for it, too, if the first one did not arrive.
                    await runtime.sleep(random.expovariate(1 / 0.5))
                    invariant.want(name, _OTHER[first])
                    await ask(half, _OTHER[first])
                context.journal.did("transaction decided late" if is_late else "transaction decided twice")

        async with runtime.task_group() as group:
            for _ in range(_LANES):
                group.start_soon(lane)
