"""Messages on their way to another thread, without one: the reader takes them, and they arrive or do not."""

from __future__ import annotations

import trio

from broker.client.threaded.handover import Handover
from tests.broker.client.cluster import Broker
from tests.broker.client.links import ClientRuntime
from tests.broker.client.test_consumer import bodies, consuming, fill, stored_offset


async def test_what_has_not_arrived_is_not_committed_and_comes_again(
    broker: Broker, runtime: ClientRuntime
) -> None:
    fill(broker, 4)
    async with consuming(runtime) as consumer:
        handover = Handover(consumer.hand_out)
        handover.arrived(await handover.take())
        assert bodies(await handover.take()) == [b"1"]
        await consumer.commit()
        assert stored_offset(broker) == 1, "the second one is still on its way"
        assert bodies(handover.arrived(await handover.take())) == [b"1"]
        assert bodies(await handover.take(batch=True)) == [b"2", b"3"]
        await consumer.commit()
        assert stored_offset(broker) == 2
        assert bodies(handover.arrived(await handover.take())) == [b"2"]
        await consumer.commit()
        assert stored_offset(broker) == 3
        assert bodies(handover.arrived(await handover.take(batch=True))) == [b"3"]
        await consumer.commit()
        assert stored_offset(broker) == 4


async def test_what_has_not_arrived_goes_to_the_next_member_with_its_queue(
    broker: Broker, runtime: ClientRuntime
) -> None:
    fill(broker, 2)
    async with consuming(runtime) as consumer:
        handover = Handover(consumer.hand_out)
        assert bodies(await handover.take()) == [b"0"]
        broker.reset_offset("c", "t", 0, 1)
        await trio.sleep(1)
        assert bodies(handover.arrived(await handover.take())) == [b"1"]
