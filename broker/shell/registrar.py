"""Keeps a node registered with one name server (behaviour.md 2).

The registration is repeated every `interval_s`, and sent at once when there is something new to say (a role, a topic)
or the connection was lost: a name server forgets a broker whose connection closes. One task per name server, so that
one that is down delays no other.
"""

import ssl
from collections.abc import Callable
from typing import Final

import structlog
import trio

from broker.remoting.addresses import split_address
from broker.remoting.command import RemotingCommand, encode
from broker.remoting.errors import FrameError
from broker.remoting.frame import FrameDecoder

log = structlog.get_logger("trivet.registrar")

_TIMEOUT_S: Final = 6.0
_RETRY_S_MIN: Final = 0.1
_RETRY_S_MAX: Final = 1.0


class _RegistrationTooLargeError(Exception):
    """More topics than a frame can name."""


class Changes:
    """Tells waiting tasks that a version has risen."""

    def __init__(self) -> None:
        self.version = 0
        self._changed = trio.Event()

    def set(self, version: int) -> None:
        """The version is now this one."""
        if version != self.version:
            self.version = version
            self._changed.set()
            self._changed = trio.Event()

    async def wait_other_than(self, version: int) -> None:
        """Returns once the version is not `version`."""
        while self.version == version:
            await self._changed.wait()


class Registrar:
    """Registers with the name server at `address`; `registration` gives the command, or None before there is a role."""

    def __init__(
        self,
        address: str,
        registration: Callable[[], RemotingCommand | None],
        unregistration: Callable[[], RemotingCommand | None],
        changes: Changes,
        interval_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._address = address
        self._registration = registration
        self._unregistration = unregistration
        self._changes = changes
        self._interval_s = interval_s
        self._tls = tls
        self._opaque = 0
        self._stream: trio.abc.Stream | None = None

    async def run(self) -> None:
        """Registers again and again, until cancelled."""
        retry_s = _RETRY_S_MIN
        complaint = ""
        while True:
            try:
                with trio.fail_after(_TIMEOUT_S):
                    stream = await self._connect()
            except (OSError, UnicodeError, trio.TooSlowError, trio.BrokenResourceError) as error:
                reason = _reason(error)
                if reason != complaint:  # an address that is wrong, or a server that is down, is told once
                    complaint = reason
                    log.warning("no connection to a name server", address=self._address, reason=reason)
                await trio.sleep(retry_s)
                retry_s = min(2 * retry_s, _RETRY_S_MAX)
                continue
            retry_s = _RETRY_S_MIN
            complaint = ""
            async with stream:
                try:
                    self._stream = stream
                    await self._serve(stream)
                except* (
                    OSError,
                    trio.BrokenResourceError,
                    trio.TooSlowError,
                    FrameError,
                    _RegistrationTooLargeError,
                ) as group:
                    reason = "; ".join(str(error) or type(error).__name__ for error in group.exceptions)
                    log.warning("name server lost", address=self._address, reason=reason)
                finally:
                    self._stream = None
            await trio.sleep(retry_s)

    async def _connect(self) -> trio.abc.Stream:
        host, port = split_address(self._address)
        stream = await trio.open_tcp_stream(host, port)
        if self._tls is None:
            return stream
        secure = trio.SSLStream(stream, self._tls, server_hostname=host, https_compatible=True)
        try:
            await secure.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return secure

    async def _serve(self, stream: trio.abc.Stream) -> None:
        answers = trio.Event()
        decoder = FrameDecoder()

        async def read() -> None:
            nonlocal answers
            while data := await stream.receive_some(65_536):
                for command in decoder.feed(bytes(data)):
                    if command.code != 0:
                        log.warning(
                            "registration refused",
                            address=self._address,
                            code=command.code,
                            remark=command.remark,
                        )
                    answers.set()
            raise trio.BrokenResourceError("the name server closed the connection")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            while True:
                version = self._changes.version
                command = self._registration()
                if command is not None:
                    answers = trio.Event()
                    await self._send(stream, command)
                    with trio.fail_after(_TIMEOUT_S):
                        await answers.wait()
                with trio.move_on_after(self._interval_s):
                    await self._changes.wait_other_than(version)

    async def unregister(self) -> None:
        """Says goodbye, if connected; for an orderly stop."""
        command = self._unregistration()
        if self._stream is not None and command is not None:
            with trio.move_on_after(1.0):
                try:
                    await self._send(self._stream, command)
                except (OSError, trio.BrokenResourceError, trio.BusyResourceError):
                    return  # the name server will notice by itself

    async def _send(self, stream: trio.abc.Stream, command: RemotingCommand) -> None:
        self._opaque += 1
        command.opaque = self._opaque
        try:
            data = encode(command)
        except ValueError as error:
            raise _RegistrationTooLargeError(f"the registration cannot be sent: {error}") from error
        await stream.send_all(data)


def _reason(error: Exception) -> str:
    """Why there is no connection, in words that stay the same while it is the same."""
    if isinstance(error, trio.TooSlowError):
        return f"no connection within {_TIMEOUT_S:g} s"
    cause = error.__cause__
    if isinstance(cause, ExceptionGroup):  # one for each address of a host
        return str(cause.exceptions[0])
    if not isinstance(error, trio.BrokenResourceError):
        return str(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not good: {cause.verify_message}"
    return f"TLS handshake failed: {cause or error}"
