"""The options that the source and the sink have in common: who is asked, how, and for how long."""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.client.errors import UsageError
from broker.client.transport.credentials import Credentials
from broker.client.transport.routes import parse_name_servers
from broker.settings.rules import ImpossibleSettingError

DEFAULT_TIMEOUT_MS: Final = 60_000
_MOST_DIGITS: Final = 100
SECURITY_NAMES: Final = ("tls", "tlsCa", "tlsCert", "tlsKey", "accessKey", "secretKey")


class OptionError(ValueError):
    """An option is wrong; the message names it and says what is allowed."""


@dataclass(frozen=True, slots=True)
class Security:
    """The account that asks, and the encryption of connections. Files are read where a connection is made: on every
    executor."""

    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)

    def credentials(self) -> Credentials | None:
        """The account that signs requests, None without one."""
        return Credentials(self.access_key, self.secret_key) if self.access_key else None

    def tls_context(self) -> ssl.SSLContext | None:
        """The context of encrypted connections, None for connections in the clear. Raises OptionError."""
        if not self.tls:
            return None
        from broker.shell.tls_contexts import client_context

        try:
            return client_context(self.tls_ca, self.tls_cert, self.tls_key)
        except ImpossibleSettingError as error:
            name = {"tls_ca": "tlsCa", "tls_certificate": "tlsCert"}.get(error.setting, "tlsKey")
            raise OptionError(f"option {name}: {error.reason}") from None


def known_options(given: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """Return the options under their documented names, whatever their case. Raises OptionError for unknown ones."""
    names = {name.lower(): name for name in known}
    options: dict[str, str] = {}
    for written, value in given.items():
        name = names.get(written.lower())
        if name is None:
            option = "topic" if "topic" in known else "subscribe"
            hint = f"; topics are named by the option {option}" if written.lower() == "path" else ""
            raise OptionError(f"option {written}: unknown; known are {', '.join(known)}{hint}")
        options[name] = value
    return options


def name_servers_of(options: Mapping[str, str]) -> str:
    """Return the option nameServers. Raises OptionError."""
    name_servers = options.get("nameServers", "")
    try:
        parse_name_servers(name_servers)
    except UsageError as error:
        raise OptionError(f"option nameServers: {error}; give host:port, several joined by commas") from None
    return name_servers


def timeout_s_of(options: Mapping[str, str]) -> float:
    """Return the option timeoutMs, in seconds. Raises OptionError."""
    return (positive(options, "timeoutMs") or DEFAULT_TIMEOUT_MS) / 1000


def security_of(options: Mapping[str, str]) -> Security:
    """Return what the options say of TLS and of the account. Raises OptionError."""
    tls = options.get("tls", "").strip().lower()
    if tls not in ("", "true", "false"):
        raise OptionError(f"option tls is {tls!r}: true or false")
    ca, cert, key = (options.get(name, "") for name in ("tlsCa", "tlsCert", "tlsKey"))
    if tls == "false" and (ca or cert or key):
        raise OptionError("option tls is false, although a certificate or a key is given")
    if bool(cert) != bool(key):
        raise OptionError("the options tlsCert and tlsKey go together")
    account, secret = options.get("accessKey", ""), options.get("secretKey", "")
    if bool(account) != bool(secret):
        raise OptionError("the options accessKey and secretKey go together")
    return Security(tls == "true" or bool(ca or cert), ca, cert, key, account, secret)


def positive(options: Mapping[str, str], name: str) -> int | None:
    """Return a number of at least 1, None without the option. Raises OptionError."""
    if name not in options:
        return None
    number = number_of(name, options[name])
    if number == 0:
        raise OptionError(f"option {name} is 0: at least 1")
    return number


def number_of(name: str, text: str) -> int:
    """Return a number that is not negative and fits into 64 bits. Raises OptionError."""
    if not text.strip().isdecimal():
        raise OptionError(f"option {name} is {text!r}: a whole number, not negative")
    # int() refuses texts of thousands of digits in words of its own.
    if len(text) > _MOST_DIGITS or (number := int(text)) >= 1 << 63:
        raise OptionError(f"option {name} is {text:.40}: at most {(1 << 63) - 1}")
    return number
