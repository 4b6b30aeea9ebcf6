"""Portions: messages of a writer that may have to be written again, by another process and much later, and are stored
once.

A send that is repeated is known by its unique key, as long as its producer lives. A program that repeats its work after
it has died makes new messages of the same content. Here it says which they are: the writer's name, the portion's
number, and what is the same whenever the portion is made again, its messages' identities, in whatever order. Keys are
made of those, and the brokers are asked how the portion stands before anything is sent
(broker/sending/portions_processor.py).

Each broker group keeps its own account of a portion. So a message must go to the same group whenever it is sent: its
key says which one, of those that have the topic. While a portion is half written, its topic is not to move.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from broker.client.errors import (
    BrokerError,
    ClientError,
    PortionUndecidable,
    SendOutcomeUnknown,
    UsageError,
)
from broker.client.message import Message, MessageQueue, SendResult
from broker.client.producing.one_send import OneSend
from broker.client.producing.outgoing import Preparer
from broker.client.producing.sender import Sender
from broker.client.producing.window import Window
from broker.client.transport.patient_calls import PatientCalls
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.errors import RemotingError
from broker.remoting.headers import PortionResponseHeader

_ATTEMPT_S: Final = 3.0
_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class _Place:
    """A broker group that has the topic, and how the portion stands there."""

    queues: tuple[MessageQueue, ...]
    standing: str
    floor: int


class Portion:
    """One attempt at a portion of a writer; `Producer.portion` makes it. Tasks do not share it.

    In memory it keeps a digest of each different identity, some 150 bytes.
    """

    def __init__(
        self,
        sender: Sender,
        preparer: Preparer,
        writer: str,
        number: int,
        *,
        in_flight: int,
        timeout_s: float,
    ) -> None:
        self._sender = sender
        self._preparer = preparer
        self._name = {"writer": writer, "number": str(number)}
        self._prefix = f"{writer}\x00{number}\x00".encode()
        self._in_flight = in_flight
        self._timeout_s = timeout_s
        self._calls = PatientCalls(sender.core, timeout_s, min(_ATTEMPT_S, timeout_s))
        self._topics: dict[str, list[_Place]] = {}
        self._seen: dict[bytes, int] = {}
        self.sent = 0
        """Messages that were sent and are stored; some of them may have been before."""
        self.skipped = 0
        """Messages of groups where the portion was done already."""

    async def send(self, messages: Iterable[tuple[Message, bytes]]) -> None:
        """Send messages, each with its identity, and wait until all are stored.

        Of messages of one topic with equal identities the first, second, ... are told apart. Raises what
        `Producer.send` raises for the first that fails, the outcome of others being unknown then, and
        PortionUndecidable.
        """
        failures: list[ClientError] = []

        def over(send: OneSend, result: SendResult | None, error: ClientError | None) -> None:
            if error is not None:
                failures.append(error)
            else:
                self.sent += 1

        runtime = self._sender.core.runtime
        async with runtime.task_group() as tasks:
            window = Window(runtime, tasks, self._in_flight, self._in_flight, over)
            try:
                for message, identity in messages:
                    places = self._topics.get(message.topic) or await self._begin(message.topic)
                    # A group where the portion is done has its messages: an earlier attempt came to the end there.
                    send = self._one(message, identity, places, window)
                    if send is None:
                        self.skipped += 1
                        continue
                    window.put(send)
                    if window.is_full:
                        await window.wait_room()
                    if failures:
                        break
                await window.wait_idle()
            finally:
                window.close()
        if failures:
            raise self._told(failures[0]) from failures[0]

    async def end(self) -> None:
        """Say that the portion is done: all its messages were sent. It must not be called otherwise.

        Raises BrokerError, ConnectionFailed, NoRoute, NameServerUnavailable; the portion may be done then.
        """
        for topic, places in self._topics.items():
            for place in places:
                if place.standing != "done":
                    await self._calls.ask(
                        place.queues[0], RequestCode.TRIVET_END_PORTION, {"topic": topic, **self._name}
                    )

    async def _begin(self, topic: str) -> list[_Place]:
        """Ask all groups that have the topic how the portion stands there."""
        self._sender.core.check_open()
        route = await self._sender.core.routes.get(topic)
        places = []
        for group in sorted({queue.broker_name for queue in route.permitted}):
            queues = tuple(queue for queue in route.permitted if queue.broker_name == group)
            response = await self._calls.ask(
                queues[0], RequestCode.TRIVET_BEGIN_PORTION, {"topic": topic, **self._name}
            )
            try:
                header = response.decode_fields(PortionResponseHeader)
            except RemotingError as error:
                raise BrokerError(response.code, f"unreadable response: {error}", group) from error
            places.append(_Place(queues, header.standing, header.position))
        if not places:
            raise UsageError(f"topic {topic!r}: none of its queues may be written")
        self._topics[topic] = places
        return places

    def _one(self, message: Message, identity: bytes, places: list[_Place], window: Window) -> OneSend | None:
        """Return the send of a message, None if the portion is done in the group that it goes to."""
        # With the topic: two messages of one identity in two topics, told apart by their count alone, would change
        # places where the portion is made again in another order, and each be stored twice.
        content = blake2b(message.topic.encode() + b"\x00" + identity, digest_size=_DIGEST_BYTES).digest()
        count = self._seen[content] = self._seen.get(content, 0) + 1
        key = blake2b(self._prefix + content + b"%d" % count, digest_size=_DIGEST_BYTES).digest()
        place = places[int.from_bytes(key[:4], "big") % len(places)]
        if place.standing == "done":
            return None
        # Other bytes than those that chose the group, or each group would get only some of its queues.
        queue = place.queues[int.from_bytes(key[4:8], "big") % len(place.queues)]
        outgoing = self._preparer.message(message, key.hex().upper())
        return OneSend(self._sender, outgoing, message, queue, self._timeout_s, window.ended).behind(
            place.floor, again=place.standing != "new"
        )

    def _told(self, error: ClientError) -> ClientError:
        last = error.last_error if isinstance(error, SendOutcomeUnknown) else None
        if isinstance(last, BrokerError) and last.code == ResponseCode.ONCE_UNDECIDABLE:
            return PortionUndecidable(self._name["writer"], self._name["number"], last)
        return error
