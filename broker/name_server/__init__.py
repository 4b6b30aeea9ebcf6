"""The name server without I/O: it knows the brokers and the topics that they serve."""

from broker.name_server.key_values import KeyValueError, KeyValues, KeyValueStorage
from broker.name_server.route_table import RouteTable
from broker.name_server.server import NameServer

__all__ = ["KeyValueError", "KeyValueStorage", "KeyValues", "NameServer", "RouteTable"]
