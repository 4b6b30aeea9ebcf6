"""The node's settings, told and changed on request."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from broker.node.ports import State
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.json_body import encode_body
from broker.requests.connection import Connection
from broker.requests.errors import RequestError
from broker.requests.processing import HandledOn, Route
from broker.requests.responses import reply
from broker.settings.live import ChangeRefusedError, LiveSettings
from broker.settings.properties_file import PropertiesSyntaxError, parse_body


class SettingsProcessor:
    """UPDATE_BROKER_CONFIG 25 and GET_BROKER_CONFIG 26."""

    def __init__(self, state: State, live: LiveSettings) -> None:
        self._state = state
        self._live = live

    def routes(self) -> Iterable[Route]:
        """Always this node: settings are a node's own."""
        return (
            Route(RequestCode.UPDATE_BROKER_CONFIG, self.update, HandledOn.ANY),
            Route(RequestCode.GET_BROKER_CONFIG, self.get, HandledOn.ANY),
        )

    def update(self, connection: Connection, command: RemotingCommand) -> None:
        """Changes settings, all that are named or none. Raises `RequestError` for one that cannot be changed so."""
        try:
            wanted = {entry.key: entry.value for entry in parse_body(command.body)}
            self._live.change(wanted)
        except (ChangeRefusedError, PropertiesSyntaxError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        self._reply(connection, command)

    def get(self, connection: Connection, command: RemotingCommand) -> None:
        """Tells all settings but secrets, as properties; who asks for ``origins``, as Trivet's tools do, gets with them
        which are no defaults, and which may change.
        """
        told, fields = self._live.told(), {}
        if command.fields.get("origins") == "true":
            fields = {
                "changedSettings": ";".join(told.origins.changed),
                "givenSettings": ";".join(told.origins.given),
                "changeableSettings": ";".join(told.origins.changeable),
            }
        self._reply(connection, command, told.properties.encode(), fields)

    def _reply(
        self,
        connection: Connection,
        command: RemotingCommand,
        body: bytes = b"",
        fields: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        version = encode_body(self._state.metadata.topics_version).decode()
        reply(connection, command, ResponseCode.SUCCESS, None, {"version": version, **fields}, body)
