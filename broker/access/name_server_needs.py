"""The accounts that may make each request to a name server: one row for each that it answers.

Brokers and administrators are told apart: a broker enters itself and asks after others, it configures nothing. An
administrator may do all.
"""

import enum
from typing import Final

from broker.remoting.codes import RequestCode


class Need(enum.Enum):
    """The accounts that may make a request."""

    ROUTE = "route"
    """For whoever looks for brokers: no account, unless the settings want one."""
    KNOWN = "known"
    """An account, whatever it may do, or a broker."""
    BROKER = "broker"
    """A broker that knows the registration secret, or an administrator."""
    ADMINISTRATOR = "administrator"


NAME_SERVER_NEEDS: Final[dict[int, Need]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: Need.ROUTE,
    # Who may enter a broker takes the address of another in all routes.
    RequestCode.REGISTER_BROKER: Need.BROKER,
    RequestCode.UNREGISTER_BROKER: Need.BROKER,
    RequestCode.BROKER_HEARTBEAT: Need.BROKER,
    RequestCode.QUERY_DATA_VERSION: Need.BROKER,  # puts off the end of a registration
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: Need.ADMINISTRATOR,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: Need.ADMINISTRATOR,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: Need.ADMINISTRATOR,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: Need.ADMINISTRATOR,
    RequestCode.PUT_KV_CONFIG: Need.ADMINISTRATOR,
    RequestCode.DELETE_KV_CONFIG: Need.ADMINISTRATOR,
    RequestCode.GET_NAMESRV_CONFIG: Need.ADMINISTRATOR,
    RequestCode.UPDATE_NAMESRV_CONFIG: Need.ADMINISTRATOR,
    RequestCode.GET_KV_CONFIG: Need.KNOWN,
    RequestCode.GET_KVLIST_BY_NAMESPACE: Need.KNOWN,
    RequestCode.GET_BROKER_CLUSTER_INFO: Need.KNOWN,
    RequestCode.GET_BROKER_MEMBER_GROUP: Need.KNOWN,
    # Lists leave out what the account may not see (`broker.access.control.Sight`).
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Need.KNOWN,
    RequestCode.GET_TOPICS_BY_CLUSTER: Need.KNOWN,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: Need.KNOWN,
    RequestCode.GET_UNIT_TOPIC_LIST: Need.KNOWN,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: Need.KNOWN,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Need.KNOWN,
}
