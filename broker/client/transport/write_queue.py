"""The bytes that a connection is to send: queued by whoever has some, written together.

- All that is queued within a turn leaves with one system call. A task writes it, which runs after all others that are
  ready now. Who knows that nothing more can follow calls `write_now`, and spares the switch to that task: for a call
  that is alone, and for what is queued while the bytes of one read are handled (`hold`).
- Only whole frames are queued, and what is queued is written to its end whatever becomes of who queued it: half a frame
  would spoil the connection for everybody.
- A peer that does not read lets the backlog grow: `is_full` asks who has more to wait with `wait_room`.
"""

from dataclasses import dataclass, field

from broker.client.errors import CallTimeout
from broker.client.transport.runtime import Buffer, ByteStream, Event, Runtime, drop_bytes

BACKLOG_BYTES_MAX = 8 * 1024 * 1024
"""Unsent bytes above which a new call waits for room: a peer that does not read cannot grow this process."""


@dataclass(slots=True, eq=False)
class WriteQueue:
    """The bytes that wait to be written to one stream; `run` writes them."""

    _runtime: Runtime
    _stream: ByteStream
    # Both only grow: bytes that were queued, and bytes of them that were handed to the stream. A call whose first
    # byte (`Call.start_byte`) is below the second number may have reached the peer.
    queued_bytes: int = 0
    handed_bytes: int = 0
    _backlog: list[Buffer] = field(default_factory=list)
    _backlog_bytes: int = 0
    _writing: bool = False
    """The task waits in the stream, for room there: nobody else may write."""
    _wake: Event | None = None
    _room: Event | None = None
    _held: bool = False
    _closed: bool = False

    @property
    def is_full(self) -> bool:
        """Tell whether who has more to send should wait for room first."""
        return self._backlog_bytes > BACKLOG_BYTES_MAX

    def put(self, head: Buffer, body: Buffer, *, is_alone: bool = False) -> None:
        """Queue one frame. One that is alone is written at once, when nothing else waits. Raises OSError then."""
        size = len(head)
        backlog = self._backlog
        is_alone = is_alone and not backlog and not self._writing
        backlog.append(head)
        if body:
            size += len(body)
            backlog.append(body)
        self.queued_bytes += size
        self._backlog_bytes += size
        if self._held:
            return
        if is_alone:
            self.write_now()
        elif self._wake is not None:
            self._wake_up(self._wake)

    def hold(self) -> None:
        """Write nothing while more is queued, until `write_now`."""
        self._held = True

    def write_now(self) -> None:
        """Hand to the stream what it takes without waiting; the task sees to the rest. Raises OSError."""
        self._held = False
        if self._writing or not self._backlog:
            return
        sent = self._stream.write_nowait(self._backlog)
        self.handed_bytes += sent
        self._backlog_bytes -= sent
        # A call that may have reached the peer must not be made twice, and these say of which ones that is true.
        assert self.handed_bytes + self._backlog_bytes == self.queued_bytes, (
            f"{self.handed_bytes} + {self._backlog_bytes} bytes of {self.queued_bytes}"
        )
        self._tell_of_room()
        if not self._backlog_bytes:
            self._backlog = []
            return
        self._backlog = drop_bytes(self._backlog, sent)
        if self._wake is not None:
            self._wake_up(self._wake)

    async def run(self) -> None:
        """Write what is queued until closed. Raises OSError."""
        while not self._closed:
            if not self._backlog:
                self._wake = event = self._runtime.event()
                await event.wait()
                continue
            buffers, self._backlog = self._backlog, []
            size, self._backlog_bytes = self._backlog_bytes, 0
            # Counted before they go: if the connection breaks meanwhile, nobody knows which of them have arrived.
            self.handed_bytes += size
            self._writing = True
            await self._stream.send_all(buffers)
            self._writing = False
            self._tell_of_room()

    async def wait_room(self, address: str, timeout_s: float) -> None:
        """Wait until the backlog is not full, or closed. Raises CallTimeout after ``timeout_s`` seconds."""
        if not self.is_full:
            return
        with self._runtime.move_on_after(timeout_s):
            while self.is_full and not self._closed:
                if self._room is None:
                    self._room = self._runtime.event()
                await self._room.wait()
            return
        raise CallTimeout(address, f"the peer took nothing for {timeout_s} s", request_left=False)

    def close(self) -> None:
        """Forget what waits, and end the task."""
        self._closed = True
        self._backlog = []
        for event in (self._wake, self._room):
            if event is not None:
                event.set()

    def _tell_of_room(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None

    def _wake_up(self, task: Event) -> None:
        task.set()
        self._wake = None
