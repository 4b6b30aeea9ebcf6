"""The settings of running nodes: what is in force, where each is from, and the few that may change meanwhile."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from broker.client.admin import AdminClient
from broker.client.errors import BrokerError, ClientError, UsageError
from broker.operations.asking import Groups, each
from broker.operations.errors import NotThere
from broker.remoting.codes import RequestCode, ResponseCode
from broker.settings.properties_file import PropertiesSyntaxError, line, parse

Origin = Literal["default", "file", "run time", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSetting:
    """One setting of a node. ``origin`` says where it is from: built in, the node's file, or a change at run time that
    the node keeps; "unknown" of brokers that do not tell. ``changeable`` are those that may change while it runs."""

    name: str
    value: str
    origin: Origin
    changeable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """The settings of one node by their names, RocketMQ's where it has one; secrets are told to nobody. None with a
    ``failure``, of a node that did not tell."""

    broker: str
    address: str
    settings: tuple[NodeSetting, ...]
    failure: str | None = None


async def settings_in_force(admin: AdminClient, *, address: str | None = None) -> list[NodeSettings]:
    """Return the settings of every registered node, or of the one at an address.

    A node that does not tell has a failure instead; where none tells, the first one's error is raised. Raises NotThere,
    ClientError.
    """
    errors: list[ClientError] = []

    async def ask(node: tuple[str, str]) -> NodeSettings:
        try:
            return await _settings_of(admin, *node)
        except ClientError as error:
            errors.append(error)
            return NodeSettings(broker=node[0], address=node[1], settings=(), failure=str(error))

    found = await each(admin, await _nodes(admin, address), ask)
    if len(errors) == len(found):
        raise errors[0]
    return found


async def change_settings(
    admin: AdminClient, wanted: Mapping[str, str], *, address: str | None = None
) -> list[str]:
    """Change settings of every registered node, or of the one at an address; each takes all of them or none.

    Returns the addresses of the nodes that have changed them, one after the other. Raises UsageError without settings,
    NotThere, BrokerError with a node's reason, ClientError; nodes before that one have changed theirs then, which the
    error has a note of (`in_words`).
    """
    if not wanted:
        raise UsageError("no setting to change was given")
    body = "".join(line(key, value) for key, value in wanted.items()).encode()
    changed: list[str] = []
    for _, at in await _nodes(admin, address):
        try:
            response = await admin.core.pool.call(at, RequestCode.UPDATE_BROKER_CONFIG, {}, body)
            if response.code != ResponseCode.SUCCESS:
                raise BrokerError(response.code, response.remark, at)
        except ClientError as error:
            if changed:
                error.add_note(f"changed before that at {', '.join(changed)}")
            raise
        changed.append(at)
    return changed


def _origin(key: str, changed: set[str], given: set[str]) -> Origin:
    if key in changed:
        return "run time"
    return "file" if key in given else "default"


async def _settings_of(admin: AdminClient, broker: str, at: str) -> NodeSettings:
    response = await admin.call(at, RequestCode.GET_BROKER_CONFIG, {"origins": "true"})
    if response.code != ResponseCode.SUCCESS:
        raise BrokerError(response.code, response.remark, at)
    try:
        entries = parse(bytes(response.body).decode("utf-8", "replace"))
    except PropertiesSyntaxError as error:
        raise BrokerError(response.code, f"unreadable response: {error}", at) from error
    fields = response.fields
    tells = "changedSettings" in fields
    changed = set(fields.get("changedSettings", "").split(";"))
    given = set(fields.get("givenSettings", "").split(";"))
    changeable = set(fields.get("changeableSettings", "").split(";"))
    return NodeSettings(
        broker=broker,
        address=at,
        settings=tuple(
            NodeSetting(
                name=entry.key,
                value=entry.value,
                origin=_origin(entry.key, changed, given) if tells else "unknown",
                changeable=entry.key in changeable,
            )
            for entry in entries
        ),
    )


async def _nodes(admin: AdminClient, address: str | None) -> list[tuple[str, str]]:
    """Return (broker group, address) of every registered node, or of the one at an address."""
    groups = await Groups.registered(admin)
    nodes = [(name, at) for name in groups.names for at in groups.addresses(name)]
    if address is None:
        return nodes
    found = [node for node in nodes if node[1] == address]
    if not found:
        raise NotThere(f"no broker is registered at {address}; there are: {', '.join(at for _, at in nodes)}")
    return found
