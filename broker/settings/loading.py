"""Reading of settings: TOML with the tables of :mod:`broker.settings.tables`, or RocketMQ's own ``key=value`` files.

A mistake is found before anything starts, and the message is written for the person who typed it: file, line, key as it
stands there, value, and what is allowed. Nothing is guessed: an unknown key is refused (with the nearest known one),
because the alternative is a server that runs with a default that nobody chose. The one exception is a key that RocketMQ
knows and that has no meaning here. It only warns, so that an existing ``broker.conf`` starts as it is.

Both syntaxes become the same nested values with the place where each was found, and one function checks them.
"""

import difflib
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from broker.remoting.addresses import host_of, join_address
from broker.settings import properties_file, rocketmq_keys
from broker.settings.rocketmq_keys import Meaning
from broker.settings.rules import (
    DISK_LIMITS,
    ImpossibleSettingError,
    check_broker,
    check_name_server,
    following_limits,
)
from broker.settings.tables import (
    SECRETS,
    AclSettings,
    BrokerSettings,
    LimitSettings,
    NameServerSettings,
    NodeSettings,
    ObserveSettings,
    RaftSettings,
    RetentionSettings,
    Settings,
    SettingsTable,
    StorageSettings,
    TlsSettings,
)

_TABLES: dict[str, type[SettingsTable]] = {
    "node": NodeSettings,
    "raft": RaftSettings,
    "storage": StorageSettings,
    "retention": RetentionSettings,
    "broker": BrokerSettings,
    "limits": LimitSettings,
    "observe": ObserveSettings,
    "tls": TlsSettings,
    "acl": AclSettings,
}


class SettingsError(ValueError):
    """Settings that cannot be used; the text is one line for the operator, whose fault it is.

    A value that is given is shown, unless the key is that of a secret. That of an unknown key must not be given: the
    line goes to logs, and the key may be a secret's, mistyped.
    """

    def __init__(
        self, file: str, reason: str, *, line: int | None = None, key: str = "", value: object = None
    ) -> None:
        if key in SECRETS:
            value = None  # the line goes to logs, and a password without quotes may be the right one
        place = file if line is None else f"{file}:{line}"
        subject = f"{key} = {_shown(value)}: " if key and value is not None else f"{key}: " if key else ""
        super().__init__(f"{place}: {subject}{reason}")
        self.file = file
        self.line = line
        self.key = key
        self.value = value
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _Given:
    """A value as found: the key and text as they stand in the file, for messages, and the line if known."""

    value: Any
    key: str
    shown: object
    line: int | None


_Found = dict[str, _Given]
"""Values by ``table.field`` (bare ``field`` for the name server)."""

_AnySettings = TypeVar("_AnySettings", bound=SettingsTable)
_Kind = TypeVar("_Kind", Settings, NameServerSettings)


@dataclass(frozen=True, slots=True)
class _PropertiesDialect:
    """The meaning of the keys of one kind of RocketMQ file."""

    meanings: dict[str, Meaning]
    without_effect: dict[str, str]
    listen_setting: str
    default_listen_port: int


_BROKER_PROPERTIES = _PropertiesDialect(
    rocketmq_keys.BROKER_KEYS, rocketmq_keys.BROKER_KEYS_WITHOUT_EFFECT, "node.listen", 10911
)
_NAME_SERVER_PROPERTIES = _PropertiesDialect(
    rocketmq_keys.NAME_SERVER_KEYS, rocketmq_keys.NAME_SERVER_KEYS_WITHOUT_EFFECT, "listen", 9876
)


def load(path: str | Path) -> Settings:
    """Read a broker's settings: TOML if the name ends in ``.toml``, else RocketMQ's ``key=value``.

    Raises :class:`SettingsError` for any mistake, an unreadable file included.
    """
    file = str(path)
    text = _read(file)
    warnings: list[str] = []
    if file.endswith(".toml"):
        found = _found_in_broker_toml(file, text)
    else:
        found = _found_in_properties(file, text, _BROKER_PROPERTIES, warnings)
        _order_disk_limits(found)
    tables: dict[str, Any] = {
        name: _settings(file, table, found, f"{name}.") for name, table in _TABLES.items()
    }
    return _checked(file, Settings(**tables, warnings=tuple(warnings)), check_broker, found)


def load_name_server(path: str | Path) -> NameServerSettings:
    """Read a name server's settings in either syntax. Raises :class:`SettingsError`."""
    file = str(path)
    text = _read(file)
    warnings: list[str] = []
    if file.endswith(".toml"):
        found = _found_in_namesrv_toml(file, text)
    else:
        found = _found_in_properties(file, text, _NAME_SERVER_PROPERTIES, warnings)
    settings = msgspec.structs.replace(
        _settings(file, NameServerSettings, found, ""), warnings=tuple(warnings)
    )
    return _checked(file, settings, check_name_server, found)


def to_toml(settings: Settings | NameServerSettings) -> str:
    """The TOML text that :func:`load` or :func:`load_name_server` reads back as ``settings`` (without its warnings)."""
    if isinstance(settings, NameServerSettings):
        return "".join(f"{line}\n" for line in _toml_lines(settings) if not line.startswith("warnings = "))
    lines: list[str] = []
    for name in _TABLES:
        lines += (f"[{name}]", *_toml_lines(getattr(settings, name)), "")
    return "\n".join(lines)


def _toml_lines(table: msgspec.Struct) -> list[str]:
    return [f"{field} = {_toml_value(value)}" for field, value in msgspec.to_builtins(table).items()]


def _toml_value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml_value(item)}" for key, item in value.items()) + " }"
    # JSON's strings, numbers, booleans and arrays are TOML's too.
    return msgspec.json.encode(value).decode()


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(file, error.strerror or str(error)) from None
    except UnicodeDecodeError as error:
        raise SettingsError(file, f"byte {error.start} is not UTF-8 text") from None


def _settings(file: str, table: type[_AnySettings], found: _Found, prefix: str) -> _AnySettings:
    """Build one table, checking each value against its field's type. Raises :class:`SettingsError`."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(table):
        given = found.get(prefix + field.name)
        if given is None:
            continue
        try:
            values[field.name] = msgspec.convert(given.value, field.type)
        except msgspec.ValidationError:
            reason = f"must be {expected_value(msgspec.inspect.type_info(field.type))}"
            raise SettingsError(file, reason, line=given.line, key=given.key, value=given.shown) from None
    return table(**values)


def expected_value(kind: msgspec.inspect.Type) -> str:
    """Say in words which values a field of this type takes. Raises AssertionError for a type that no setting has."""
    match kind:
        case msgspec.inspect.IntType(ge=low, le=high, multiple_of=step):
            bounds = f" from {low} to {high}" if high is not None else f" of at least {low}" if low else ""
            return f"a whole number{bounds}" + (f", a multiple of {step}" if step else "")
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.LiteralType(values=values):
            return "one of " + ", ".join(str(value) for value in values)
        case msgspec.inspect.StrType(pattern=str()):
            return 'a node id ("n" and a number, such as n0)'
        case msgspec.inspect.StrType(min_length=low):
            return "text that is not empty" if low else "text"
        case msgspec.inspect.VarTupleType(item_type=item):
            return f"a list, each item {expected_value(item)}"
        case msgspec.inspect.DictType():
            return 'node ids (such as n0) with an address "host:port" each'
        case msgspec.inspect.Metadata(type=inner):
            return expected_value(inner)
    raise AssertionError(f"no words for {kind}")


def _checked(file: str, settings: _Kind, check: Callable[[_Kind], None], found: _Found) -> _Kind:
    """Return settings that can hold together. Raises :class:`SettingsError`, which points at the one that is to change;
    it is named alone if its default is the value that cannot hold.
    """
    try:
        check(settings)
    except ImpossibleSettingError as impossible:
        given = found.get(impossible.setting)
        if given is None:
            raise SettingsError(file, impossible.reason, key=impossible.setting) from None
        raise SettingsError(
            file, impossible.reason, line=given.line, key=given.key, value=given.shown
        ) from None
    return settings


def _shown(value: object) -> str:
    return value if isinstance(value, str) and value else msgspec.json.encode(value).decode()


def nearest(key: str, known: list[str]) -> str:
    """A hint for an unknown key: the known one that looks most like it. Capital letters are the most frequent
    mistake."""
    lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(key.lower(), lower, n=1, cutoff=0.6)
    return f"; did you mean {lower[close[0]]}?" if close else ""


# TOML


def _parse_toml(file: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError; so is a number too long
        message = str(error)
        match = re.search(r" \(at line (\d+), column \d+\)$", message)
        line = int(match[1]) if match else None
        raise SettingsError(
            file, f"not TOML: {message[: match.start()] if match else message}", line=line
        ) from None


def _found_in_broker_toml(file: str, text: str) -> _Found:
    found: _Found = {}
    for name, content in _parse_toml(file, text).items():
        line = _toml_line(text, (name,))
        table = _TABLES.get(name)
        if table is None:
            known = ", ".join(f"[{known}]" for known in _TABLES)
            raise SettingsError(
                file, f"unknown table; known are {known}{_near_table(name)}", line=line, key=name
            )
        if not isinstance(content, dict):
            raise SettingsError(file, f"a table is expected: [{name}]", line=line, key=name, value=content)
        known_fields = [field.name for field in msgspec.structs.fields(table)]
        for key, value in content.items():
            line = _toml_line(text, (name, key))
            if key not in known_fields:
                reason = f"unknown key of [{name}]{nearest(key, known_fields)}"
                raise SettingsError(file, reason, line=line, key=f"{name}.{key}")
            found[f"{name}.{key}"] = _Given(value, f"{name}.{key}", value, line)
    return found


def _near_table(name: str) -> str:
    """A hint for an unknown table: a key at the top of the file most likely belongs to a table."""
    for table_name, table in _TABLES.items():
        if name in (field.name for field in msgspec.structs.fields(table)):
            return f"; {name} belongs to [{table_name}]"
    return nearest(name, list(_TABLES))


def _found_in_namesrv_toml(file: str, text: str) -> _Found:
    known_fields = [
        field.name for field in msgspec.structs.fields(NameServerSettings) if field.name != "warnings"
    ]
    found: _Found = {}
    for key, value in _parse_toml(file, text).items():
        line = _toml_line(text, (key,))
        if key not in known_fields:
            raise SettingsError(file, f"unknown key{nearest(key, known_fields)}", line=line, key=key)
        found[key] = _Given(value, key, value, line)
    return found


def _toml_line(text: str, path: tuple[str, ...]) -> int | None:
    """The line on which a plainly written table or key begins; None for rarer spellings (quoted, dotted)."""
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[([\w.-]+)\]", line)
        if header is not None:
            table = header[1]
            if path == (table,) or ".".join(path) == table:
                return number
            continue
        key = re.match(r"\s*([\w-]+)\s*=", line)
        if key is not None and path == ((table, key[1]) if table else (key[1],)):
            return number
    return None


# RocketMQ's key=value


def _found_in_properties(file: str, text: str, dialect: _PropertiesDialect, warnings: list[str]) -> _Found:
    try:
        entries = properties_file.parse(text)
    except properties_file.PropertiesSyntaxError as error:
        raise SettingsError(file, error.reason, line=error.line) from None
    found: _Found = {}
    seen: dict[str, properties_file.Property] = {}
    for entry in entries:
        if entry.key in seen:
            warnings.append(f"{file}:{entry.line}: {entry.key} stands twice; this line counts")
        seen[entry.key] = entry
    for entry in seen.values():
        _take_property(file, entry, dialect, found, warnings)
    _take_listen_address(file, seen, dialect, found)
    _check_acl(file, seen)
    return found


def _check_acl(file: str, seen: dict[str, properties_file.Property]) -> None:
    """Raise SettingsError if ``aclEnable`` promises accounts without a file of them, or would leave such a file
    unused."""
    switch = seen.get("aclEnable")
    if switch is None:
        return
    on = switch.value.strip() == "true"
    if on != ("aclFile" in seen and bool(seen["aclFile"].value.strip())):
        reason = (
            "needs aclFile, a file of accounts (see docs/security.md): without it the broker would be open to all"
            if on
            else "aclFile says otherwise; leave it out to let everyone in"
        )
        raise SettingsError(file, reason, line=switch.line, key="aclEnable", value=switch.value.strip())


def _take_property(
    file: str,
    entry: properties_file.Property,
    dialect: _PropertiesDialect,
    found: _Found,
    warnings: list[str],
) -> None:
    key, value = entry.key, entry.value.strip()
    # A value that asks for what Trivet does not do is refused, even of a key without effect.
    refused = rocketmq_keys.REFUSED_VALUES.get(key, {}).get(value.lower())
    if refused is not None:
        raise SettingsError(file, f"must be {refused}", line=entry.line, key=key, value=value)
    allowed = rocketmq_keys.ALLOWED_VALUES.get(key)
    if allowed is not None and value not in allowed:
        raise SettingsError(
            file, f"must be one of {', '.join(sorted(allowed))}", line=entry.line, key=key, value=value
        )
    meaning = dialect.meanings.get(key)
    if meaning is not None:
        try:
            read = meaning.read(value)
        except ValueError as error:
            raise SettingsError(file, f"must be {error}", line=entry.line, key=key, value=value) from None
        # Two keys may mean one setting (brokerName and dLegerGroup): they must agree.
        earlier = found.get(meaning.setting)
        if earlier is not None and earlier.value != read:
            reason = f"{earlier.key} = {earlier.shown} says otherwise; here both are one setting"
            raise SettingsError(file, reason, line=entry.line, key=key, value=value)
        found[meaning.setting] = _Given(read, key, value, entry.line)
    elif key in dialect.without_effect:
        warnings.append(f"{file}:{entry.line}: {key} has no effect: {dialect.without_effect[key]}")
    elif key not in ("listenPort", "bindAddress", "enableDLegerCommitLog"):
        known = [*dialect.meanings, *dialect.without_effect, "listenPort", "bindAddress"]
        raise SettingsError(file, f"unknown key{nearest(key, known)}", line=entry.line, key=key)


def _take_listen_address(
    file: str, seen: dict[str, properties_file.Property], dialect: _PropertiesDialect, found: _Found
) -> None:
    """Join listenPort with the host to bind.

    The reference binds every interface unless ``bindAddress`` says otherwise, and tells clients ``brokerIP1`` or an
    address it finds. Binding what is told to clients is the safer reading: nothing listens where nobody was invited.
    """
    port_entry, bind_entry = seen.get("listenPort"), seen.get("bindAddress")
    entry = port_entry or bind_entry
    port = dialect.default_listen_port
    if port_entry is not None:
        try:
            port = rocketmq_keys.integer(port_entry.value.strip())
            if not 0 <= port <= 65535:
                raise ValueError
        except ValueError:
            raise SettingsError(
                file,
                "must be a port from 0 to 65535",
                line=port_entry.line,
                key="listenPort",
                value=port_entry.value,
            ) from None
    advertised = found.get("node.advertise")
    host = bind_entry.value.strip() if bind_entry else advertised.value if advertised else "127.0.0.1"
    address = join_address(host_of(host), port)
    found[dialect.listen_setting] = _Given(
        address,
        entry.key if entry else "listenPort",
        entry.value if entry else str(port),
        entry.line if entry else None,
    )


def _order_disk_limits(found: _Found) -> None:
    """Lets limits of the disk's use that a `broker.conf` does not set follow those that it does."""
    given = {name: found[f"retention.{name}"].value for name in DISK_LIMITS if f"retention.{name}" in found}
    for name, followed in following_limits(given).items():
        found[f"retention.{name}"] = found[f"retention.{followed}"]
