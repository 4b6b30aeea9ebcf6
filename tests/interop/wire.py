"""A minimal blocking remoting client for the tests' own questions: topic set-up, routes and roles.

Independent of Trivet's codec on purpose: a fault that both ends share would otherwise stay unseen. It speaks the JSON
header (`RemotingCommand`) as a client of version 4.9.7.
"""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

REQUEST_TIMEOUT_S = 60.0
CLIENT_VERSION = 407

GET_ROUTE_BY_TOPIC = 105
GET_BROKER_CLUSTER_INFO = 106
QUERY_DATA_VERSION = 322
UPDATE_AND_CREATE_TOPIC = 17
UPDATE_BROKER_CONFIG = 25
GET_MAX_OFFSET = 30

SUCCESS = 0
TOPIC_NOT_EXIST = 17


@dataclass(frozen=True, slots=True)
class Answer:
    """One response: its code, remark, header fields and body."""

    code: int
    remark: str | None
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class RefusedError(Exception):
    """A server answered with a code other than the expected one."""


def call(address: str, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> Answer:
    """One request on a connection of its own. Raises OSError if the server cannot be reached."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=REQUEST_TIMEOUT_S) as connection:
        connection.sendall(encode_request(code, fields or {}, body, opaque=1))
        (length,) = struct.unpack(">I", _read_exactly(connection, 4))
        return decode_answer(_read_exactly(connection, length))


def encode_request(code: int, fields: Mapping[str, str], body: bytes, opaque: int, flag: int = 0) -> bytes:
    header = json.dumps(
        {
            "code": code,
            "extFields": dict(fields),
            "flag": flag,
            "language": "JAVA",
            "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": CLIENT_VERSION,
        },
        separators=(",", ":"),
    ).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def decode_answer(payload: bytes) -> Answer:
    """``payload`` is a frame without its length field."""
    (word,) = struct.unpack_from(">I", payload)
    assert word >> 24 == 0, f"answered in serialization {word >> 24} to a JSON request"
    header_length = word & 0xFFFFFF
    header = json.loads(payload[4 : 4 + header_length])
    fields = header.get("extFields") or {}
    return Answer(header["code"], header.get("remark"), fields, payload[4 + header_length :])


def tolerant_json(body: bytes) -> object:
    """Decodes the reference's JSON, which has unquoted integers as keys (`RemotingSerializable`)."""
    return json.loads(re.sub(rb"([{,])(-?\d+):", rb'\1"\2":', body))


def cluster_info(name_server: str) -> dict[str, Any]:
    """Tables of brokers and clusters, as the name server has them now."""
    answer = call(name_server, GET_BROKER_CLUSTER_INFO)
    if answer.code != SUCCESS:
        raise RefusedError(f"cluster info: code {answer.code} {answer.remark}")
    info = tolerant_json(answer.body)
    assert isinstance(info, dict)
    return info


def cluster_name(name_server: str) -> str:
    """The name of the only cluster."""
    (name,) = cluster_info(name_server)["clusterAddrTable"]
    return str(name)


def broker_addresses(name_server: str) -> dict[str, dict[int, str]]:
    """Broker name to {broker id: address}. Id 0 is the leader."""
    table = cluster_info(name_server).get("brokerAddrTable") or {}
    return {
        name: {int(identity): address for identity, address in data["brokerAddrs"].items()}
        for name, data in table.items()
    }


def term(name_server: str) -> int:
    """The latest term in which a node of the only group has registered: Trivet's data versions hold it."""
    info = cluster_info(name_server)
    versions = [0]
    for name, data in (info.get("brokerAddrTable") or {}).items():
        for identity, address in data["brokerAddrs"].items():
            fields = {"brokerName": name, "brokerAddr": address, "brokerId": identity}
            fields["clusterName"] = data["cluster"]
            known = {"counter": 0, "stateVersion": 0, "timestamp": 0}
            answer = call(name_server, QUERY_DATA_VERSION, fields, json.dumps(known).encode())
            if answer.code == SUCCESS and answer.body:
                versions.append(json.loads(answer.body)["stateVersion"])
    return max(versions)


def topic_queue_count(name_server: str, topic: str) -> int | None:
    """Number of write queues in the topic's route over all brokers; None if the name server has no route."""
    answer = call(name_server, GET_ROUTE_BY_TOPIC, {"topic": topic})
    if answer.code == TOPIC_NOT_EXIST:
        return None
    if answer.code != SUCCESS:
        raise RefusedError(f"route of {topic}: code {answer.code} {answer.remark}")
    route = tolerant_json(answer.body)
    assert isinstance(route, dict)
    return sum(int(queue_data["writeQueueNums"]) for queue_data in route["queueDatas"])


def create_topic(leader: str, topic: str, queues: int, topic_sys_flag: int = 0) -> None:
    """Creates or changes ``topic`` as mqadmin's updateTopic does."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": str(topic_sys_flag),
        "order": "false",
    }
    answer = call(leader, UPDATE_AND_CREATE_TOPIC, fields)
    if answer.code != SUCCESS:
        raise RefusedError(f"create topic {topic}: code {answer.code} {answer.remark}")


def max_offset(leader: str, topic: str, queue: int) -> int:
    """End of one queue: the next queue offset to be given out."""
    answer = call(leader, GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue)})
    if answer.code != SUCCESS:
        raise RefusedError(f"max offset of {topic}/{queue}: code {answer.code} {answer.remark}")
    return int(answer.fields["offset"])


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionError(f"closed after {len(parts)} of {size} bytes")
        parts += part
    return bytes(parts)
