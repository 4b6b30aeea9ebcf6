"""One consumer group as broker groups and members tell of it: its settings, its connections, its members' own word."""

from collections.abc import Mapping

from broker.client.errors import BrokerError, ConnectionFailed
from broker.operations.asking import Groups, as_json, each, read_body
from broker.remoting.admin_bodies import ConsumerConnection, ConsumerRunningInfo
from broker.remoting.bodies import SubscriptionGroupConfig, TopicList
from broker.remoting.codes import RequestCode, ResponseCode

MEMBER_TIMEOUT_S = 3.0
"""Seconds after which a member that has not told of itself is shown without its subscriptions and queues."""


async def connection_of(groups: Groups, group: str, broker: str) -> ConsumerConnection | None:
    """Return the members of a consumer group at a broker group; None without any."""
    code, absent = RequestCode.GET_CONSUMER_CONNECTION_LIST, ResponseCode.CONSUMER_NOT_ONLINE
    fields = {"consumerGroup": group}
    return await groups.body_if_there(broker, code, fields, as_json(ConsumerConnection), absent)


async def config_of(groups: Groups, group: str, broker: str) -> SubscriptionGroupConfig | None:
    """Return the settings of a consumer group at a broker group; None where it has none."""
    code, absent = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    return await groups.body_if_there(
        broker, code, {"group": group}, as_json(SubscriptionGroupConfig), absent
    )


async def running_infos(
    groups: Groups, group: str, connections: Mapping[str, ConsumerConnection | None]
) -> dict[str, ConsumerRunningInfo]:
    """Return what each member says of itself, by client id; ``connections`` are by broker group.

    Members that say nothing are left out.
    """
    # A member is connected to every broker group, and says the same of itself at each: one of them asks it.
    asked: dict[str, str] = {}
    for broker, connection in connections.items():
        for client in connection.connection_set if connection else ():
            asked.setdefault(client.client_id, broker)

    async def ask(place: tuple[str, str]) -> ConsumerRunningInfo | None:
        client_id, broker = place
        fields = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"}
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        try:
            response = await groups.ask_leader(broker, code, fields, MEMBER_TIMEOUT_S)
            if response.code != ResponseCode.SUCCESS or not response.body:
                return None
            return read_body(response, broker, ConsumerRunningInfo.decode)
        except (ConnectionFailed, BrokerError):
            return None

    told = await each(groups.admin, asked.items(), ask)
    return {client_id: info for client_id, info in zip(asked, told, strict=True) if info is not None}


async def consumed_topics(groups: Groups, group: str, broker: str) -> list[str]:
    """Return the topics in which a consumer group has offsets at a broker group."""
    code = RequestCode.QUERY_TOPICS_BY_CONSUMER
    return (await groups.body(broker, code, {"group": group}, as_json(TopicList))).topics
