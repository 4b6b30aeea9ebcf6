"""The name server without I/O: which brokers there are and which topics they serve (remoting.md 5,
behaviour.md 1).
"""

from broker.name_server.key_values import KeyValueError, KeyValues, KeyValueStorage
from broker.name_server.route_table import RouteTable
from broker.name_server.server import NameServer

__all__ = ["KeyValueError", "KeyValueStorage", "KeyValues", "NameServer", "RouteTable"]
