"""Readers who want some messages only, by an SQL92 condition on their properties that the brokers evaluate.

Which condition a run has is the seed's; all readers of a consumer group must have the same.
"""

from collections.abc import Callable
from typing import Final

from broker.client.consuming.consumer import Consumer
from broker.client.consuming.subscription import SqlFilter
from broker.client.message import Message
from broker.client.transport.runtime import Runtime
from broker.trace import TraceWriter
from simulation.journal import Violation
from simulation.judges.group_model import CommittedMessage
from simulation.randomness import stream
from simulation.workload.context import Context, Invariant
from simulation.workload.sending import send_now_and_then

TOPIC: Final = "offers"
GROUP: Final = "pickers"

Wanted = Callable[[int, str | None], bool]

_CONDITIONS: Final[tuple[tuple[str, Wanted], ...]] = (
    ("price BETWEEN 20 AND 60", lambda price, region: 20 <= price <= 60),
    (
        "region IN ('eu', 'asia') AND price > 30",
        lambda price, region: region in ("eu", "asia") and price > 30,
    ),
    ("region IS NULL OR price <= 10", lambda price, region: region is None or price <= 10),
    ("NOT (region = 'eu') AND price >= 5", lambda price, region: region not in ("eu", None) and price >= 5),
    ("region <> 'us' OR price < 3", lambda price, region: region not in ("us", None) or price < 3),
)
"""Conditions, each with its meaning; a comparison with a missing property is unknown, and so is its negation."""


class Picks(Invariant):
    """Each reader gets every message that it wants, and no other."""

    asks_readers = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.condition, self._wanted = stream(f"condition {context.seed}").choice(_CONDITIONS)
        self._missing: dict[tuple[int, int], CommittedMessage] = {}
        """By (queue id, offset): what is wanted and has not been seen."""
        self._unwanted: dict[tuple[int, int], str] = {}

    def committed(self, message: CommittedMessage) -> None:
        """Judges each message by its own properties."""
        record = message.record
        if record.topic != TOPIC:
            return
        price, region = message.property(b"price"), message.property(b"region")
        place = (record.queue_id, record.queue_offset)
        if self._wanted(int(price or 0), region):
            self._missing[place] = message
        else:
            self._unwanted[place] = f"price {price}, region {region}"

    def seen(self, queue_id: int, offset: int) -> None:
        """Judges a message that a reader has got. Raises Violation."""
        unwanted = self._unwanted.get((queue_id, offset))
        if unwanted is not None:
            raise Violation(
                "only what is wanted",
                "pickers",
                f"{TOPIC}/{queue_id} at {offset}: {unwanted}; {self.condition}",
            )
        self._missing.pop((queue_id, offset), None)
        self.context.journal.did("filtered message read")

    def check_end(self) -> None:
        """Checks that no wanted message was left out but what retention took before it was read. Raises Violation."""
        model = self.context.model
        missing = [place for place, message in self._missing.items() if not model.may_be_gone(message)]
        if missing:
            queue_id, offset = missing[0]
            raise Violation(
                "all that is wanted",
                "pickers",
                f"{len(missing)} never came, {TOPIC}/{queue_id} at {offset} first; {self.condition}",
            )


async def pick(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Sends messages of all kinds, and reads those that are wanted."""
    invariant = context.invariant(Picks)
    random = runtime.random

    def offer() -> Message:
        properties = {"price": str(random.randrange(100))}
        region = random.choice(("eu", "asia", "us", None))
        if region is not None:  # else a comparison with it is neither true nor false
            properties["region"] = region
        return Message(TOPIC, random.randbytes(40), properties=properties)

    async with runtime.task_group() as group:
        group.start_soon(send_now_and_then, context, runtime, "sellers", 0.3, offer)
        while True:
            async with Consumer(
                context.name_servers,
                group=GROUP,
                topics={TOPIC: SqlFilter(invariant.condition)},
                start="first",
                runtime=runtime,
            ) as consumer:
                with runtime.move_on_after(random.expovariate(1 / 20)):
                    async for message in consumer:
                        invariant.seen(message.queue.queue_id, message.queue_offset)
            await runtime.sleep(random.random())
