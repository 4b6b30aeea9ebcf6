"""The settings in force, some of which can be changed while the node runs (UPDATE_BROKER_CONFIG 25, GET_BROKER_CONFIG
26).

They stand under RocketMQ's names, since its tools ask for them; a setting without such a name has its own,
``table.field``. A change is for this node alone, as in RocketMQ. It is checked as a whole and kept in the node's store.
It holds again after a restart, where it goes before the file that the node is started with. Settings that size, name or
address something when it is made cannot change in a running node, and a request for that is refused with the reason.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from broker.remoting.addresses import split_address
from broker.settings import properties_file, rocketmq_keys
from broker.settings.loading import expected_value, nearest
from broker.settings.rules import (
    DISK_LIMITS,
    ImpossibleSettingError,
    check_broker,
    following_limits,
)
from broker.settings.tables import (
    SECRETS,
    NameServerSettings,
    RetentionSettings,
    Settings,
    SettingsTable,
)
from log.files.disk import Disk
from log.files.state_file import read_state, write_state

log = structlog.get_logger("trivet.settings")

CHANGES_PATH: Final = "config/changes"

CHANGEABLE: Final = frozenset(
    {
        "broker.auto_create_topics",
        "broker.auto_create_groups",
        "broker.default_queue_count",
        "broker.permission",
        "broker.follower_reads",
        "broker.long_polling",
        "broker.reject_transactions",
        "broker.accept_sends_from_ms",
        "broker.lite_pulls",
        "broker.notify_consumers",
        "broker.sql_filters",
        "storage.max_message_bytes",
        "storage.scrub_bytes_per_second",
        "storage.scrub_interval_s",
        "limits.max_topics",
        "limits.max_groups",
        "limits.max_queues",
        "limits.max_stored_offsets",
        "limits.max_open_transactions",
        "limits.max_order_locks",
        "limits.max_writers",
        "retention.delete_hours",
        "retention.reserved_hours",
        "retention.interval_ms",
        "retention.disk_clean_percent",
        "retention.disk_force_percent",
        "retention.disk_full_percent",
        "retention.force_clean",
    }
)
"""Settings that are read anew whenever they matter, so that a change has effect at once."""

_FIXED: Final = {
    "brokerRole": "SYNC_MASTER",
    "filterServerNums": "0",
    "msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC",
    "traceOn": "true",
}
"""Settings of RocketMQ that have one value here. Without them mqadmin's exportConfigs fails."""

_SETTING_OF = {key: meaning.setting for key, meaning in rocketmq_keys.BROKER_KEYS.items()}
_TABLES = tuple(field.name for field in msgspec.structs.fields(Settings) if field.name != "warnings")
_DISK_LIMITS = frozenset(f"retention.{name}" for name in DISK_LIMITS)

_NAMES = {f"{table}.{name}" for table in _TABLES for name in getattr(Settings(), table).__struct_fields__}
_UNKNOWN = {*CHANGEABLE, *SECRETS, *_SETTING_OF.values()} - _NAMES - {*NameServerSettings.__struct_fields__}
# A secret that was renamed in the tables alone would be told to everybody.
assert not _UNKNOWN, f"no settings have these names: {_UNKNOWN}"


class ChangeRefusedError(Exception):
    """A change that is not made; the text names the key and says why."""


class Origins(NamedTuple):
    """Names of settings: those that were changed at run time, those that the node's file gives another value than the
    default, and those that may change while the node runs."""

    changed: tuple[str, ...]
    given: tuple[str, ...]
    changeable: tuple[str, ...]


class Told(NamedTuple):
    """The settings as they are told: all but secrets as Java properties, RocketMQ's names first, and the origins of
    those that are no defaults, by the same names."""

    settings: Settings
    properties: str
    origins: Origins


class LiveSettings:
    """The settings of one node. Listeners are called with them after every change."""

    def __init__(self, settings: Settings, disk: Disk) -> None:
        """Start with `settings` and the changes that the store remembers. Raises DamagedStateError, DiskError."""
        self._disk = disk
        self._listeners: list[Callable[[Settings], None]] = []
        self._changes: dict[str, str] = {}
        """The changes that hold, by the names that they were asked for with, at most one of each setting."""
        self.current = self._from_file = settings
        """`current` is always the file's settings with `_changes` applied (`_changed`). So the same settings hold after
        a restart, and a change of one setting changes no other."""
        self._told: Told | None = None
        data = read_state(disk, CHANGES_PATH)
        kept = msgspec.json.decode(data, type=dict[str, str]) if data else {}
        try:
            # Together, as some cannot hold without the others.
            self.current, self._changes = _changed(settings, kept), kept
        except ChangeRefusedError:
            self._keep_what_holds(kept)
        if self._changes:
            log.info("changes made at run time hold", changes=self._changes)

    def _keep_what_holds(self, kept: Mapping[str, str]) -> None:
        """Take over those of the kept changes that the node's present file still allows, one after the other; drop the
        others with a warning."""
        for key, text in kept.items():
            changes = {**self._changes, key: text}
            try:
                self.current, self._changes = _changed(self._from_file, changes), changes
            except ChangeRefusedError as error:
                log.warning("a change made at run time is dropped", reason=str(error))

    def on_change(self, listener: Callable[[Settings], None]) -> None:
        """Register a function that is called with the settings after every change; it must raise nothing."""
        self._listeners.append(listener)

    def change(self, wanted: Mapping[str, str]) -> None:
        """Make all of the changes or none. Raises ChangeRefusedError, and DiskError where they cannot be kept."""
        # One entry for each setting, under whatever name: the last one holds, after a restart, too. In one request none
        # of two names is the last one, as a map of Java's, which mqadmin sends, has no order.
        names: dict[str, str] = {}
        for key, text in wanted.items():
            setting, value = _read(key, text)
            first = names.setdefault(setting, key)
            if value != _read(first, wanted[first])[1]:
                raise ChangeRefusedError(
                    f"{key} = {text}: {first} = {wanted[first]} says otherwise; here both are one setting"
                )
        changes = {key: text for key, text in self._changes.items() if _setting(key) not in names}
        changes |= {key: wanted[key] for key in names.values()}
        changed = _changed(self._from_file, changes)
        if changed == self.current:
            return
        write_state(self._disk, CHANGES_PATH, msgspec.json.encode(changes))
        self.current, self._changes = changed, changes
        log.info("settings changed", **{key.replace(".", "_"): text for key, text in wanted.items()})
        for listener in self._listeners:
            listener(changed)

    def told(self) -> Told:
        """Returns the settings in force as they are told. They take milliseconds to write, so they are kept until a
        change."""
        if self._told is None or self._told.settings is not self.current:
            self._told = Told(self.current, self._as_properties(self.current), self._origins())
        return self._told

    def _as_properties(self, settings: Settings) -> str:
        host, port = split_address(settings.node.listen)
        found = {
            "brokerId": str(settings.follower_broker_id),
            "enableDLegerCommitLog": "true",
            "listenPort": str(port),
            "brokerIP1": settings.node.advertise or host,
            **_FIXED,
            "useTLS": str(bool(settings.tls.certificate) and settings.tls.mode != "disabled").lower(),
        }
        # RocketMQ's names first, which mqadmin's users know; settings without one follow under their own names.
        named: set[str] = set()
        for key, setting in _SETTING_OF.items():
            named.add(setting)
            if setting not in SECRETS:
                found.setdefault(key, _text(setting, _value(settings, setting)))
        for table in _TABLES:
            for name in getattr(settings, table).__struct_fields__:
                setting = f"{table}.{name}"
                if setting not in named and setting not in SECRETS:
                    found[setting] = _text(setting, _value(settings, setting))
        return "".join(properties_file.line(key, found[key]) for key in found)

    def _origins(self) -> Origins:
        # Parts of the address have names of their own.
        names = {
            "node.listen": ["node.listen", "listenPort"],
            "node.advertise": ["node.advertise", "brokerIP1"],
        }
        for key, setting in _SETTING_OF.items():
            names.setdefault(setting, []).append(key)

        def told(settings: Iterable[str]) -> tuple[str, ...]:
            return tuple(name for setting in settings for name in names.get(setting, [setting]))

        return Origins(
            changed=told(dict.fromkeys(map(_setting, self._changes))),
            given=told(differing(self._from_file)),
            changeable=told(sorted(CHANGEABLE)),
        )


def differing(settings: Settings | NameServerSettings) -> dict[str, object]:
    """Returns the settings that are not the defaults, a broker's by ``table.field``; of secrets only that they are
    set.
    """
    if isinstance(settings, NameServerSettings):
        return dict(_differing(settings, NameServerSettings(), ""))
    defaults = Settings()
    found: dict[str, object] = {}
    for table in _TABLES:
        found.update(_differing(getattr(settings, table), getattr(defaults, table), f"{table}."))
    return found


def _differing(own: SettingsTable, default: SettingsTable, prefix: str) -> Iterator[tuple[str, object]]:
    for field in own.__struct_fields__:
        name, value = prefix + field, getattr(own, field)
        if value != getattr(default, field) and field != "warnings":
            yield name, "(set)" if name in SECRETS else value


def _setting(key: str) -> str:
    return _SETTING_OF.get(key, key)


def _changed(settings: Settings, wanted: Mapping[str, str]) -> Settings:
    """Returns the settings of the node's file with all changes that were made since. Raises ChangeRefusedError."""
    values: dict[str, Any] = {}
    for key, text in wanted.items():
        setting, value = _read(key, text)
        if _value(settings, setting) != value and setting not in CHANGEABLE:
            raise ChangeRefusedError(
                f"{key} cannot change while the broker runs: set it in the broker's file and start it again"
            )
        values[setting] = value
    # RocketMQ knows no order between its disk limits: whoever moves one under its names has the others follow.
    if any(_SETTING_OF.get(key) in _DISK_LIMITS for key in wanted):
        values |= _following_limits(settings, values)
    for setting, value in values.items():
        table, _, field = setting.partition(".")
        new_table = msgspec.structs.replace(getattr(settings, table), **{field: value})
        settings = msgspec.structs.replace(settings, **{table: new_table})
    try:
        check_broker(settings)
    except ImpossibleSettingError as error:
        raise ChangeRefusedError(f"{error.setting}: {error.reason}") from None
    return settings


def _following_limits(settings: Settings, changed: Mapping[str, Any]) -> dict[str, Any]:
    """The limits of the disk's use that follow those that were changed or set, as those of a `broker.conf` do."""
    default = RetentionSettings()
    given: dict[str, int] = {}
    for name in DISK_LIMITS:
        value = changed.get(f"retention.{name}", getattr(settings.retention, name))
        if f"retention.{name}" in changed or value != getattr(default, name):
            given[name] = value
    return {f"retention.{name}": given[followed] for name, followed in following_limits(given).items()}


def _read(key: str, text: str) -> tuple[str, Any]:
    """The setting that a key means, and its value. Raises ChangeRefusedError."""
    # RocketMQ's key, as mqadmin sends it, or Trivet's own name of the setting.
    meaning = rocketmq_keys.BROKER_KEYS.get(key)
    setting = key if meaning is None else meaning.setting
    table, _, name = setting.partition(".")
    fields = msgspec.structs.fields(getattr(Settings(), table)) if table in _TABLES else ()
    field = next((field for field in fields if field.name == name), None)
    if field is None:
        reason = rocketmq_keys.BROKER_KEYS_WITHOUT_EFFECT.get(key)
        if reason is not None:
            raise ChangeRefusedError(f"{key} has no effect here: {reason}")
        known = [*rocketmq_keys.BROKER_KEYS, *rocketmq_keys.BROKER_KEYS_WITHOUT_EFFECT]
        raise ChangeRefusedError(f"{key} is no key of a broker{nearest(key, known)}")
    try:
        value: object = text if meaning is None else meaning.read(text.strip())
        if meaning is None and not isinstance(getattr(getattr(Settings(), table), name), str):
            value = msgspec.json.decode(text)
        return setting, msgspec.convert(value, field.type)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        # The text of a `Meaning.read` says what is allowed.
        allowed = (
            str(error) if type(error) is ValueError else expected_value(msgspec.inspect.type_info(field.type))
        )
        raise ChangeRefusedError(f"{key} = {text}: must be {allowed}") from None


def _value(settings: Settings, setting: str) -> Any:
    table, _, field = setting.partition(".")
    return getattr(getattr(settings, table), field)


def _text(setting: str, value: object) -> str:
    """A value in RocketMQ's notation, where it has one."""
    match setting:
        case "storage.flush":
            return f"{str(value).upper()}_FLUSH"
        case "broker.permission":
            return {"none": "0", "write": "2", "read": "4", "read-write": "6"}[str(value)]
        case "tls.client_auth":
            return "require" if value == "required" else str(value)
        case "raft.peers" if isinstance(value, dict):
            return ";".join(f"{node}-{address}" for node, address in value.items())
        case "retention.delete_hours" if isinstance(value, tuple):
            return ";".join(f"{hour:02d}" for hour in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ";".join(map(str, value))
    return str(value) if isinstance(value, str | int) else msgspec.json.encode(value).decode()
