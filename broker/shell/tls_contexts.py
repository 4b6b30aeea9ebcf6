"""TLS contexts from settings.

A server shows one certificate to clients, and the same to name servers and peers that ask for one. It believes three
authorities: `client_ca` for clients, `name_server_ca` for the name servers that a broker registers with, and `peer_ca`
for the nodes of its group. With one authority for all, every client's certificate would be good for a peer.

TLS 1.2 and 1.3 are spoken, without renegotiation. A file that cannot be used is reported with the setting that names
it.
"""

import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import structlog

from broker.settings.rules import ImpossibleSettingError
from broker.settings.tables import TlsSettings

log = structlog.get_logger("trivet.tls")

_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def server_context(tls: TlsSettings, prefix: str = "tls.") -> ssl.SSLContext | None:
    """Returns the context for connections of clients, or None where they cannot encrypt.

    `prefix` begins the names of settings in messages. Raises `ImpossibleSettingError` for a file that cannot be used.
    """
    if tls.mode == "disabled" or not tls.certificate:
        return None
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    _show_certificate(context, tls, prefix)
    if tls.client_auth != "none":
        _trust(context, tls.client_ca, f"{prefix}client_ca")
    context.verify_mode = _VERIFY[tls.client_auth]
    return context


def ask_brokers(context: ssl.SSLContext, authority: str, setting: str) -> None:
    """Has a server ask for certificates of the brokers' authority; who shows none is let in all the same.

    It is the only authority whose certificates the server believes: OpenSSL does not tell of which of several one is.
    Raises `ImpossibleSettingError` for a file that cannot be used.
    """
    assert context.verify_mode is ssl.CERT_NONE, "no certificates of others are asked for"
    _trust(context, authority, setting)
    context.verify_mode = ssl.CERT_OPTIONAL


def name_server_context(tls: TlsSettings) -> ssl.SSLContext | None:
    """Returns the context for a broker's connections to its name servers, or None for connections in the clear.

    Raises `ImpossibleSettingError` for a file that cannot be used.
    """
    if not tls.name_server_ca:
        return None
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    _trust(context, tls.name_server_ca, "tls.name_server_ca")
    if tls.certificate:
        _show_certificate(context, tls, "tls.")
    return context


@dataclass(frozen=True, slots=True)
class PeerContexts:
    """The contexts for the links of a group, in which both ends show a certificate of the group's own authority.

    Names in certificates are not compared with addresses: the authority certifies nothing but nodes of this group, and
    a peer says itself which of them it is.
    """

    dialling: ssl.SSLContext
    accepting: ssl.SSLContext

    @property
    def both(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """Both contexts, for what is to be done to each of them."""
        return self.dialling, self.accepting


def peer_contexts(tls: TlsSettings) -> PeerContexts | None:
    """Returns None for links in the clear. Raises `ImpossibleSettingError` for a file that cannot be used."""
    if not tls.peer_ca:
        return None
    dialling, accepting = _context(ssl.PROTOCOL_TLS_CLIENT), _context(ssl.PROTOCOL_TLS_SERVER)
    dialling.check_hostname = False
    for context in (dialling, accepting):
        context.verify_mode = ssl.CERT_REQUIRED
        _trust(context, tls.peer_ca, "tls.peer_ca")
        _show_certificate(context, tls, "tls.")
    return PeerContexts(dialling, accepting)


def reload_certificates(
    contexts: Iterable[ssl.SSLContext | None], tls: TlsSettings, prefix: str = "tls."
) -> bool:
    """Reads the certificate anew, for connections that begin from now on. Returns False if it could not.

    Files that cannot be used are logged and change nothing, unless they are replaced while they are read: then some of
    the contexts may show the new certificate already. Authorities are read at the start only: OpenSSL has no way
    to take one away from a context.
    """
    if not tls.certificate:
        return False
    try:
        # Tried on a context of nobody's: files that cannot be used must not change one that is in use.
        _show_certificate(_context(ssl.PROTOCOL_TLS_SERVER), tls, prefix)
        # The files may be replaced in this very moment: whoever does that asks to have them read once more.
        for context in contexts:
            if context is not None:
                _show_certificate(context, tls, prefix)
    except ImpossibleSettingError as error:
        log.warning("certificate not reloaded", setting=error.setting, reason=error.reason)
        return False
    log.info("certificate reloaded", file=tls.certificate)
    return True


def client_context(ca: str, certificate: str, key: str) -> ssl.SSLContext:
    """Returns the context of a client.

    `ca` is the file of the authorities that it believes, "" for the system's. `certificate` and `key` are the files
    that it shows itself, if any. Raises `ImpossibleSettingError`, which names the file.
    """
    if bool(certificate) != bool(key):
        raise ImpossibleSettingError("tls", "a certificate and its key go together")
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    if ca:
        _trust(context, ca, "tls_ca")
    else:
        context.load_default_certs()
    if certificate:
        _show_certificate(context, TlsSettings(certificate=certificate, key=key), "tls_")
    return context


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # TLS 1.2 has it: one connection could have handshakes computed again and again, of which `Handshakes` would not
    # know.
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def _show_certificate(context: ssl.SSLContext, tls: TlsSettings, prefix: str) -> None:
    """Has a context show the certificate of the settings. Raises `ImpossibleSettingError` for files that do not do."""
    for name, path in (("certificate", tls.certificate), ("key", tls.key)):
        _check_readable(path, prefix + name)
    try:
        # The password is always given: without one OpenSSL would ask at the terminal for an encrypted key's.
        context.load_cert_chain(tls.certificate, tls.key, lambda: tls.key_password)
    except ssl.SSLError as error:
        raise ImpossibleSettingError(
            f"{prefix}key", f"{tls.key} with the certificate {tls.certificate}: {_reason(error)}"
        ) from error
    except OSError as error:  # both could be read a moment ago
        raise ImpossibleSettingError(
            f"{prefix}certificate", f"{tls.certificate} or {tls.key}: {error.strerror}"
        ) from error


def _trust(context: ssl.SSLContext, path: str, setting: str) -> None:
    """Has a context believe the authorities in a file. Raises `ImpossibleSettingError`, which names the setting."""
    _check_readable(path, setting)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ImpossibleSettingError(setting, f"{path}: {_reason(error)}") from error


def _check_readable(path: str, setting: str) -> None:
    """Raises `ImpossibleSettingError`, which names the setting, for a file that cannot be read."""
    try:
        Path(path).read_bytes()
    except OSError as error:
        raise ImpossibleSettingError(setting, f"{path}: {error.strerror}") from error


def _reason(error: ssl.SSLError) -> str:
    reason: str | None = error.reason  # None for text that is no PEM, whatever its declared type says
    match reason:
        case "KEY_VALUES_MISMATCH":
            return "the key is not the certificate's"
        case "NO_CERTIFICATE_OR_CRL_FOUND":
            return "there is no PEM certificate in it"
        case "BAD_DECRYPT" | "BAD_PASSWORD_READ":
            return "the key is encrypted, and the password is wrong"
        case None:
            return "not PEM, or not a certificate and a key"
    return reason.replace("_", " ").lower()
