"""The network between hosts: listeners, and connections that are streams of bytes with TCP's semantics.

What is delivered arrives in order and unchanged; everything else is at the mercy of the links. A link is one direction
between two hosts. It has a delay that varies, may lose segments (TCP sends them again: they and all behind them are
late), may be cut (what is under way waits, and arrives after the cut heals, unless somebody gives the connection up
first), or clogged (a window's worth is taken, then nothing). Bytes are copied when the "kernel" takes them and not
before: what a clogged connection has not taken yet can still change under the sender's hands, as with real sockets.

Losing, repeating and reordering single Raft messages is not TCP's to do; see `broker_host`.
"""

import errno
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simulation.randomness import Random, draw_range
from simulation.scheduler import MICROSECOND, MILLISECOND, SECOND, Scheduler, Timer, nothing

Buffer = bytes | bytearray | memoryview

WINDOW_BYTES = 256 * 1024
"""The bytes of a connection that may be under way, which the receiver has not taken yet: both sockets' buffers."""
_CLOGGED_WINDOW_BYTES = 4096
DELAY_MIN_NS = 30 * MICROSECOND
DELAY_MAX_NS = 150 * MICROSECOND
"""The longest delay of a link that nothing has happened to."""
_RETRANSMISSION_NS = 200 * MILLISECOND
_HEALING_NS = 50 * MILLISECOND


@dataclass(slots=True, eq=False)
class Link:
    """The link of one direction between two hosts."""

    random: Random
    delay_min_ns: int = DELAY_MIN_NS
    delay_max_ns: int = DELAY_MAX_NS
    loss: float = 0.0
    """The probability that a segment must be sent again."""
    cut: int = 0
    clogged: int = 0
    """The number of faults that clog it: one of them that ends does not end the others."""
    held_by: list[Callable[[], object]] = field(default_factory=list)
    """Called when a cut holds something up."""
    slowed_by: Callable[[], object] | None = None
    """Called when something takes longer than on other links."""


def _ignore(_: object) -> None:
    pass


@dataclass(slots=True, eq=False)
class Endpoint:
    """An end of a connection. `on_data`, `on_closed` and `on_writable` are set by its user."""

    _network: "Network"
    host: str
    address: str
    """The address of the remote end, as host:port."""
    link: Link
    peer: "Endpoint" = field(init=False)
    on_data: Callable[[bytes], object] = _ignore
    on_closed: Callable[[str], object] = _ignore
    on_writable: Callable[[], object] = nothing
    readable: bool = True
    """False while the process that owns this end does not read (it is paused, or does not want to)."""
    user_timeout_ns: int = 900 * SECOND
    """The time for which bytes may stay undelivered before this end gives the connection up (TCP_USER_TIMEOUT)."""
    _closed: bool = False
    _close_when_sent: bool = False
    _unsent: deque[Buffer] = field(default_factory=deque)
    # What the kernel has taken and the peer has not got: (arrival time, bytes; None for the end of the stream).
    _queue: deque[tuple[int, bytes | None]] = field(default_factory=deque)
    _in_flight_bytes: int = 0
    _last_arrival_ns: int = 0
    _stalled_since_ns: int = -1
    _timer: Timer | None = None

    @property
    def closed(self) -> bool:
        """True if this end is closed, by whichever side."""
        return self._closed

    @property
    def has_unsent(self) -> bool:
        """True while the kernel has not taken everything."""
        return bool(self._unsent)

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that the kernel has not taken yet."""
        return sum(map(len, self._unsent))

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Sends the buffers in order; what does not fit is sent later, as it is then."""
        if self._closed or self._close_when_sent or not buffers:
            return
        if not self._unsent:
            data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
            window = _CLOGGED_WINDOW_BYTES if self.link.clogged else WINDOW_BYTES
            if len(data) <= window - self._in_flight_bytes:
                self._enqueue(bytes(data))
                if self.on_writable is not nothing:
                    self.on_writable()
                return
        self._unsent.extend(buffers)
        self._fill()

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        """Sends what fits now; returns how many bytes were taken. Raises OSError when the connection is closed."""
        if self._closed:
            raise OSError(errno.EPIPE, "the connection is closed")
        room = self._window() - self._in_flight_bytes
        if self._unsent or room <= 0:
            return 0
        data = b"".join(buffers)[:room]
        self._enqueue(data)
        return len(data)

    def close(self) -> None:
        """Closes this end; what the kernel has taken is still delivered, then the other end sees the end."""
        if not self._closed:
            self._shut()
            # The end of the stream travels behind all that was sent, as data does.
            self._queue.append((self._arrival_ns(), None))
            self._schedule()

    def close_when_sent(self) -> None:
        """Closes as soon as everything queued has been taken."""
        if self._unsent:
            self._close_when_sent = True
        else:
            self.close()

    def reset(self) -> None:
        """Ends the connection now, at both ends; whatever was under way is lost."""
        for end, other in ((self, self.peer), (self.peer, self)):
            was_open = not end.closed
            end.vanish()
            if was_open:
                self._network.scheduler.after(0, end.on_closed, "connection reset by " + other.host)

    def vanish(self) -> None:
        """Lets the end vanish with its host's power: nothing more comes from here, and the other end is not told."""
        self._drop()

    def kick(self) -> None:
        """Tries again to deliver: what held the stream back may be gone."""
        if self._queue:
            self._schedule()
        if self._unsent:
            self._fill()

    # ---- inside --------------------------------------------------------------------------------------

    def _shut(self) -> None:
        """Closes the end for its owner; it stays known to the network while the kernel still has bytes to deliver."""
        self._closed = True
        self._unsent.clear()

    def _drop(self) -> None:
        self._shut()
        self._queue.clear()
        self._network.forget(self)

    def _window(self) -> int:
        return _CLOGGED_WINDOW_BYTES if self.link.clogged else WINDOW_BYTES

    def _fill(self) -> None:
        unsent = self._unsent
        room = self._window() - self._in_flight_bytes
        taken: list[Buffer] = []
        while unsent and room > 0:
            buffer = unsent[0]
            if len(buffer) > room:
                view = memoryview(buffer)
                taken.append(view[:room])
                unsent[0] = view[room:]
                room = 0
            else:
                taken.append(unsent.popleft())
                room -= len(buffer)
        # Copied only now, as by a kernel: what has not been taken may still change under the sender's hands.
        if taken:
            self._enqueue(b"".join(taken))
        if not unsent and self._close_when_sent:
            self.close()
        if taken:
            self.on_writable()

    def _enqueue(self, data: bytes) -> None:
        network = self._network
        random = self.link.random
        if len(data) > 1 and random.random() < network.split_probability:
            middle = random.randrange(1, len(data))
            self._queue.append((self._arrival_ns(), data[:middle]))
            self._queue.append((self._arrival_ns(), data[middle:]))
        else:
            self._queue.append((self._arrival_ns(), data))
        self._in_flight_bytes += len(data)
        timer = self._timer
        if timer is None or timer.callback is None:
            self._timer = network.scheduler.at(self._queue[0][0], self._deliver)

    def _arrival_ns(self) -> int:
        network, link = self._network, self.link
        delay = draw_range(link.random, link.delay_min_ns, link.delay_max_ns)
        if link.slowed_by is not None:
            link.slowed_by()
        if link.loss and link.random.random() < link.loss:
            network.fired("loss")
            delay += _RETRANSMISSION_NS
        arrival = network.scheduler.now_ns + delay
        # A segment that was lost holds up all behind it, as TCP keeps their order.
        if arrival < self._last_arrival_ns:
            return self._last_arrival_ns
        self._last_arrival_ns = arrival
        return arrival

    def _schedule(self) -> None:
        timer = self._timer
        if timer is None or timer.callback is None:
            self._timer = self._network.scheduler.at(self._queue[0][0], self._deliver)

    def _deliver(self) -> None:
        queue = self._queue
        if not queue:
            return
        network, peer = self._network, self.peer
        now_ns = network.scheduler.now_ns
        if self.link.cut:
            for told in self.link.held_by:
                told()
            self._stall(now_ns)
            return
        self._stalled_since_ns = -1
        # A closed end takes what comes, too: by answering with a reset.
        if not peer.readable and not peer.closed:
            return  # the receiver kicks when it reads again
        # Nobody answers there, not even with a reset: only the time limit of this end will tell.
        if peer.host in network.dark_hosts:
            self._stall(now_ns)
            return
        pieces: list[bytes] = []
        ended = False
        while queue and queue[0][0] <= now_ns:
            data = queue.popleft()[1]
            if data is None:
                ended = True
                break
            pieces.append(data)
        # All that is due comes as one piece, as it would from one read of a socket.
        if pieces:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._in_flight_bytes -= len(data)
            if peer.closed:
                self._refused()
                return
            peer.on_data(data)
            # The receiver's window has room again.
            if self._unsent:
                self._fill()
        if ended:
            self._drop()
            if not peer.closed:
                peer.vanish()
                peer.on_closed("the remote end closed the connection")
            return
        if queue:
            self._schedule()

    def _refused(self) -> None:
        """Answers bytes that came to a closed end with a reset."""
        was_open = not self._closed
        self._drop()
        if was_open:
            self.on_closed("connection reset by the remote end")

    def _stall(self, now_ns: int) -> None:
        """Notes that nothing gets through: healing the link will kick, and the user timeout goes on."""
        if self._stalled_since_ns < 0:
            self._stalled_since_ns = now_ns
            # No run waits for longer limits, such as the default.
            if not self._closed and self.user_timeout_ns < 600 * SECOND:
                self._network.scheduler.after(self.user_timeout_ns, self._give_up, now_ns)

    def _give_up(self, since_ns: int) -> None:
        # A stall that has ended is over, also if another one has begun since: that one has a timer of its own.
        if self._stalled_since_ns == since_ns and not self._closed:
            self._drop()
            self.on_closed("nothing was acknowledged for too long")

    def defer_after_healing(self) -> None:
        """Lets what waited for a cut to heal arrive with the sender's next retransmission."""
        if not self._queue:
            return
        at = self._network.scheduler.now_ns + self.link.random.randrange(MILLISECOND, _HEALING_NS)
        # What is sent from now on does not overtake what waited.
        self._last_arrival_ns = max(self._last_arrival_ns, at)
        self._queue = deque((max(time, at), data) for time, data in self._queue)
        self._schedule()


class Network:
    """All hosts' listeners, links and connections."""

    def __init__(
        self, scheduler: Scheduler, random_of: Callable[[str], Random], fired: Callable[[str], object]
    ) -> None:
        """`random_of` returns what a link draws from, by its name; it may be the same for all."""
        self.scheduler = scheduler
        self._random_of = random_of
        self.fired = fired
        self.split_probability = 0.02
        """The probability that what is sent at once arrives in two parts."""
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[str, tuple[str, Callable[[Endpoint], object]]] = {}
        self._hosts_of_addresses: dict[str, str] = {}
        # Keys are the endpoints themselves, hashed by identity but never iterated in that order: dicts keep insertion.
        self._open: dict[Endpoint, None] = {}
        self.dark_hosts: dict[str, None] = {}
        """Hosts without power."""
        self._next_port = 30_000

    def link(self, source: str, target: str) -> Link:
        """Returns the link from one host to another."""
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(self._random_of(f"link {source} {target}"))
        return link

    # ---- hosts ---------------------------------------------------------------------------------------

    def name_address(self, address: str, host: str) -> None:
        """Says that `address` (host:port) belongs to this host, also while nobody listens there."""
        self._hosts_of_addresses[address] = host

    def listen(self, address: str, host: str, accepted: Callable[[Endpoint], object]) -> None:
        """Gives connections to `address` to `accepted` from now on."""
        self.name_address(address, host)
        self._listeners[address] = (host, accepted)

    def stop_listening(self, address: str) -> None:
        """Refuses connections to `address` from now on."""
        self._listeners.pop(address, None)

    def set_dark(self, host: str, dark: bool) -> None:
        """Says whether a host is without power: then it answers nothing at all."""
        if dark:
            self.dark_hosts[host] = None
        else:
            self.dark_hosts.pop(host, None)
            self.kick(host)

    def endpoints_of(self, host: str) -> list[Endpoint]:
        """Returns the open ends on a host, in the order in which they were opened."""
        return [endpoint for endpoint in self._open if endpoint.host == host and not endpoint.closed]

    def endpoints(self) -> list[Endpoint]:
        """Returns all open ends."""
        return [endpoint for endpoint in self._open if not endpoint.closed]

    def forget(self, endpoint: Endpoint) -> None:
        """Forgets an end that is closed; for `Endpoint`."""
        self._open.pop(endpoint, None)

    # ---- connecting ----------------------------------------------------------------------------------

    def connect(
        self, host: str, host_ip: str, address: str, done: Callable[[Endpoint | None, str], object]
    ) -> None:
        """Calls `done` with an endpoint, or with None and a reason when refused.

        It is never called if the link is cut either way, or a host has no power, when the call arrives: then the
        caller's time limit ends it.
        """
        target = self._hosts_of_addresses.get(address)
        if target is None:
            self.scheduler.after(MILLISECOND, done, None, f"no route to {address}")
            return
        link = self.link(host, target)
        delay = link.random.randrange(link.delay_min_ns, link.delay_max_ns)
        if link.loss and link.random.random() < link.loss:
            self.fired("loss")
            delay += SECOND  # the first segment is sent again after a second
        self._next_port += 1
        port = self._next_port
        self.scheduler.after(delay, self._arrive, host, f"{host_ip}:{port}", target, address, done)

    def _arrive(
        self, host: str, own_address: str, target: str, address: str, done: Callable[..., object]
    ) -> None:
        there, back = self.link(host, target), self.link(target, host)
        for told in (*there.held_by, *back.held_by):
            told()
        if there.cut or back.cut or target in self.dark_hosts or host in self.dark_hosts:
            return  # the caller's own time limit ends this
        delay = back.random.randrange(back.delay_min_ns, back.delay_max_ns)
        listener = self._listeners.get(address)
        if listener is None:
            self.scheduler.after(delay, done, None, f"connection to {address} refused")
            return
        near = Endpoint(self, host, address, there)
        far = Endpoint(self, target, own_address, back)
        near.peer, far.peer = far, near
        self._open[near] = self._open[far] = None
        # The server's end is open half a round trip before the client hears of it, and may send first.
        listener[1](far)
        self.scheduler.after(delay, done, near, "")

    # ---- faults --------------------------------------------------------------------------------------

    def set_cut(self, source: str, target: str, cut: bool) -> None:
        """Cuts one direction, or ends one cut of it: it is whole when all have ended.

        One that `heal` has ended already may be ended once more.
        """
        link = self.link(source, target)
        was_cut = link.cut
        link.cut = max(0, link.cut + (1 if cut else -1))
        # Only the last one that ends makes the link whole; before that, all that waits goes on waiting.
        if was_cut and not link.cut:
            for endpoint in list(self._open):
                if endpoint.link is link:
                    endpoint.defer_after_healing()

    def set_clogged(self, source: str, target: str, clogged: bool) -> None:
        """Lets only a trickle through one direction, or ends that, as with `set_cut`."""
        link = self.link(source, target)
        was_clogged = link.clogged
        link.clogged = max(0, link.clogged + (1 if clogged else -1))
        if was_clogged and not link.clogged:
            for endpoint in list(self._open):
                if endpoint.link is link:
                    endpoint.kick()

    def heal(self, source: str, target: str) -> None:
        """Ends all cuts of one direction, and whatever else makes it worse than others."""
        link = self.link(source, target)
        # Through `set_cut`, which has what waited arrive.
        for _ in range(link.cut):
            self.set_cut(source, target, False)
        for _ in range(link.clogged):
            self.set_clogged(source, target, False)
        link.held_by.clear()
        link.slowed_by = None
        link.loss = 0.0
        link.delay_min_ns, link.delay_max_ns = DELAY_MIN_NS, DELAY_MAX_NS

    def kick(self, host: str) -> None:
        """Tries again to deliver to a host, which takes bytes again."""
        for endpoint in list(self._open):
            if endpoint.peer.host == host:
                endpoint.kick()
