"""Asking servers about themselves: one connection and one request for each question, without an event loop.

Nothing is kept open in between: these questions are asked of servers that are starting, stopping or dead, and a fresh
connection is the honest test of whether one is there. The calls block. So a command that asks and prints imports
neither Trio nor the client, which would take longer than the question; who runs in Trio finds the same questions in
:mod:`broker.tools.cluster.query`.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypedDict, Unpack

import msgspec

from broker.client.errors import (
    BrokerError,
    CallTimeout,
    ClientError,
    ConnectFailed,
    ConnectionFailed,
    ConnectionLost,
)
from broker.remoting.addresses import split_address
from broker.remoting.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, encode_head, request
from broker.remoting.errors import FrameError, RemotingError
from broker.remoting.frame import FrameDecoder
from broker.remoting.json_body import make_decoder
from broker.remoting.node_status import NodeStatus, decode_node_status
from broker.remoting.route import ClusterInfo

if TYPE_CHECKING:
    import ssl

    from broker.client.transport.credentials import Credentials, Signer

ASK_TIMEOUT_S = 3.0
_RECEIVE_BYTES = 64 * 1024
make_decoder(ClusterInfo)  # answers are read by threads


class Identity(TypedDict, total=False):
    """The identity of a client: the options ``tls`` and ``credentials`` of all clients."""

    tls: ssl.SSLContext | None
    credentials: Credentials | None


class Asking(Identity, total=False):
    """The options of `ask`, which all questions have."""

    timeout_s: float


def ask(
    address: str,
    code: int,
    fields: Mapping[str, str] | None = None,
    *,
    timeout_s: float = ASK_TIMEOUT_S,
    tls: ssl.SSLContext | None = None,
    credentials: Credentials | None = None,
) -> RemotingCommand:
    """Send one request on a connection of its own; returns the response.

    Raises ConnectFailed, ConnectionLost, CallTimeout, or BrokerError for a code other than 0.
    """
    line = _Line(address, time.monotonic() + timeout_s, timeout_s, tls)
    try:
        if credentials is not None:
            line.introduce(credentials)
        reply = line.call(code, fields)
    finally:
        line.close()
    if reply.code != ResponseCode.SUCCESS:
        raise BrokerError(reply.code, reply.remark, address)
    return reply


class _Line:
    """A connection on which one question after the other is asked, until a deadline."""

    def __init__(self, address: str, deadline_s: float, timeout_s: float, tls: ssl.SSLContext | None) -> None:
        self._address = address
        self._deadline_s = deadline_s
        self._timeout_s = timeout_s
        self._decoder = FrameDecoder()
        self._opaque = 0
        self._signer: Signer | None = None
        try:
            host, port = split_address(address)
            self._socket = socket.create_connection((host, port), timeout_s)
        except TimeoutError:
            raise ConnectFailed(address, f"no connection within {timeout_s:g} s") from None
        except ValueError as error:  # UnicodeError among them, for a host that is no name
            raise ConnectFailed(address, str(error)) from error
        except OSError as error:
            raise ConnectFailed(address, error.strerror or str(error)) from error
        if tls is not None:
            self._secure(tls, host)

    def _secure(self, tls: ssl.SSLContext, host: str) -> None:
        try:
            self._socket.settimeout(self._left_s())
            self._socket = tls.wrap_socket(self._socket, server_hostname=host, suppress_ragged_eofs=True)
        except TimeoutError:
            self.close()
            raise ConnectFailed(self._address, f"no connection within {self._timeout_s:g} s") from None
        except OSError as error:
            self.close()
            raise ConnectFailed(self._address, _tls_reason(error)) from error

    def introduce(self, credentials: Credentials) -> None:
        """Get the server's greeting, and sign all later requests of this connection. Raises as `call`."""
        from broker.client.transport.credentials import Signer
        from broker.requests.greeting import PATIENCE_S, PROBE_CODE, PROBE_FIELDS, GreetingError

        greeting = self._send(RequestCode.TRIVET_GREETING, None)
        reply = self._receive(greeting, min(self._deadline_s, time.monotonic() + PATIENCE_S))
        if reply is None:
            reply = self._receive(greeting, self._deadline_s, self._send(PROBE_CODE, PROBE_FIELDS))
        try:
            self._signer = Signer(credentials, reply)
        except GreetingError as error:
            raise ConnectFailed(self._address, str(error)) from error

    def call(self, code: int, fields: Mapping[str, str] | None) -> RemotingCommand:
        """Send a request and return its response, whatever its code. Raises CallTimeout, ConnectionLost."""
        reply = self._receive(self._send(code, fields), self._deadline_s)
        if reply is None:
            raise CallTimeout(self._address, f"no response within {self._timeout_s:.3g} s", request_left=True)
        return reply

    def _send(self, code: int, fields: Mapping[str, str] | None) -> int:
        """Send a request; returns its opaque."""
        self._opaque += 1
        command = request(code, fields, opaque=self._opaque, language="PYTHON")
        if self._signer is not None:
            self._signer.sign(command)
        try:
            self._socket.settimeout(self._left_s())
            self._socket.sendall(encode_head(command, 0))
        except OSError as error:
            raise self._lost(error) from error
        return self._opaque

    def _receive(self, opaque: int, deadline_s: float, other: int = 0) -> RemotingCommand | None:
        """Wait for the response to a request; None if there is none until then, or that to `other` comes first."""
        while True:
            try:
                self._socket.settimeout(max(deadline_s - time.monotonic(), 0.001))
                data = self._socket.recv(_RECEIVE_BYTES)
            except TimeoutError:
                return None
            except OSError as error:
                raise self._lost(error) from error
            if not data:
                raise ConnectionLost(self._address, "the peer closed the connection", request_left=True)
            try:
                commands = self._decoder.feed(data)
            except FrameError as error:
                reason = f"the peer sent what is no frame: {error}"
                raise ConnectionLost(self._address, reason, request_left=True) from error
            # Others may come on this connection: requests of a broker to its clients, and late answers.
            for command in commands:
                if command.flag & FLAG_RESPONSE and command.opaque in (opaque, other):
                    return command if command.opaque == opaque else None

    def _left_s(self) -> float:
        # Connecting has used a part of the time.
        return max(self._deadline_s - time.monotonic(), 0.001)

    def _lost(self, error: OSError) -> ConnectionFailed:
        return ConnectionLost(self._address, f"connection lost: {_tls_reason(error)}", request_left=True)

    def close(self) -> None:
        self._socket.close()


def _tls_reason(error: OSError) -> str:
    from broker.client.transport.tls_words import tls_failure

    return tls_failure(error) or error.strerror or str(error)


def node_status(address: str, **options: Unpack[Asking]) -> NodeStatus:
    """One broker's status; raises ClientError."""
    try:
        reply = ask(address, RequestCode.TRIVET_NODE_STATUS, **options)
    except BrokerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        remark = "it is no Trivet broker, and tells no status; mqadmin clusterList shows RocketMQ's"
        raise BrokerError(error.code, remark, address) from error
    try:
        return decode_node_status(reply.body)
    except msgspec.MsgspecError as error:
        raise BrokerError(reply.code, f"its status is not understood: {error}", address) from error


def cluster_info(name_server: str, **options: Unpack[Asking]) -> ClusterInfo:
    """Every registered broker; raises ClientError."""
    reply = ask(name_server, RequestCode.GET_BROKER_CLUSTER_INFO, **options)
    try:
        return ClusterInfo.decode(reply.body)
    except RemotingError as error:
        raise BrokerError(
            reply.code, f"its cluster information is not understood: {error}", name_server
        ) from error


class AskedBroker(msgspec.Struct, frozen=True, kw_only=True):
    """One broker, and its own status or the reason why there is none. Its cluster and group are "" if neither it nor
    the name server told them."""

    cluster: str = ""
    group: str = ""
    broker_id: int | None = None
    """The registered id, 0 for the leader. None where no name server was asked."""
    address: str
    status: NodeStatus | None
    error: str | None


def registered_brokers(name_server: str, **options: Unpack[Asking]) -> list[AskedBroker]:
    """Every broker that the name server knows, each asked for its status at the same time; sorted by group and address.

    Raises ClientError if the name server does not answer; a broker that does not is in the list with the reason.
    """
    info = cluster_info(name_server, **options)
    registered = [
        (broker.cluster, name, broker_id, address)
        for name, broker in info.broker_table.items()
        for broker_id, address in broker.broker_addresses.items()
    ]
    asked = brokers_at((address for *_, address in registered), **options)
    answers = {broker.address: broker for broker in asked}
    return sorted(
        (
            msgspec.structs.replace(answers[address], cluster=cluster, group=group, broker_id=broker_id)
            for cluster, group, broker_id, address in registered
        ),
        key=_place,
    )


def brokers_at(addresses: Iterable[str], **options: Unpack[Asking]) -> list[AskedBroker]:
    """These brokers, each asked for its status at the same time; sorted as `registered_brokers`.

    Nobody else is asked, so that this works while a group has no leader and is registered nowhere.
    """
    found: list[AskedBroker] = []

    def inquire(address: str) -> None:
        try:
            status = node_status(address, **options)
        except ClientError as failure:
            found.append(AskedBroker(address=address, status=None, error=str(failure)))
        else:
            found.append(
                AskedBroker(
                    cluster=status.cluster, group=status.group, address=address, status=status, error=None
                )
            )

    # A thread for each: one that does not answer keeps nobody waiting beyond its own time limit.
    threads = [
        threading.Thread(target=inquire, args=(address,), daemon=True) for address in dict.fromkeys(addresses)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(found, key=_place)


def _place(broker: AskedBroker) -> tuple[str, str, str]:
    return broker.cluster, broker.group, broker.address
