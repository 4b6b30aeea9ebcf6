"""Route and cluster bodies of the name server, with their version gate (`TopicRouteData`).

Old clients read integer keys only bare, new ones only quoted, so the writer must ask who reads. The reader
of this project takes both forms.
"""

from __future__ import annotations

from typing import Any

import msgspec

from broker.remoting.codes import Version
from broker.remoting.command import Int32
from broker.remoting.json_body import ascii_only, decode_body, encode_body, encode_integer_keyed

MASTER_ID = 0
"""The broker id that takes writes; higher ones are slaves."""


class BrokerData(msgspec.Struct, rename="camel"):
    """One broker name's addresses, ip:port by broker id."""

    broker_addresses: dict[int, str] = msgspec.field(name="brokerAddrs")
    broker_name: str
    cluster: str
    enable_acting_master: bool = False


class QueueData(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """The numbers of queues of a topic that one broker name has; ``perm`` has the bits of `codes.Permission`."""

    broker_name: str
    perm: Int32
    read_queue_nums: Int32
    topic_sys_flag: Int32 = 0
    write_queue_nums: Int32


class TopicRouteData(msgspec.Struct, rename="camel", kw_only=True):
    """Response to GET_ROUTEINFO_BY_TOPIC 105; ``order_topic_conf`` is ``broker:queues`` joined by ``;``."""

    broker_datas: list[BrokerData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = []

    def encode(self, client_version: int, accept_standard_json_only: bool) -> bytes:
        """For a client of that version: standard JSON from V4_9_4 on or if it asked for it, bare keys below."""
        is_standard = client_version >= Version.V4_9_4 or accept_standard_json_only
        wire: dict[str, Any] = {
            "brokerDatas": [_standard(data) if is_standard else _bare(data) for data in self.broker_datas],
            "filterServerTable": self.filter_server_table,
        }
        if self.order_topic_conf is not None:
            wire["orderTopicConf"] = self.order_topic_conf
        wire["queueDatas"] = self.queue_datas
        return ascii_only(encode_body(wire)) if is_standard else encode_body(wire)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> TopicRouteData:
        """Reads either form; raises BodyError."""
        return decode_body(body, cls)


class ClusterInfo(msgspec.Struct, rename="camel"):
    """Response to GET_BROKER_CLUSTER_INFO 106."""

    broker_table: dict[str, BrokerData] = msgspec.field(name="brokerAddrTable", default_factory=dict)
    cluster_table: dict[str, list[str]] = msgspec.field(name="clusterAddrTable", default_factory=dict)

    def encode(self) -> bytes:
        """With bare integer keys, whoever asks."""
        return encode_body(
            {
                "brokerAddrTable": {name: _bare(data) for name, data in self.broker_table.items()},
                "clusterAddrTable": self.cluster_table,
            }
        )

    @classmethod
    def decode(cls, body: bytes | memoryview) -> ClusterInfo:
        """Reads either form; raises BodyError."""
        return decode_body(body, cls)


class BrokerMemberGroup(msgspec.Struct, rename="camel"):
    """The addresses of one broker name: response to GET_BROKER_MEMBER_GROUP 901 (5.x)."""

    broker_addresses: dict[int, str] = msgspec.field(name="brokerAddrs")
    broker_name: str
    cluster: str

    def encode(self) -> bytes:
        wire = {
            "brokerAddrs": encode_integer_keyed(self.broker_addresses),
            "brokerName": self.broker_name,
            "cluster": self.cluster,
        }
        return encode_body({"brokerMemberGroup": wire})


def _bare(data: BrokerData) -> dict[str, Any]:
    return _broker_wire(data, encode_integer_keyed(data.broker_addresses))


def _standard(data: BrokerData) -> dict[str, Any]:
    # Sorted as text, as the standard writer sorts keys.
    return _broker_wire(
        data, {str(key): data.broker_addresses[key] for key in sorted(data.broker_addresses, key=str)}
    )


def _broker_wire(data: BrokerData, addresses: Any) -> dict[str, Any]:
    return {
        "brokerAddrs": addresses,
        "brokerName": data.broker_name,
        "cluster": data.cluster,
        "enableActingMaster": data.enable_acting_master,
    }
