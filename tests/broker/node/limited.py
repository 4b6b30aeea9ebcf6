"""A group to try limits of a broker on, and what asks it: given a client, it returns the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker.remoting.bodies import HeartbeatData
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from broker.remoting.json_body import encode_body
from log.formats.batch import BatchItem, encode_batch
from log.formats.properties import encode_properties
from tests.broker.fields import pull_fields, topic_fields
from tests.broker.harness import Client, Group

Answer = Callable[[Client], RemotingCommand]


def prepared(**settings: Any) -> Group:
    """A group with topic T of two queues, an ordered one, one that nobody may read, and group g."""
    group = Group.elected(1, **settings)
    client = group.connect()
    client.create_topic("T", 2)
    put_topic(client, topic="Ordered", order=True)
    put_topic(client, topic="WriteOnly", perm=2)
    put_topic(client, topic="NoQueue", writeQueueNums=0)
    client.heartbeat("g", ["T"])
    put_group(client, b'{"groupName": "Silent", "consumeEnable": false}')
    put_group(client, b'{"groupName": "NoBroadcast", "consumeBroadcastEnable": false}')
    return group


def put_topic(client: Client, **changes: Any) -> RemotingCommand:
    fields = topic_fields(readQueueNums=2, writeQueueNums=2) | changes
    return client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


def put_group(client: Client, body: bytes) -> RemotingCommand:
    return client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)


def send(
    topic: str = "T", body: bytes = b"x", properties: Mapping[str, str] | None = None, **header: Any
) -> Answer:
    return lambda client: client.wait(client.start_send(topic, body, properties=properties, **header))


def batch(*items: BatchItem, topic: str = "T", body: bytes | None = None, **header: Any) -> Answer:
    data = encode_batch(items) if body is None else body
    return send(topic, data, batch=True, **header)


def item(body: bytes = b"x", /, **properties: str) -> BatchItem:
    return BatchItem(0, body, encode_properties(properties))


def pull(**changes: Any) -> Answer:
    return lambda client: client.call(RequestCode.PULL_MESSAGE, pull_fields(**changes))


def heartbeat(client_id: str = "c", consumers: Any = (), producers: Any = (), **changes: Any) -> Answer:
    data = HeartbeatData(
        client_id=client_id,
        consumer_data_set=list(consumers),
        producer_data_set=list(producers),
        **changes,
    )
    return lambda client: client.call(RequestCode.HEART_BEAT, None, encode_body(data))


def call(code: int, body: bytes = b"", **fields: Any) -> Answer:
    return lambda client: client.call(code, fields, body)
