"""The way to one queue: the connection where it begins, and the heads of its requests.

Nearly all sends are first attempts with one message on a connection without signatures; their heads are a template with
six values put in, as what is the same in all is encoded once. For all others `Lane.fields` gives the same header as a
dictionary, to the general encoder. Both are made from the same two constant parts, and a test holds their bytes to each
other.
"""

import msgspec

from broker.client.message import MessageQueue
from broker.client.producing.outgoing import BATCH_CODE, SINGLE_CODE, Outgoing
from broker.client.transport.connection import Connection
from broker.client.transport.pool import ConnectionPool
from broker.client.transport.routes import DEFAULT_TOPIC_QUEUES, TopicRoute
from broker.remoting.command import JSON, OWN_VERSION, frame_head
from broker.state.topic_rules import DEFAULT_TOPIC

_encode_json = msgspec.json.Encoder().encode


class Lane:
    """One producer's way to one queue: the connection for first attempts, and the heads of requests, by the short names
    of RocketMQ's `SendMessageRequestHeaderV2`.

    Without ``exactly_once`` brokers are told nothing by which they could recognize repeated sends.
    """

    __slots__ = ("_begin", "_connection", "_exactly_once", "_pool", "_route", "_template", "queue")

    def __init__(self, pool: ConnectionPool, group: str, queue: MessageQueue, *, exactly_once: bool) -> None:
        self.queue = queue
        self._pool = pool
        self._route: TopicRoute | None = None
        self._connection: Connection | None = None
        self._exactly_once = exactly_once
        self._begin = {
            "a": group,
            "b": queue.topic,
            "c": DEFAULT_TOPIC,
            "d": str(DEFAULT_TOPIC_QUEUES),
            "e": str(queue.queue_id),
        }
        # Names may contain the sign by which the template is filled: retry topics do.
        begin = _encode_json(self._begin)[:-1].replace(b"%", b"%%")
        end = _encode_json(self._end(SINGLE_CODE))[1:-1].replace(b"%", b"%%")
        once = b',"once":"%d"' if exactly_once else b"%.0a"  # which takes a number and writes nothing
        self._template = b"".join(
            (
                b'{"code":%d,"extFields":' % SINGLE_CODE,
                begin,
                b',"f":"%d","g":"%d","h":"%d","i":%b,',
                end,
                once,
                b'},"flag":0,"language":"PYTHON","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":',
                b"%d}" % OWN_VERSION,
            )
        )

    def connection(self, route: TopicRoute) -> Connection | None:
        """Return the open connection to the leader of the queue's group, None if there is no such queue or none now."""
        connection = self._connection
        # Kept from message to message; in a new route another may lead.
        if connection is None or connection.closed or route is not self._route:
            address = route.address(self.queue.broker_name)
            connection = None
            if address is not None and route.lacks(self.queue) is None:
                connection = self._pool.find(address)
            self._route = route
            self._connection = connection
        return connection

    def encode(self, outgoing: Outgoing, floor: int, opaque: int) -> bytes:
        """Return the head of a first attempt with one message."""
        header = self._template % (
            outgoing.sys_flag,
            outgoing.born_ms,
            outgoing.flag,
            _encode_json(outgoing.properties),
            floor,
            opaque,
        )
        return frame_head(JSON, header, len(outgoing.body))

    def fields(self, outgoing: Outgoing, floor: int | None, *, again: bool = False) -> dict[str, str]:
        """Return the header of any send.

        ``floor`` and ``again`` are for brokers that recognize repeated sends (broker/sending/repeated_sends.py);
        without a floor both are left out.
        """
        fields = {
            **self._begin,
            "f": str(outgoing.sys_flag),
            "g": str(outgoing.born_ms),
            "h": str(outgoing.flag),
            "i": outgoing.properties,
            **self._end(outgoing.code),
        }
        if floor is not None and self._exactly_once:
            fields["once"] = str(floor)
            if again:
                fields["again"] = "true"
        return fields

    def _end(self, code: int) -> dict[str, str]:
        is_batch = "true" if code == BATCH_CODE else "false"
        return {"j": "0", "k": "false", "m": is_batch, "n": self.queue.broker_name}
