"""Warnings at a server's start that nothing else would give: what it leaves to everyone, and files that hold a secret
and can be read by others than their owner."""

from collections.abc import Iterator
from pathlib import Path

import structlog

from broker.settings.openness import left_open
from broker.settings.tables import NameServerSettings, Settings
from log.files.private_files import mode_open_to_others

log = structlog.get_logger("trivet.secrets")


def warn_of_readable_secrets(settings: Settings | NameServerSettings, settings_file: Path | None) -> None:
    """Logs a warning for each file with a secret of this server that its mode opens to others.

    `settings_file` is where the settings come from, if from a file.
    """
    for file, secret in _secret_files(settings, settings_file):
        mode = mode_open_to_others(file)
        if mode is not None:
            log.warning(
                "others may read a secret", file=str(file), mode=mode, secret=secret, remedy="chmod 600"
            )


def tell_what_is_open(settings: Settings | NameServerSettings) -> None:
    """Logs in one line what the server leaves to everyone who can connect, and the settings that close it."""
    found = left_open(settings)
    if found:
        log.warning("open to everyone", what=", ".join(found), settings=", ".join(found.values()))


def _secret_files(
    settings: Settings | NameServerSettings, settings_file: Path | None
) -> Iterator[tuple[str | Path, str]]:
    within = []
    if settings.tls.key_password:
        within.append("the password of the TLS key")
    if isinstance(settings, Settings):
        accounts, registration_secret = settings.acl.file, settings.node.registration_secret
        if settings.raft.peer_secret:
            within.append("raft.peer_secret")
    else:
        accounts, registration_secret = settings.acl_file, settings.registration_secret
    if registration_secret:
        within.append("registration_secret")
    if accounts:
        yield accounts, "the keys of accounts"
    if settings.tls.key:
        yield settings.tls.key, "the TLS key"
    if within and settings_file is not None:
        yield settings_file, ", ".join(within)
