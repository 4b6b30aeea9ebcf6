"""Keeps a node registered with one name server.

The registration is repeated at an interval, and sent at once when there is something new to say (a role, a topic) or
when the connection was lost: a name server forgets a broker whose connection closes. Each name server has a registrar
of its own, so that one that is down delays no other. A registrar is the user of a line (broker/requests/line.py):
AWAITS means the response to a registration, UP that nothing is to be said before the interval is over.

A route without a master fails clients: one that looks in that moment gives up, or asks again seconds later. So a node
that led keeps its place as the master, where it forwards what comes, until the name server knows another one: it asks
before it registers as a follower.
"""

from collections.abc import Callable
from typing import Final

import structlog

from broker.access.frame_signature import sign_frame
from broker.access.name_server_control import BROKERS
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, encode, request
from broker.remoting.errors import RemotingError
from broker.remoting.frame import BrokenStreamError, FrameDecoder
from broker.remoting.name_server_headers import BrokerIdentityHeader, RegisterBrokerHeader
from broker.remoting.route import MASTER_ID, ClusterInfo
from broker.requests.connection import Outgoing
from broker.requests.deadline import MS, Time
from broker.requests.greeting import PROBE_CODE, PROBE_FIELDS, GreetingError, read_greeting
from broker.requests.line import Line, LineState, Patience, Surroundings

log = structlog.get_logger("trivet.registrar")

_PROBE: Final = 0
"""The opaque of the probe behind a greeting; those of all other requests are higher."""

PATIENCE: Final = Patience(
    connect_ns=6_000 * MS,
    answer_ns=6_000 * MS,
    rest_ns_min=100 * MS,
    rest_ns_max=1_000 * MS,
)


_Header = RegisterBrokerHeader | BrokerIdentityHeader
"""The header of a registration, or of the goodbye of a node that was removed from its group."""

HEIR_ASKED_NS: Final = 20 * MS
"""The time between two questions whether the group's new leader is registered."""

HEIR_NS: Final = 2_000 * MS
"""A node that led stays the master for so long at most, whether another one is registered or not."""


class Registrar:
    """The registrar of one name server. `registration` and `unregistration` return None as long as there is nothing to
    say. With `secret` they are signed, if the name server greets."""

    def __init__(
        self,
        address: str,
        registration: Callable[[], RemotingCommand | None],
        unregistration: Callable[[], RemotingCommand | None],
        interval_ns: int,
        *,
        secret: str = "",
        surroundings: Surroundings,
        time: Time,
        outgoing: Outgoing,
        dial: Callable[[Line], None],
    ) -> None:
        self._registration = registration
        self._unregistration = unregistration
        self._interval_ns = interval_ns
        self._time = time
        self._decoder = FrameDecoder()
        self._secret = secret
        self._nonce: bytes | None = None
        """The nonce of the name server's greeting on this connection; None: requests are not signed."""
        self._greets = False
        """The response that is awaited is a greeting."""
        self._asks_for_heir = False
        """The response that is awaited says who the master is. Never with `_greets`: it takes a registration before."""
        self._heir_until_ns: int | None = None
        """The time at which this node stops waiting for another master; None while it does not wait."""
        self._says: _Header | None = None
        """The registration that was sent last, or that waits until it is known who the master is."""
        self._opaque = 0
        """The opaque of the newest request."""
        self._has_news = False
        """True if something has changed since the registration that is under way was made."""
        self._complaint = ""
        # Never a master that is not registered. Both end with the connection.
        self.is_registered = False
        """The name server has taken a registration, over a connection that lasts."""
        self.is_master = False
        """The last registration taken was a master's, and no other node is known to have taken that place."""
        self.line = Line(
            f"name server {address}",
            address,
            PATIENCE,
            self,
            surroundings=surroundings,
            time=time,
            outgoing=outgoing,
            dial=dial,
        )

    def changed(self) -> None:
        """Says what is new: at once, or behind the response that is awaited, or when there is a connection."""
        self._has_news = True
        if self.line.state is LineState.UP:
            self._register()

    def say_goodbye(self) -> None:
        """Unregisters the node, if it is connected, and ends; `line.is_closed` when that is written."""
        if self.line.state is LineState.AWAITS or self.line.state is LineState.UP:
            # Before it is greeted it can sign nothing, and has registered nothing on this connection.
            command = None if self._greets else self._unregistration()
            if command is not None:
                self._send(command)
        self.line.finish()

    # ------------------------------------------------------------------ as the user of a line

    def opened(self) -> None:
        """Registers: whatever the name server knew of this node it has forgotten with the last connection."""
        self._decoder = FrameDecoder()
        self._nonce = None
        self._greets = bool(self._secret)
        self._asks_for_heir = False
        if self._greets:
            self.line.awaits()
            self._send(request(RequestCode.TRIVET_GREETING))
            # RocketMQ's name servers leave a greeting without a response. Whether this is one, the response to this
            # question tells (greeting.py).
            self.line.connection.send(encode(request(PROBE_CODE, PROBE_FIELDS, opaque=_PROBE)))
        else:
            self._register()

    def received(self, data: bytes) -> None:
        """Takes the response to the newest registration. Requests, which name servers of RocketMQ 5 send, are
        ignored.
        """
        try:
            commands = self._decoder.feed(data)
        except BrokenStreamError as error:
            self.line.refuse(str(error))
            return
        for command in commands:
            if not command.is_response or self.line.state is not LineState.AWAITS:
                continue
            if self._greets and command.opaque == _PROBE:
                self._not_greeted()
            # A response to an earlier request says what was so before the newest one.
            elif command.opaque == self._opaque:
                if self._greets:
                    self._greeted(command)
                elif self._asks_for_heir:
                    self._told_of_master(command)
                else:
                    self._answered(command)

    def due(self) -> None:
        """Registers anew behind the interval."""
        self._register()

    def lost(self, was: LineState, reason: str) -> None:
        """Logs the reason, once however often it is met."""
        self.is_registered = self.is_master = False
        # A name server forgets a broker whose connection ends: there is no master's place to keep.
        self._heir_until_ns = None
        if reason != self._complaint and self.line.state is LineState.RESTS:
            self._complaint = reason
            event = "no connection to a name server" if was is LineState.CONNECTS else "name server lost"
            log.warning(event, address=self.line.address, reason=reason)

    # ------------------------------------------------------------------ inside

    def _register(self) -> None:
        self._has_news = False
        command = self._registration()
        if command is None:
            # This node has no role yet. It looks again behind the interval, if it has not heard of one before
            # (`changed`).
            self.line.up(self._time.now_ns + self._interval_ns)
            return
        header = command.header if isinstance(command.header, _Header) else None
        # A node that led keeps the master's place until this name server knows another one (the module says why).
        if self.is_master and header is not None and header.broker_id != MASTER_ID and self._may_wait():
            self._ask_for_master(header)
            return
        self._says = header
        if self.line.state is not LineState.AWAITS:
            self.line.awaits()
        try:
            self._send(command)
        except ValueError as error:  # more topics than a frame can name
            self.line.refuse(f"the registration cannot be sent: {error}")

    def _greeted(self, command: RemotingCommand) -> None:
        try:
            greeting = read_greeting(command)
        except GreetingError as error:
            self.line.refuse(str(error))
            return
        if greeting is None:
            self._not_greeted()
            return
        self._greets = False
        self._nonce, _ = greeting
        self._register()

    def _not_greeted(self) -> None:
        """Registers unsigned: with a name server of RocketMQ, or an older one, which takes it as it comes."""
        log.info("name server knows no secrets", address=self.line.address)
        self._greets = False
        self._register()

    def _may_wait(self) -> bool:
        """True while another master is waited for."""
        if self._heir_until_ns is None:
            self._heir_until_ns = self._time.now_ns + HEIR_NS
        return self._time.now_ns < self._heir_until_ns

    def _ask_for_master(self, header: _Header) -> None:
        assert not self._greets, "a greeting is answered before anything is registered"
        self._says = header
        self._asks_for_heir = True
        if self.line.state is not LineState.AWAITS:
            self.line.awaits()
        self._send(request(RequestCode.GET_BROKER_CLUSTER_INFO))

    def _told_of_master(self, command: RemotingCommand) -> None:
        """Registers as a follower if there is another master, or if nobody knows; else asks again in a moment."""
        self._asks_for_heir = False
        header = self._says
        assert header is not None, "it was asked for this node's own name"
        master: str | None = None
        if command.code == ResponseCode.SUCCESS:
            try:
                broker = ClusterInfo.decode(command.body).broker_table.get(header.broker_name)
            except RemotingError as error:
                self.line.refuse(str(error))
                return
            master = None if broker is None else broker.broker_addresses.get(MASTER_ID)
        # Due again soon, unless it registers now.
        self.line.up(self._time.now_ns + HEIR_ASKED_NS)
        # Another node has the place by now, or this name server knows of none at all: either way nothing is gained by
        # waiting.
        if master != header.broker_address:
            self.is_master = False
            self._register()

    def _answered(self, command: RemotingCommand) -> None:
        self.is_registered = command.code == ResponseCode.SUCCESS
        said = self._says
        self.is_master = self.is_registered and said is not None and said.broker_id == MASTER_ID
        self._heir_until_ns = None
        if not self.is_registered:
            log.warning(
                "registration refused", address=self.line.address, code=command.code, remark=command.remark
            )
        self._complaint = ""
        self.line.up(self._time.now_ns + self._interval_ns)
        # What changed while this registration was under way was not in it.
        if self._has_news:
            self._register()

    def _send(self, command: RemotingCommand) -> None:
        """Raises ValueError where no frame can carry it."""
        self._opaque += 1
        command.opaque = self._opaque
        if self._nonce is not None:
            sign_frame(BROKERS, self._secret, self._nonce, command)
        self.line.connection.send(encode(command))
